"""`TextArena/NAME-v0` with the real TextArena: every game of the list begins, plays and ends, without the network."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

import toolgym
from tests.rollout.conftest import ScriptedEngine, assert_exact
from toolgym.envs.families.textarena.ids import GAMES, PLAYERS, env_id
from toolgym.envs.foreign.seeds import seed_task
from toolgym.rollout import RunConfig, SamplingParams, open_engine, rollout
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.testing import check_env
from toolgym.tools.errors import ConfigError, UnknownNameError
from toolgym.tools.parsers.base import ParsedTurn

pytest.importorskip("textarena")

PAGE = Path(__file__).parents[4] / "docs" / "envs" / "textarena.md"


@pytest.fixture
def addresses_asked_for(monkeypatch) -> list:
    """What was looked up or connected to; all is refused."""
    asked: list = []

    def refuse(*args, **kwargs):
        asked.append(args)
        raise OSError("the network is off")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


async def beginning(game: str, seed: int, action: str) -> tuple:
    """What the policy sees at first and after one action."""
    async with toolgym.make(env_id(game)) as env:
        obs, _ = await env.reset(seed=seed)
        assert obs[0]["content"]
        result = await env.step(action)
        return obs, result.obs, result.reward, result.done


@pytest.mark.parametrize("game", GAMES)
async def test_a_seed_gives_the_same_game_and_nothing_is_fetched(game, addresses_asked_for):
    assert await beginning(game, 1, "[1 2]") == await beginning(game, 1, "[1 2]")
    assert addresses_asked_for == []


@pytest.mark.parametrize("game", GAMES)
async def test_malformed_actions_end_the_game_with_next_to_nothing(game):
    async with toolgym.make(env_id(game)) as env:
        await env.reset(seed=2)
        for _ in range(50):
            result = await env.step("")
            if result.done:
                break
        assert result.done
        assert not result.stop_reason.failed
        assert result.reward <= (0.5 if game == "RushHour-v0" else 0.1)  # it counts how free the way was at first


async def played(game: str, seed: int, action: str, most: int = 400) -> list:
    """What the players of a game read and get while each says the same."""
    env = toolgym.make(env_id(game))
    try:
        steps = [await env.begin(seed_task(seed), seed=None)]
        while steps[-1].next and len(steps) <= most:
            steps.append(await env.act({steps[-1].next: ParsedTurn(action, action, [], [])}))
        return steps
    finally:
        await env.close()


@pytest.mark.parametrize("game", PLAYERS)
async def test_a_game_for_several_is_the_same_with_a_seed_and_ends_with_a_reward_for_each(game, addresses_asked_for):
    steps = await played(game, 1, "")
    assert steps == await played(game, 1, "")
    assert steps[0].obs[steps[0].next][0]["content"]
    roles = toolgym.make(env_id(game)).roles
    assert (steps[-1].next, len(roles)) == ((), PLAYERS[game])
    assert steps[-1].rewards.keys() == {*roles}
    assert addresses_asked_for == []


async def test_each_player_of_a_game_is_a_role_with_its_own_tokens():
    def first_free(prompt, _):
        return f"[{re.findall(r'[0-8]', prompt.rpartition('Available Moves')[2])[0]}]"

    engine = ScriptedEngine(load_tokenizer(tiny_policy_path()), first_free)
    config = RunConfig(group_size=2, seed=0, sampling=SamplingParams(max_new_tokens=24))
    trajectories = await rollout("TextArena/TicTacToe-v0", engine, num_tasks=2, config=config)
    assert [(one.task_index, one.role, one.sample_index, one.reward) for one in trajectories] == [
        (task, role, sample, reward)
        for task in range(2)
        for role, reward in (("player-0", 1.0), ("player-1", -1.0))
        for sample in range(2)
    ]
    for trajectory in trajectories:
        assert_exact(engine, trajectory)
        words = [message["content"] for message in trajectory.messages[1:]]
        assert words[::2] == (["[0]", "[2]", "[4]", "[6]"] if trajectory.role == "player-0" else ["[1]", "[3]", "[5]"])
        assert len({*words}) == len(words), "a player reads nothing twice"
    with pytest.raises(ConfigError, match="has several roles"):
        await toolgym.make("TextArena/TicTacToe-v0").reset()


def test_the_program_of_the_page_runs(tmp_path, as_program):
    [program] = re.findall(r"```python\n(import asyncio.*?)```", PAGE.read_text(), re.DOTALL)
    assert as_program(program, tmp_path).count("player-1") == 4


async def test_a_game_can_be_won():
    async with toolgym.make("TextArena/GuessTheNumber-v0") as env:
        await env.reset(seed=1)
        number = env.foreign.state.game_state["game_number"]
        result = await env.step(f"[{number}]")
        assert (result.reward, result.done) == (1.0, True)


async def test_seeds_give_different_games():
    assert await beginning("Sudoku-v0", 1, "") != await beginning("Sudoku-v0", 2, "")


async def test_it_keeps_the_contract_takes_the_arguments_of_wrap_and_the_tiny_policy_plays_it():
    await check_env(toolgym.make("TextArena/GuessTheNumber-v0"), ["[3]", "[4]", "none", "none"])
    async with toolgym.make("TextArena/GuessTheNumber-v0", max_turns=1, system_prompt="Be quick.") as env:
        obs, _ = await env.reset(seed=1)
        assert obs[0] == {"role": "system", "content": "Be quick."}
        assert (await env.step("[21]")).truncated
    with pytest.raises(UnknownNameError, match="did you mean 'max_turns'"):
        toolgym.make("TextArena/GuessTheNumber-v0", max_turn=1)
    async with open_engine("tiny") as engine:
        config = RunConfig(group_size=2, seed=0, sampling=SamplingParams(max_new_tokens=24))
        trajectories = await rollout("TextArena/GuessTheNumber-v0", engine, num_tasks=2, config=config)
    assert not [one.error for one in trajectories if one.stop_reason.failed]
