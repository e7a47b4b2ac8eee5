"""An event loop that is blocked says so, with the name of the tool; and the tool gets a loop of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time

import pytest

from tests.actors import until
from toolgym.envs import Task, ToolEnv
from toolgym.tools import BaseTool, StatefulTool, ToolResult, ToolSchema, ToolSession
from toolgym.tools.concurrency import loop_watch, tool_loops
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.concurrency.loop_watch import Lag, LoopLag, watch_loop

CALL = '<tool_call>{"name": "sums", "arguments": {}}</tool_call>'
TASK = Task(({"role": "user", "content": "go"},))


@pytest.fixture
def warned(caplog):
    """Makes an event, which is set when the log says that this tool, or other code, blocks the loop. On a busy machine
    the log may also name other code."""
    events = []

    class Heard(logging.Handler):
        def emit(self, record):
            for who, event in events:
                if f"{who} has blocked the event loop" in record.getMessage():
                    event.set()

    def made(who="the tool 'sums'"):
        events.append((who, threading.Event()))
        return events[-1][1]

    heard, logger = Heard(logging.WARNING), logging.getLogger("toolgym")
    logger.addHandler(heard)
    with caplog.at_level(logging.WARNING):
        yield made
    logger.removeHandler(heard)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(loop_watch, "_said", LogThrottle(60.0))
    monkeypatch.setattr(loop_watch, "BLOCKED_AFTER", 0.06)
    fresh = tool_loops.ToolLoops()
    monkeypatch.setattr(tool_loops, "TOOL_LOOPS", fresh)
    yield
    fresh.close()


def block(event):
    """Block the running thread, as a forgotten `await` or a long computation does, until an event is set."""
    deadline = time.monotonic() + 60
    while not event.is_set() and time.monotonic() < deadline:
        time.sleep(0.02)


class Blocking(BaseTool):
    """Blocks the thread that it is called in until an event is set."""

    default_schema = ToolSchema("sums", "", {"type": "object", "properties": {}})

    def __init__(self, end):
        super().__init__()
        self.end, self.threads = end, []

    async def execute(self, instance_id, parameters, **kwargs):
        self.threads.append(threading.current_thread())
        block(self.end)
        return ToolResult("done")


class Staying(Blocking):
    stays_on_loop = True


def lines(caplog, who=""):
    said = [record.getMessage() for record in caplog.records]
    return [line for line in said if f"{who} has blocked the event loop" in line]


async def test_the_log_names_the_tool_and_the_place(caplog, warned):
    with watch_loop():
        async with ToolEnv([Blocking(warned())], [TASK]) as env:
            for _ in range(2):
                await env.reset()
                await env.step(CALL)
    [line] = lines(caplog, "the tool 'sums'")
    assert "in block: time.sleep(0.02)" in line
    assert "event loop of its own" in line


async def test_later_episodes_call_it_on_a_loop_of_its_own_and_the_others_go_on(warned):
    tool = Blocking(warned())
    here = threading.current_thread()
    async with ToolEnv([tool], [TASK]) as first, ToolEnv([tool], [TASK]) as second:
        with watch_loop():
            await first.reset()
            await first.step(CALL)
            await second.reset()
            tool.end = threading.Event()
            step = asyncio.create_task(second.step(CALL))
            await until(lambda: len(tool.threads) == 2)
            assert not step.done()  # it blocks, and this loop goes on
            tool.end.set()
            assert (await step).obs[0]["content"] == "done"
            await first.step(CALL)  # the instance that was opened before stays where it was
    assert tool.threads[0] is here
    assert tool.threads[1] is not here
    assert tool.threads[1].name == "toolgym-tool-sums"
    assert tool.threads[2] is here


async def test_all_calls_of_one_instance_come_from_one_loop():
    seen = []

    class Session(ToolSession):
        def __init__(self):
            seen.append(asyncio.get_running_loop())

        async def execute(self, parameters, **kwargs):
            seen.append(asyncio.get_running_loop())
            return "done"

        async def reward(self, **kwargs):
            seen.append(asyncio.get_running_loop())
            return 1.0

        async def fork(self):
            seen.append(asyncio.get_running_loop())
            return Session()

        async def close(self):
            seen.append(asyncio.get_running_loop())

    class Stateful(StatefulTool):
        default_schema = Blocking.default_schema

        async def open(self, **kwargs):
            return Session()

    tool_loops.TOOL_LOOPS.catch((Stateful, "sums"), "sums")
    async with ToolEnv([Stateful()], [TASK]) as env:
        await env.reset()
        await env.step(CALL)
        async with await env.fork() as twin:
            await twin.step(CALL)
        result = await env.step("done")
    assert result.reward == 1.0
    assert len(seen) == 8
    assert set(seen) == {seen[0]}
    assert seen[0] is not asyncio.get_running_loop()


async def test_a_tool_that_must_stay_stays(caplog, warned):
    tool = Staying(warned())
    async with ToolEnv([tool], [TASK]) as env:
        with watch_loop():
            for _ in range(2):
                await env.reset()
                await env.step(CALL)
    assert len(lines(caplog, "the tool 'sums'")) == 1
    assert set(tool.threads) == {threading.current_thread()}


async def test_a_call_on_its_own_loop_keeps_its_deadline():
    tool = Blocking(threading.Event())
    tool_loops.TOOL_LOOPS.catch((Blocking, "sums"), "sums")
    async with ToolEnv([tool], [TASK], tool_timeout=0.5) as env:
        await env.reset()
        result = await env.step(CALL)
        assert tool.threads[0].is_alive()  # it still blocks
        tool.end.set()
        [record] = result.info["tool_calls"]
        assert record.status == "timeout"


async def test_a_loop_that_stays_blocked_is_given_up(monkeypatch, caplog):
    monkeypatch.setattr(tool_loops, "GIVEN_UP_AFTER", 0.1)
    blocked, free = threading.Event(), threading.Event()
    free.set()
    tool = Blocking(blocked)
    tool_loops.TOOL_LOOPS.catch((Blocking, "sums"), "sums")
    async with ToolEnv([tool], [TASK], tool_timeout=0.5) as one, ToolEnv([tool], [TASK], tool_timeout=60.0) as other:
        await one.reset()
        with caplog.at_level(logging.WARNING):
            await one.step(CALL)
            tool.end = free
            _, own = tool_loops.TOOL_LOOPS._caught[(Blocking, "sums")]
            await until(lambda: own.given_up)
            await other.reset()
        assert (await other.step(CALL)).obs[0]["content"] == "done"
        assert tool.threads[0].is_alive()
        blocked.set()
    assert tool.threads[0] is not tool.threads[1]
    await until(lambda: not tool.threads[0].is_alive())
    assert any("given up" in record.getMessage() for record in caplog.records)


async def test_what_is_no_tool_is_named_by_its_task_or_its_place(caplog, warned):
    async def forgets_to_await():
        block(warned("forgets_to_await"))

    with watch_loop():
        await asyncio.create_task(forgets_to_await())
        asyncio.get_running_loop().call_soon(block, warned("a callback"))
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
    assert len(lines(caplog, "forgets_to_await")) == 1
    assert len(lines(caplog, "a callback")) == 1


async def test_a_loop_that_waits_or_has_much_to_do_is_not_blocked(caplog):
    """Its timer is late by more than the bound, and no task is to blame."""

    took = []

    async def short():
        began = time.monotonic()
        time.sleep(0.005)
        took.append(time.monotonic() - began)

    with caplog.at_level(logging.WARNING), watch_loop(bound=0.2) as watch:
        await asyncio.sleep(0.05)
        await asyncio.gather(*(short() for _ in range(50)))
        await asyncio.sleep(0)
        assert watch.lag().most > 0.2
    assert lines(caplog) == [] or max(took) > 0.1, "a step that the machine holds up for so long may have blocked it"


async def test_watches_of_one_loop_are_one_and_end_with_the_last(monkeypatch):
    dog = loop_watch._Watchdog()
    monkeypatch.setattr(loop_watch, "_watchdog", dog)  # the other one may watch loops of other tests
    with watch_loop() as first:
        with watch_loop() as second:
            assert first is second
        with watch_loop() as third:
            assert third is first
        thread = dog._thread
        assert thread.is_alive()
        assert thread.name == "toolgym-watchdog"
    with watch_loop() as later:
        assert later is not first
    await until(lambda: not thread.is_alive())


def test_a_lag_stands_for_all_the_timers_that_it_delayed():
    lag = LoopLag(0.05)
    assert lag.read() == Lag(0.0, 0.0, 0.0)
    for _ in range(80):
        lag.add(0.001)
    lag.add(1.0)
    read = lag.read()
    assert (read.p50, read.most) == (0.001, 1.0)
    assert read.p99 == pytest.approx(0.95)  # of 101 timers, 20 would have been late by 0.05 s and more


async def test_a_watch_that_ends_while_the_thread_looks_ends_no_other():
    """A garbage collection in the watching thread may end a block that was left behind."""
    dog = loop_watch._Watchdog()
    looked, removed = threading.Event(), threading.Event()

    class Ends:
        def __init__(self, other):
            self.other = other

        @property
        def bound(self):
            dog.remove(self.other)
            removed.set()
            return 0.02

        def look(self):
            if removed.is_set():
                looked.set()

    left_behind = Ends(None)
    watch = Ends(left_behind)
    with dog._changed:
        dog.add(left_behind)
        dog.add(watch)
    await until(looked.is_set)
    dog.remove(watch)


async def test_the_loop_of_a_tool_that_was_caught_is_watched_as_long_as_it_runs():
    own = tool_loops._ToolLoop("sums")
    await until(lambda: own._watch is not None)
    watch = own._watch
    await asyncio.sleep(0.05)  # its task waits now
    gc.collect()
    assert watch in loop_watch._watchdog._watches
    await own.thread.aclose()
    assert watch not in loop_watch._watchdog._watches
