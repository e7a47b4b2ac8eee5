"""One batch with everything that breaks in it: a tool that hangs, a release that raises, an engine that dies."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time

import pytest

from tests.rollout.answering_server import answering
from toolgym.envs import Task, ToolEnv
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams
from toolgym.rollout.engines import HttpOptions, SGLangServer
from toolgym.rollout.episode.observer import EpisodeObserver, Phase
from toolgym.tools import StatefulTool, ToolSchema, ToolSession
from toolgym.tools.concurrency import deadline, loop_watch, tool_loops
from toolgym.tools.concurrency.log_throttle import LogThrottle

CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
GRACE = 0.2
TOOL_TIMEOUTS = 0.5, 10.0
"""The first is for a machine that has time: on a busy one, tools that do not hang may need longer than that.
What the log says is said with the first: the tool that blocks has an event loop of its own from then on."""
EPISODES = 256
HANGS, RAISES, BLOCKS = 17, 40, 90
"""The tasks whose tool hangs and swallows its cancellation, raises in `release`, and blocks the event loop."""


class Session(ToolSession):
    def __init__(self, fault):
        self.fault = fault

    async def execute(self, parameters, **kwargs):
        if self.fault == "hangs":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            await asyncio.sleep(3600)  # its cancellation has come, and is swallowed
        if self.fault == "blocks":
            _block_until_the_log_says_so()
        return "seen"

    async def close(self):
        if self.fault == "raises":
            raise OSError("the disk is gone")


def _block_until_the_log_says_so():
    """The thread that watches the event loop is called late on a busy machine, but for less than this."""
    end = time.monotonic() + 10
    while "the tool 'look'" not in loop_watch._said._seen and time.monotonic() < end:
        time.sleep(0.02)


class Look(StatefulTool):
    default_schema = ToolSchema("look", "", {"type": "object", "properties": {}})

    async def open(self, fault="", **kwargs):
        return Session(fault)


def tasks(count):
    faults = {HANGS: "hangs", RAISES: "raises", BLOCKS: "blocks"}
    return [
        Task(
            ({"role": "user", "content": f"go {number}"},),
            id=str(number),
            tools_kwargs={"look": {"create_kwargs": {"fault": faults.get(number, "")}}},
        )
        for number in range(count)
    ]


def env(timeout):
    return ToolEnv([Look()], tasks(1), tool_timeout=timeout)


def config(**changes):
    limits = EpisodeLimits(engine_timeout=120, env_timeout=120, episode_timeout=300)
    return RunConfig(
        sampling=SamplingParams(max_new_tokens=32), seed=0, limits=limits, max_concurrent=EPISODES, **changes
    )


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr(deadline, "CANCEL_GRACE", GRACE)
    monkeypatch.setattr(deadline, "_overruns", LogThrottle(10.0))
    monkeypatch.setattr(loop_watch, "BLOCKED_AFTER", 0.1)
    monkeypatch.setattr(loop_watch, "_said", LogThrottle(60.0))
    fresh = tool_loops.ToolLoops()
    monkeypatch.setattr(tool_loops, "TOOL_LOOPS", fresh)
    yield
    fresh.close()


def undisturbed(done):
    """Whether no tool was too slow but the one that hangs."""
    return not any(
        trajectory.failed or trajectory.tool_calls[0].status != "ok"
        for trajectory in done
        if trajectory.task_index != HANGS
    )


def check(done, caplog, timeout):
    """255 of 256, or all; each fault concerned its own episode alone, and the log says whose it was."""
    assert len(done) == EPISODES
    assert [trajectory for trajectory in done if trajectory.failed] == []
    assert {trajectory.stop_reason for trajectory in done} == {StopReason.ANSWERED}
    statuses = {trajectory.task_index: trajectory.tool_calls[0].status for trajectory in done}
    assert {index for index, status in statuses.items() if status != "ok"} == {HANGS}
    [hung] = done[HANGS].tool_calls
    assert hung.status == "timeout"
    assert hung.seconds < timeout + GRACE + 60.0  # on a machine that does much else, too
    messages = [record.getMessage() for record in caplog.records]
    assert any("the tool 'look', which ignores cancellation" in line for line in messages)
    assert any("releasing tool 'look' failed" in line for line in messages)
    assert any("the tool 'look' has blocked the event loop" in line for line in messages)


@pytest.mark.usefixtures("_short")
async def test_each_fault_costs_its_own_episode_its_deadline_and_the_others_nothing(caplog, scripted):
    engine = scripted(lambda prompt, _: "#### 1" if CALL in prompt else CALL)
    for timeout in TOOL_TIMEOUTS:
        make = functools.partial(env, timeout)
        with caplog.at_level(logging.WARNING):
            done = await Runner(make, engine, config=config()).run(tasks(EPISODES))
        if undisturbed(done):
            break
    check(done, caplog, timeout)


class Killer(EpisodeObserver):
    """Kills a process when so many turns have been asked for."""

    def __init__(self, victim, turns):
        self.victim, self.left = victim, turns

    def waits(self, job, phase, what=""):
        self.left -= phase is Phase.ENGINE
        if not self.left:
            self.victim.kill()


@pytest.mark.long
@pytest.mark.usefixtures("_short")
async def test_and_one_of_two_engines_is_killed_in_the_middle(caplog, tokenizer):
    """Two processes over HTTP, one of which is killed when half of five hundred requests have been asked for."""
    call, answer = ([*tokenizer.encode(text), tokenizer.eos_token_id] for text in (CALL, "#### 1"))
    for timeout in TOOL_TIMEOUTS:
        make = functools.partial(env, timeout)
        with answering(2, call, answer) as servers:
            (first, victim), (second, _) = servers
            options = HttpOptions(health_interval=0.1, health_timeout=60)
            async with SGLangServer(
                first, second, vocab_size=len(tokenizer), request_timeout=120, options=options
            ) as engine:
                engine.tokenizer = tokenizer
                runner = Runner(make, engine, observers=[Killer(victim, EPISODES)], config=config())
                with caplog.at_level(logging.WARNING):
                    done = await runner.run(tasks(EPISODES))
                assert victim.wait(60) == -9
                assert str(engine.replicas[first]) != str(engine.replicas[second])
        if undisturbed(done):
            break
    check(done, caplog, timeout)
