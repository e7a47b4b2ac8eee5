"""Whole episodes whose only turn is hostile: the loop is not held up, and the episode scores 0 and does not fail."""

from __future__ import annotations

import importlib.util
import time

import pytest

import toolgym
from tests.hostile.growth import NOTICEABLE, SUPERLINEAR, TRIES
from tests.hostile.shapes import shapes
from toolgym.tools.message import assistant, tool_call

SHAPES = dict(shapes())

TURNS = (
    "open answer", "pairs of answer", "crossed answer", "open think", "closed think", "open tool_call", "deep JSON",
    "digits", "blanks", "line breaks", "whole boxes", "deep boxes", "hashes", "backticks", "python fences",
    "sql fences", "surrogates", "emoji", "nuls", "quotes",
)  # fmt: skip
"""Shapes that envs read in a way of their own."""

ENVS = {
    "SearchQA-v0": "bm25s",
    "ReasoningGym/gcd-v0": "reasoning_gym",
    "ReasoningGym/countdown-v0": "reasoning_gym",
    "Math-v0": "math_verify",
    "GSM8K-v0": "",
    "SingleTurn-v0": "",
    "SQL-v0": "",
    "CodeJudge-v0": "",
    "UserSim-v0": "",
    "CodeInterpreter-v0": "",
    "TextArena/Bandit-v0": "textarena",
    "BFCL/multi_turn_base-v0": "bfcl_eval",
}
"""Ids, and the package that each needs."""


async def loop_seconds(env, turn) -> float:
    """The CPU seconds that the event loop's thread spends on an episode of one turn, until it ends or goes on."""
    await env.reset(seed=0)
    begun = time.thread_time()
    result = await env.step(turn)
    seconds = time.thread_time() - begun
    assert result.reward <= 0.05
    assert not (result.done and result.stop_reason.failed)
    return seconds


async def first_slow(env, make, lengths) -> str:
    before = float("inf")
    for length in lengths:
        seconds = await loop_seconds(env, make(length))
        for _ in range(TRIES - 1):  # of which another process may have disturbed one
            if seconds > max(NOTICEABLE, SUPERLINEAR * before):
                seconds = min(seconds, await loop_seconds(env, make(length)))
        if seconds > max(NOTICEABLE, SUPERLINEAR * before):
            return f"{length} characters take {seconds:.2f} s of the loop, a quarter of them {before:.3f} s"
        before = seconds
    return ""


def made(env_id):
    if ENVS[env_id] and importlib.util.find_spec(ENVS[env_id]) is None:
        pytest.skip(f"{ENVS[env_id]} is not installed")
    return toolgym.make(env_id)


@pytest.mark.parametrize("env_id", ["SearchQA-v0", "GSM8K-v0", "SingleTurn-v0", "SQL-v0"])
async def test_a_hostile_turn_holds_up_no_loop(env_id):
    async with made(env_id) as env:
        slow = {name: why for name in TURNS if (why := await first_slow(env, SHAPES[name], (1 << 13, 1 << 15)))}
    assert slow == {}


@pytest.mark.abuse  # minutes
@pytest.mark.parametrize("env_id", ENVS)
async def test_a_megabyte_holds_up_no_loop(env_id):
    lengths = (1 << 14, 1 << 16, 1 << 18, 1 << 20)
    async with made(env_id) as env:
        slow = {name: why for name in TURNS if (why := await first_slow(env, SHAPES[name], lengths))}
    assert slow == {}


ARGUMENTS = {
    "CodeInterpreter-v0": ("code_interpreter", ["code"]),
    "SQL-v0": ("sql", ["query"]),
    "SearchQA-v0": ("search", ["query_list"]),
}


@pytest.mark.parametrize("env_id", ARGUMENTS)
async def test_hostile_arguments_are_observations(env_id):
    """Names, texts and values of any type reach the schema's check, the tool or its sandbox, and come back as text."""
    tool, names = ARGUMENTS[env_id]
    values = [name for shape in ("nuls", "surrogates", "deep JSON", "quotes") for name in [SHAPES[shape](1 << 12)]]
    calls = [tool_call(tool, {names[0]: value}, id=f"a{place}") for place, value in enumerate(values)]
    calls += [tool_call(tool, {names[0]: value}, id=f"b{place}") for place, value in enumerate(([], {}, None, 1, [[]]))]
    calls += [tool_call(name, {}, id=f"c{place}") for place, name in enumerate(("", "\ud800", "x" * 100_000, "a b"))]
    calls += [tool_call(tool, {"__class__": 1, "\ud800": {}, names[0]: "1"}, id="d")]
    async with made(env_id) as env:
        await env.reset(seed=0)
        result = await env.step(assistant("", calls))
        assert not result.done
        assert len(result.obs) == len(calls)
        assert all(isinstance(message["content"], str) for message in result.obs)
        assert not [record for record in result.info["tool_calls"] if record.infra_failure]
        assert all(len(message["content"]) < 100_000 for message in result.obs)
