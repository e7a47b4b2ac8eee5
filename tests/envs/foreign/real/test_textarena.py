"""The real TextArena: its own envs, wrapped, and rolled out by the runner with the tiny policy."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.envs import wrap
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError


@pytest.fixture
def textarena():
    return pytest.importorskip("textarena")


async def test_textarena_shows_what_is_new(textarena):
    async with wrap(lambda: textarena.make("GuessTheNumber-v0")) as env:
        obs, _ = await env.reset(seed=1)
        assert "Guess The Number" in obs[0]["content"]
        number = env.foreign.state.game_state["game_number"]
        result = await env.step(f"[{number % 20 + 1}]")
        assert "The target number is" in result.obs[0]["content"]
        assert "Guess The Number" not in result.obs[0]["content"]
        assert f"[{number % 20 + 1}]" not in result.obs[0]["content"]
        result = await env.step(f"[{number}]")
        assert (result.reward, result.done) == (1.0, True)
    await check_env(wrap(lambda: textarena.make("GuessTheNumber-v0")), ["[3]", "[4]", "[5]", "none", "none"])


async def test_textarena_rolls_out(textarena, exact_rollout):
    await exact_rollout(lambda: wrap(textarena.make("GuessTheNumber-v0")))


async def test_textarenas_other_players(textarena, exact_rollout):
    seen = []

    async def opponent(text):
        seen.append(text)
        await asyncio.sleep(0)
        return text.rpartition("Available Moves: ")[2].split(",")[0].strip("' []").join("[]")

    make = lambda: textarena.make("TicTacToe-v0")  # noqa: E731
    async with wrap(make, players=2, player=1, opponents=opponent) as env:
        obs, _ = await env.reset(seed=0)  # the opponent has moved
        assert seen
        assert obs[0]["content"]
        result = await env.step("[4]")
        assert not result.done
    with pytest.raises(ConfigError, match="opponents="):
        wrap(make, players=2)
    async with wrap(make) as env:
        with pytest.raises(ConfigError, match="give players="):
            await env.reset(seed=0)
    await exact_rollout(lambda: wrap(make, players=2, opponents=opponent))
