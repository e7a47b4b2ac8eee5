"""A policy whose programs use up the time of its episode stays in its group. A slow engine or tool is not its fault."""

from __future__ import annotations

import asyncio

import pytest

from tests.actors import call, tasks
from toolgym.envs import StopReason, ToolEnv
from toolgym.rollout import RunConfig, Runner, SamplingParams
from toolgym.rollout.limits import EpisodeLimits
from toolgym.tools import CodeInterpreterTool, tool
from toolgym.tools.concurrency.deadline import queueing
from toolgym.wrappers import TimeLimit

SLEEP = call("code_interpreter", code="import time; time.sleep(60)")


def interpreter():
    return ToolEnv([CodeInterpreterTool()], tasks("q"), scorer=lambda outcome: 1.0, owns_tools=True)


def policy(turn):
    """Say the turn, until the prompt has an observation."""
    return lambda prompt, request: "done" if "<tool_response>" in prompt else turn


async def play(engine, env, tokenizer, names=("q",), **limits):
    config = RunConfig(sampling=SamplingParams(max_new_tokens=300), limits=EpisodeLimits(**limits))
    async with Runner(env, engine, config=config, tokenizer=tokenizer) as runner:
        return await runner.run(tasks(*names))


@pytest.mark.parametrize("limit", ["episode_timeout", "turn_timeout"])
async def test_a_policy_that_sleeps_until_the_deadline_stays_in_its_group(limit, scripted, tokenizer):
    [trajectory] = await play(scripted(policy(SLEEP)), interpreter, tokenizer, **{limit: 1.0})
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.PROGRAM_TIME, 0.0)
    assert (trajectory.failed, trajectory.in_group_statistics, trajectory.error) == (False, True, None)
    assert trajectory.metrics["score/broken_by_policy"] == 1.0


async def test_an_engine_that_is_slow_is_not_the_policys_fault(scripted, tokenizer):
    [trajectory] = await play(scripted(lambda *_: 60), interpreter, tokenizer, episode_timeout=0.3)
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT


@tool
async def hang() -> str:
    """Wait for a server."""
    await asyncio.sleep(60)
    return ""


class Waiting(CodeInterpreterTool):
    """A code interpreter that waits for its turn first."""

    async def execute(self, instance_id, parameters, **execute_kwargs):
        with queueing():
            await asyncio.sleep(60)


@pytest.mark.parametrize("made", [lambda: hang, lambda: Waiting()])
async def test_a_tool_that_is_slow_is_not_the_policys_fault(made, scripted, tokenizer):
    env = lambda: ToolEnv([made()], tasks("q"), owns_tools=True)  # noqa: E731
    turn = call("hang") if made() is hang else SLEEP
    [trajectory] = await play(scripted(policy(turn)), env, tokenizer, episode_timeout=0.5)
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT


async def test_seconds_of_programs_add_up_over_turns():
    async with ToolEnv([CodeInterpreterTool()], tasks("q"), owns_tools=True) as env:
        await env.reset()
        sums = []
        for seconds in (0.2, 0.1, 0.0):
            await env.step(call("code_interpreter", code=f"import time; time.sleep({seconds})"))
            sums.append(env.program_seconds)
        assert 0.2 <= sums[0] <= sums[1] - 0.1
        await env.reset()
        assert env.program_seconds == 0.0


async def test_a_time_limit_tells_programs_from_other_seconds():
    for turn, reason in ((SLEEP, StopReason.PROGRAM_TIME), (call("hang"), StopReason.EPISODE_TIMEOUT)):
        async with TimeLimit(ToolEnv([CodeInterpreterTool(), hang], tasks("q"), owns_tools=True), 1.0) as env:
            await env.reset()
            result = await env.step(turn)
        assert (result.stop_reason, result.reward) == (reason, 0.0)
