"""`wrap` on objects shaped like those of TextArena, which `real/test_textarena.py` has for real."""

from __future__ import annotations

import enum
import random
import threading
import types

import pytest

from tests.envs.foreign.shapes import class_of, contents
from toolgym.envs import StopReason, wrap
from toolgym.envs.types import EpisodeFailedError
from toolgym.rollout import SamplingParams, open_engine
from toolgym.rollout.engine_player import EnginePlayer
from toolgym.tools.errors import ConfigError


class Kind(enum.Enum):
    PROMPT = enum.auto()
    PLAYER_ACTION = enum.auto()
    GAME_MESSAGE = enum.auto()


class Nim(class_of("textarena.core", "Env")):
    """Players take turns to take from a heap; the one that takes the last wins."""

    def __init__(self, players=2):
        self.wanted = players

    def reset(self, num_players, seed=None):
        if num_players != self.wanted:
            raise AssertionError(f"The number of players has to be {self.wanted}")
        random.seed(seed)
        self.heap, self.rewards = random.randint(10, 99), None
        self.state = types.SimpleNamespace(current_player_id=0, role_mapping={0: "Ann", 1: "Bob"})
        self.news = {n: [(-1, f"A heap of {self.heap}.", Kind.PROMPT)] for n in range(num_players)}

    def get_observation(self):
        player = self.state.current_player_id
        news, self.news[player] = self.news[player], []
        return player, news

    def step(self, action):
        player = self.state.current_player_id
        self.heap -= 50 if action == "much" else 1
        for news in self.news.values():
            news += [(player, action, Kind.PLAYER_ACTION), (-1, f"{self.heap} left.", Kind.GAME_MESSAGE)]
        if self.heap <= 0:
            self.rewards = {n: 1 if n == player else -1 for n in self.news} if action != "odd" else None
            return True, {}
        self.state.current_player_id = (player + 1) % self.wanted
        return False, {}

    def close(self):
        return self.rewards, {n: {"turn_count": 9} for n in self.news}


class LLMObservationWrapper(class_of("textarena.core", "Env")):
    """Tells all of the past, as TextArena's agents read it."""

    def __init__(self, env):
        self.env, self.past = env, {}

    def __getattr__(self, name):
        return getattr(self.__dict__["env"], name)

    def get_observation(self):
        player, news = self.env.get_observation()
        self.past[player] = self.past.get(player, []) + [text for _, text, _ in news]
        return player, " / ".join(self.past[player])


async def test_textarenas_policy_reads_what_is_new():
    async with wrap(LLMObservationWrapper(Nim(1))) as env:
        obs, _ = await env.reset(seed=1)
        heap = env.foreign.heap
        assert contents_of(obs) == [f"[GAME] A heap of {heap}."]
        assert contents(await env.step("one")) == [f"[GAME] {heap - 1} left."]
        env.foreign.heap = 50
        result = await env.step("much")
        assert (result.reward, result.done, result.info["metrics"]["env/turn_count"]) == (1.0, True, 9.0)


def contents_of(messages):
    return [one["content"] for one in messages]


@pytest.mark.parametrize("kind", ["plain", "async", "by number"])
async def test_textarenas_other_players_are_played(kind):
    seen = []

    def plain(text):
        seen.append((text, threading.current_thread() is threading.main_thread()))
        return "much" if len(seen) == 2 else "one"

    async def later(text):
        return plain(text)

    opponents = {"plain": plain, "async": later, "by number": {0: plain}}[kind]
    async with wrap(lambda: LLMObservationWrapper(Nim()), players=2, player=1, opponents=opponents) as env:
        obs, _ = await env.reset(seed=1)
        heap = env.foreign.heap + 1
        assert contents_of(obs) == [f"[GAME] A heap of {heap}.\n[Ann] one\n[GAME] {heap - 1} left."]
        result = await env.step("one")
        assert seen[1][0] == f"A heap of {heap}. / one / {heap - 1} left. / one / {heap - 2} left."
        assert not any(on_loop for _, on_loop in seen) or kind == "async"
        while not result.done:
            result = await env.step("one")
        assert result.reward in (1.0, -1.0)


async def test_textarenas_mistakes():
    with pytest.raises(ConfigError, match="nothing plays player 1"):
        wrap(Nim, players=2)
    with pytest.raises(ConfigError, match="nothing plays player 2"):
        wrap(Nim, players=3, opponents={1: str})
    with pytest.raises(ConfigError, match="player must be one of the 2 players"):
        wrap(Nim, players=2, player=2, opponents=str)
    with pytest.raises(ConfigError, match="has to be 2; give players="):
        await wrap(Nim).reset(seed=0)
    async with wrap(Nim(), players=2, opponents=lambda text: 3) as env:
        await env.reset(seed=0)
        with pytest.raises(ConfigError, match="must return a text, got 3"):
            await env.step("one")
    async with wrap(Nim(1)) as env:
        await env.reset(seed=0)
        env.foreign.heap = 1
        with pytest.raises(EpisodeFailedError, match="no reward: None"):
            await env.step("odd")


async def test_an_engine_is_an_opponent():
    async with open_engine("tiny") as engine:
        opponent = EnginePlayer(engine, sampling=SamplingParams(max_new_tokens=4), system_prompt="Play.")
        assert isinstance(await opponent("one"), str)
        async with wrap(Nim(), players=2, player=1, opponents=opponent) as env:
            obs, _ = await env.reset(seed=1)
            assert "[Ann]" in obs[0]["content"]
        assert isinstance(await opponent("word " * 10_000), str), "a long text does not end the game"
        with pytest.raises(
            EpisodeFailedError, match=r"prompt has \d+ tokens without its text, and its context"
        ) as failed:
            await EnginePlayer(engine, system_prompt="word " * 10_000)("one")
        assert failed.value.stop_reason is StopReason.ENGINE_FAILED
    async with wrap(Nim(), players=2, player=1, opponents=opponent) as env:
        with pytest.raises(EpisodeFailedError, match="closed") as failed:
            await env.reset(seed=1)
    assert failed.value.stop_reason is StopReason.ENGINE_FAILED
