"""What holds for each wrapper: the contract of an env, forks with a state of their own, and the solution inside."""

from __future__ import annotations

import ast
import importlib
from functools import partial
from pathlib import Path

import pytest

import toolgym.wrappers
from toolgym.envs.base import BaseEnv
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import StopReason
from toolgym.testing import check_env
from toolgym.tools.errors import EpisodeError
from toolgym.wrappers import (
    Compact,
    Compose,
    FormatPenalty,
    Limit,
    RateLimit,
    Record,
    RetryOnInfraError,
    RewriteObservations,
    ShapeReward,
    TimeLimit,
    TokenBudget,
    TruncateResults,
    TurnLimit,
    Wrapper,
)

WRAPPERS = {
    "Wrapper": Wrapper,
    "TurnLimit": partial(TurnLimit, max_turns=3),
    "TokenBudget": partial(TokenBudget, max_tokens=200, tokenizer=len),
    "TimeLimit": partial(TimeLimit, seconds=60),
    "TruncateResults": partial(TruncateResults, max_chars=5),
    "TruncateResults by tokens": partial(TruncateResults, max_tokens=2, tokenizer=lambda text: len(text.split())),
    "ShapeReward": partial(ShapeReward, shape=lambda result: 2 * result.reward),
    "FormatPenalty": partial(FormatPenalty, form="Task"),
    "RetryOnInfraError": RetryOnInfraError,
    "RetryOnInfraError of steps": partial(RetryOnInfraError, steps=True),
    "RateLimit": partial(RateLimit, limit=2, name="every wrapper"),
    "Record": Record,
    "RewriteObservations": partial(RewriteObservations, rewrite=lambda messages: messages[:1]),
    "Compact": partial(Compact, max_tokens=40, tokenizer=len),
    "Compose": Compose(
        partial(RetryOnInfraError, steps=True),
        partial(TruncateResults, max_chars=30),
        partial(FormatPenalty, form="o"),
        partial(Compact, max_tokens=60, tokenizer=len),
        partial(TurnLimit, max_turns=4),
        partial(TimeLimit, seconds=60),
    ),
}


@pytest.fixture(params=WRAPPERS)
def wrap(request, tmp_path):
    made = WRAPPERS[request.param]
    return partial(Record, path=tmp_path / "episodes.jsonl") if made is Record else made


def test_every_wrapper_is_tested_here():
    assert set(toolgym.wrappers.__all__) - {"Limit"} == {name.partition(" ")[0] for name in WRAPPERS}


def test_every_wrapper_shows_its_behaviour():
    """A doctest each."""
    for name in set(toolgym.wrappers.__all__) - {"Limit"}:
        made = getattr(toolgym.wrappers, name)
        tree = ast.parse(Path(importlib.import_module(made.__module__).__file__).read_text())
        [node] = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
        assert ">>> " in ast.get_docstring(node), name


@pytest.mark.parametrize("solution", ["7", "no idea"])
async def test_it_keeps_the_contract_of_an_env(wrap, counting, call, solution):
    await check_env(wrap(counting(max_turns=6)), [call(1, "a long text"), call(2), solution], forks=True)


async def test_no_session_of_a_tool_is_left_open(wrap, counting, counter, call):
    env = wrap(counting())
    await env.reset(seed=0)
    await env.step(call(1))
    twin = await env.fork()
    await twin.step(call(1))
    await env.reset()
    await env.close()
    await twin.close()
    await twin.close()
    assert counter.open_sessions == 0


class Solved(ToolEnv):
    def gold_actions(self):
        return [self.task.ground_truth]


async def test_the_solution_passes_through(wrap):
    async with wrap(Solved([], [Task(({"role": "user", "content": "1+1"},), ground_truth="2")])) as env:
        await env.reset(seed=0)
        [action] = env.gold_actions()
        assert (await env.step(action)).done


class Endless(BaseEnv):
    """An env without `truncate`, which goes on for ever."""

    async def reset(self, *, seed=None, options=None):
        return [{"role": "user", "content": "Go on."}], {}

    async def step(self, action):
        return toolgym.StepResult([{"role": "user", "content": "Go on."}], 0.25, False, {})

    async def close(self):
        pass

    async def fork(self):
        return Endless()


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (partial(TurnLimit, max_turns=2), StopReason.MAX_TURNS),
        (partial(TokenBudget, max_tokens=15, tokenizer=len), StopReason.BUDGET),
    ],
)
async def test_a_limit_ends_an_env_that_knows_no_end(limit, reason):
    async with limit(Endless()) as env:
        await env.reset()
        first, last = await env.step("Yes"), await env.step("Yes")
        assert (first.done, last.done, last.stop_reason, last.reward, last.obs) == (False, True, reason, 0.25, [])
        with pytest.raises(EpisodeError, match="after the episode ended"):
            await env.step("Yes")
        with pytest.raises(EpisodeError, match="fork needs an episode under way"):
            await env.fork()
        await env.reset()
        assert not (await env.step("Yes")).done


def test_limits_are_abstract():
    with pytest.raises(TypeError, match="limited_step"):
        Limit(Endless())
