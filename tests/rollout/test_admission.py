"""Admission: an episode holds a place of the engine's only while the engine works for it, and waiting costs no time."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace

import pytest

from tests.actors import until
from toolgym.envs import Task, ToolEnv
from toolgym.envs.types import StopReason
from toolgym.rollout import EpisodeLimits, RunConfig, Runner, SamplingParams, Trajectory
from toolgym.rollout.engines import EngineLoad
from toolgym.rollout.runner.adaptive import Adaptive
from toolgym.rollout.runner.admission import TOOL_CALLS_EACH, Admission
from toolgym.tools import BaseTool, ToolResult, ToolSchema
from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.local.host.resources import available_processors

CALL = '<tool_call>{"name": "gate", "arguments": {}}</tool_call>'
PATIENCE = (0.5, 5.0)
"""Deadlines, ten times as long as what they are for: a busy machine may hold the event loop up for the first one."""


def tasks(count):
    return [Task(({"role": "user", "content": f"go {number}"},), id=str(number)) for number in range(count)]


def config(**changes):
    return RunConfig(**{"sampling": SamplingParams(max_new_tokens=64), "seed": 0} | changes)


class Gate(BaseTool):
    """Counts its calls that run at once; each waits until `open` is set."""

    default_schema = ToolSchema("gate", "", {"type": "object", "properties": {}})

    def __init__(self):
        super().__init__()
        self.running = self.peak = self.calls = 0
        self.open = asyncio.Event()

    async def execute(self, instance_id, parameters, **kwargs):
        self.calls += 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.open.wait()
        finally:
            self.running -= 1
        return ToolResult("done")


@pytest.fixture
def counting(scripted_engine, tokenizer):
    """Make an engine that counts its requests at once, and works on each for a while."""

    class Counting(scripted_engine):
        running = peak = 0
        seconds = 0.0
        said_load = None

        async def _generate(self, request):
            self.running += 1
            self.peak = max(self.peak, self.running)
            try:
                await asyncio.sleep(self.seconds)
                return await super()._generate(request)
            finally:
                self.running -= 1

        async def load(self):
            return self.said_load

    return lambda script, **kwargs: Counting(tokenizer, script, **kwargs)


def call_then_answer(prompt, request_id):
    return "#### 1" if "done" in prompt else CALL


async def test_an_episode_in_a_tool_holds_no_place_of_the_engine(counting):
    gate, engine = Gate(), counting(call_then_answer)
    runner = Runner(lambda: ToolEnv([gate], tasks(1)), engine, config=config(max_generations=1, max_concurrent=6))
    run = asyncio.create_task(runner.run(tasks(6)))
    await until(lambda: gate.running == 6)  # all six got through the one place, and are in the tool now
    gate.open.set()
    done = await run
    assert [one.stop_reason for one in done] == [StopReason.ANSWERED] * 6
    assert engine.peak == 1


async def test_waiting_for_the_engine_counts_towards_no_deadline_and_is_recorded(counting):
    engine = counting(lambda *_: "#### 1")
    for timeout in PATIENCE:
        engine.seconds = timeout / 10
        settings = config(max_generations=1, max_concurrent=14, limits=EpisodeLimits(engine_timeout=timeout))
        done = await Runner(lambda: ToolEnv([], tasks(1)), engine, config=settings).run(tasks(14))
        if not any(one.failed for one in done):
            break
    assert not any(one.failed for one in done)
    assert done[0].turns[0].queue_seconds == 0.0
    last = max(done, key=lambda one: one.turns[0].queue_seconds)
    assert last.turns[0].queue_seconds > timeout > last.turns[0].engine_seconds
    read = Trajectory.from_json(last.to_json())
    assert read.turns == last.turns
    older = last.to_json()
    for turn in older["turns"]:
        del turn["queue_seconds"]
    assert Trajectory.from_json(older).turns == (replace(last.turns[0], queue_seconds=0.0),)


async def test_the_engine_serves_episodes_in_the_order_of_their_coming(counting):
    engine = counting(lambda *_: "#### 1")
    settings = config(max_generations=2, max_concurrent=20)
    await Runner(lambda: ToolEnv([], tasks(1)), engine, config=settings).run(tasks(20))
    order = [engine.tokenizer.decode(prompt).partition("go ")[2].split("<")[0] for prompt, _ in engine.seen.values()]
    assert order == [str(number) for number in range(20)]


async def test_tool_calls_of_all_episodes_share_one_limit_and_waiting_costs_them_no_time(counting):
    class Slow(Gate):
        seconds = 0.0

        async def execute(self, instance_id, parameters, **kwargs):
            asyncio.get_running_loop().call_later(self.seconds, self.open.set)
            self.open.clear()
            return await super().execute(instance_id, parameters, **kwargs)

    settings = config(max_tool_calls=1, max_concurrent=12)
    for timeout in PATIENCE:
        tool = Slow()
        tool.seconds = timeout / 10
        make = functools.partial(ToolEnv, [tool], tasks(1), tool_timeout=timeout)
        done = await Runner(make, counting(call_then_answer), config=settings).run(tasks(12))
        if {one.tool_calls[0].status for one in done} == {"ok"}:
            break
    assert [one.tool_calls[0].status for one in done] == ["ok"] * 12
    assert max(one.tool_calls[0].seconds for one in done) > timeout
    assert (tool.peak, tool.calls) == (1, 12)


async def test_a_tool_that_calls_tools_waits_for_no_second_place(counting):
    inner = Gate()
    inner.open.set()

    class Outer(BaseTool):
        default_schema = ToolSchema("gate", "", {"type": "object", "properties": {}})

        async def execute(self, instance_id, parameters, **kwargs):
            async with ToolEnv([inner], tasks(1)) as env:
                await env.reset()
                return (await env.step(CALL)).obs[0]["content"]

    settings = config(max_tool_calls=1, max_concurrent=4)
    async with asyncio.timeout(50):
        done = await Runner(lambda: ToolEnv([Outer()], tasks(1)), counting(call_then_answer), config=settings).run(
            tasks(4)
        )
    assert [one.tool_calls[0].text for one in done] == ["done"] * 4


async def test_what_the_config_leaves_open_the_engine_and_the_machine_say(counting):
    engine = counting(call_then_answer)
    async with Admission(config(), engine) as silent:
        assert silent.episodes.limit == Adaptive().start
        assert silent.generations.try_acquire() is not None
        assert silent.generations.limit > 10**9
        assert silent.tool_calls.limit == TOOL_CALLS_EACH * available_processors()
    engine.said_load = EngineLoad(0.1, 1, 0, max_running=24)
    async with Admission(config(), engine) as limited:
        assert limited.generations.limit == 24
    async with Admission(config(max_generations=3, max_tool_calls=5, max_concurrent=7), engine) as given:
        assert (given.episodes.limit, given.generations.limit, given.tool_calls.limit) == (7, 3, 5)
    assert not [task for task in asyncio.all_tasks() if "follows" in task.get_name()]


@pytest.mark.parametrize(
    "wrong",
    [{"max_generations": 0}, {"max_tool_calls": 1.5}, {"max_concurrent": "adaptive"}, {"max_concurrent": None}],
)
def test_a_limit_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RunConfig(**wrong)
