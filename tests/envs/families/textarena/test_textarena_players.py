"""`TextArenaPlayers` on a game shaped like TextArena's, which `test_textarena_games.py` has for real."""

from __future__ import annotations

import re

import pytest

from tests.envs.foreign.test_textarena import LLMObservationWrapper, Nim
from tests.rollout.conftest import ScriptedEngine, assert_exact
from toolgym.envs import Task
from toolgym.envs.families.textarena.players import TextArenaPlayers
from toolgym.rollout import EnvFactory, RolePlan, RunConfig, Runner, SamplingParams, rollout
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.models.tiny import tiny_policy_path
from toolgym.rollout.models.tokenizer import load_tokenizer
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import system, user

CONFIG = RunConfig(seed=1, sampling=SamplingParams(max_new_tokens=40))


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(tiny_policy_path())


def game(**options):
    return lambda: TextArenaPlayers(lambda: LLMObservationWrapper(Nim()), **options)


def seeded(seed):
    return Task.from_row({"prompt": [user("Play well.")], "extra_info": {"seed": seed}})


async def test_each_player_reads_what_is_new_to_it_and_has_its_own_tokens_and_reward(tokenizer):
    engine = ScriptedEngine(tokenizer, lambda prompt, _: "one" if "one" not in prompt else "much")
    done = await rollout(game(system_prompt="Be quick."), engine, [seeded(5)], config=CONFIG)
    heap = int(re.search(r"heap of (\d+)", done[0].messages[1]["content"])[1])
    assert heap == 89, "so it takes three moves"
    assert [(one.role, one.reward, one.stop_reason.value) for one in done] == [
        ("player-0", 1.0, "answered"),
        ("player-1", -1.0, "answered"),
    ]
    for trajectory in done:
        assert_exact(engine, trajectory)
    first, second = ([message["content"] for message in trajectory.messages] for trajectory in done)
    assert first[:4] == [
        "Be quick.",
        f"Play well.\n\n[GAME] A heap of {heap}.",
        "one",
        f"[GAME] {heap - 1} left.\n[Bob] much\n[GAME] {heap - 51} left.",
    ]
    assert second[:2] == ["Be quick.", f"Play well.\n\n[GAME] A heap of {heap}.\n[Ann] one\n[GAME] {heap - 1} left."]
    assert done[0].metrics["env/player-1/turn_count"] == 9.0


async def test_a_group_begins_alike_and_a_player_may_be_a_frozen_one(tokenizer):
    plan = RolePlan(engine=ScriptedEngine(tokenizer, lambda *_: "much"), train=False)
    env = EnvFactory.of(game(), roles={"player-1": plan})
    engine = ScriptedEngine(tokenizer, lambda *_: "one")
    done = await rollout(env, engine, num_tasks=3, config=RunConfig(seed=1, group_size=2))
    begun = [trajectory.messages[0]["content"] for trajectory in done]
    assert begun[::2] == begun[1::2]
    assert len({*begun}) > 1
    assert [one.role for one in done] == ["player-0"] * 6


async def test_a_player_that_a_limit_cuts_loses_and_thinking_is_left_out(tokenizer):
    heard = []

    class Listens(Nim):
        def step(self, action):
            heard.append(action)
            return super().step(action)

    def script(prompt, _):
        return ("much too long", FinishReason.LENGTH) if "[Ann]" in prompt else "<think>hm</think> one"

    env = lambda: TextArenaPlayers(Listens, drop_thinking=True)  # noqa: E731
    done = await rollout(env, ScriptedEngine(tokenizer, script), [seeded(1)], config=CONFIG)
    assert heard == ["one"]
    assert [(one.role, one.reward, one.stop_reason.value) for one in done] == [
        ("player-0", 0.0, "answered"),
        ("player-1", -1.0, "length"),
    ]


async def test_what_is_wrong_with_a_game_is_said(tokenizer):
    engine = ScriptedEngine(tokenizer, lambda *_: "one")
    done = await Runner(game(players=3), engine, config=CONFIG).run([seeded(1)])
    assert {one.stop_reason.value for one in done} == {"reset_failed"}
    assert "does not begin with players=3: The number of players has to be 2; give players=" in done[0].error.message

    class Odd(Nim):
        def close(self):
            return {0: 1}, {}

    engine = ScriptedEngine(tokenizer, lambda *_: "much")
    done = await Runner(lambda: TextArenaPlayers(Odd), engine, config=CONFIG).run([seeded(1)])
    assert {one.stop_reason.value for one in done} == {"env_failed"}
    assert "gave the player 1 no reward" in done[0].error.message
    with pytest.raises(ConfigError, match="players must be"):
        TextArenaPlayers(Nim, players=0)
    with pytest.raises(ConfigError, match="make must be a function"):
        TextArenaPlayers(Nim())
    with pytest.raises(ConfigError, match="system_prompt must be a text"):
        TextArenaPlayers(Nim, system_prompt=system("x"))
