"""Blocking functions beside the event loop: ones that hang disable no others, and end with the interpreter."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading

import pytest

from toolgym.envs import Task, ToolEnv
from toolgym.tools import tool
from toolgym.tools.concurrency import execution_pool
from toolgym.tools.concurrency.blocking import DaemonThread, in_thread
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.concurrency.eager_task import ExitError
from toolgym.tools.concurrency.execution_pool import ExecutionPool, PoolMode, tool_pool
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.message import user

TASK = Task([user("go")])
who = contextvars.ContextVar("who", default="no one")


def call(name):
    one = {"id": "0", "type": "function", "function": {"name": name, "arguments": {}}}
    return {"role": "assistant", "content": "", "tool_calls": [one]}


@pytest.fixture
def over():
    """Ends what hangs when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def small_pool(monkeypatch):
    """The pool of blocking tools, made anew with four threads."""
    monkeypatch.setenv("TOOLGYM_BLOCKING_THREADS", "4")
    monkeypatch.setattr(execution_pool, "_tool_pools", {})
    return tool_pool()


async def test_more_hanging_tools_than_there_are_threads_disable_no_other(small_pool, over, caplog):
    @tool
    def hang() -> str:
        """Hang."""
        over.wait(60)
        return "late"

    @tool
    def add() -> str:
        """Add."""
        return "3"

    async def once(name):
        one = ToolEnv(tools=[hang, add], tasks=[TASK], tool_timeout=0.3 if name == "hang" else 30.0)
        await one.reset()
        text = (await one.step(call(name))).obs[0]["content"]
        await one.close()
        return text

    assert all("was stopped" in text for text in await asyncio.gather(*(once("hang") for _ in range(10))))
    assert small_pool.left_behind["hang"] > small_pool.num_workers
    assert await asyncio.gather(*(once("add") for _ in range(8))) == ["3"] * 8
    lines = [record.message for record in caplog.records if "left behind" in record.message]
    assert len(lines) == 1
    assert "'hang'" in lines[0]
    over.set()
    async with asyncio.timeout(60):
        while small_pool.left_behind:
            await asyncio.sleep(0.001)


async def test_as_many_run_at_once_as_there_are_threads_and_threads_are_used_again(small_pool):
    barrier = threading.Barrier(4, timeout=60)

    def meet():
        barrier.wait()
        return threading.get_ident()

    first = await asyncio.gather(*(small_pool.run(meet, name="meet") for _ in range(4)))
    again = await asyncio.gather(*(small_pool.run(meet, name="meet") for _ in range(8)))
    assert len(set(first)) == 4
    assert set(again) == set(first)


async def test_closing_ends_idle_threads_now_and_others_with_their_function(over):
    pool, before, begun = ExecutionPool(2), set(threading.enumerate()), threading.Event()

    def wait():
        begun.set()
        return over.wait(60)

    waiting = asyncio.create_task(pool.run(wait, name="wait"))
    while not begun.is_set():  # or it might get the thread that the other function has left
        await asyncio.sleep(0.001)
    await pool.run(int, name="short")
    own = set(threading.enumerate()) - before
    assert len(own) == 2
    pool.shutdown()
    over.set()
    assert await waiting
    for thread in own:
        await in_thread(thread.join, 60)
    assert not any(thread.is_alive() for thread in own)


async def test_a_call_waits_for_a_thread_no_longer_than_its_deadline(over):
    pool = ExecutionPool(1, queue_timeout=0.1)
    held = asyncio.create_task(pool.run(over.wait, name="held"))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineError, match="its turn") as caught:
        await pool.run(int, name="waiting")
    assert caught.value.queued
    with pytest.raises(DeadlineError) as caught:  # waiting is no running: the deadline for that stands still
        await with_deadline(pool.run(int, name="waiting"), 0.05, queue=0.06)
    assert caught.value.queued
    over.set()
    await held


async def test_a_caller_that_goes_away_is_no_overrun(over, caplog):
    pool, begun = ExecutionPool(1), threading.Event()

    def wait():
        begun.set()
        return over.wait(60)

    task = asyncio.create_task(pool.run(wait, name="slow"))
    while not begun.is_set():  # what has not begun does not run on
        await asyncio.sleep(0.001)
    task.cancel()
    assert await pool.run(lambda: 7, name="next") == 7
    assert pool.left_behind == {"slow": 1}
    assert not caplog.records


async def test_context_variables_follow_and_what_is_raised_comes_back():
    who.set("the caller")
    pool = ExecutionPool(1)
    assert await pool.run(who.get, name="who") == "the caller"
    assert await in_thread(who.get) == "the caller"
    for run in (lambda function: pool.run(function, name="x"), in_thread):
        with pytest.raises(ZeroDivisionError):
            await run(lambda: 1 / 0)
        with pytest.raises(ExitError, match="SystemExit"):
            await run(lambda: sys.exit(3))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await run(lambda: next(iter([])))
    assert await pool.run(lambda: 7, name="after") == 7


async def test_a_thread_whose_function_raises_stop_iteration_leaves_no_caller_waiting():
    thread = DaemonThread("test")
    try:
        with pytest.raises(RuntimeError, match="StopIteration"):
            async with asyncio.timeout(50):
                await asyncio.wrap_future(thread.submit(next, iter([])))
    finally:
        thread.shutdown()


async def test_the_librarys_own_work_needs_no_thread_of_the_event_loops(over):
    hung = [asyncio.create_task(asyncio.to_thread(over.wait, 60)) for _ in range(64)]
    assert await asyncio.wait_for(in_thread(lambda: 7), 30) == 7
    over.set()
    await asyncio.gather(*hung)


async def test_where_the_system_gives_no_thread_the_model_is_not_to_blame(small_pool, monkeypatch):
    @tool
    def add() -> str:
        """Add."""
        return "3"

    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        result = await add.tool.execute("", {})
    assert result.metrics["infra_failure"] is True
    assert "can't start new thread" in result.metrics["error"]
    assert "thread" not in result.text
    assert (await add.tool.execute("", {})).text == "3"


def test_a_number_of_threads_that_makes_no_sense_is_told_when_a_tool_is_made(monkeypatch):
    monkeypatch.setenv("TOOLGYM_BLOCKING_THREADS", "many")
    monkeypatch.setattr(execution_pool, "_tool_pools", {})
    with pytest.raises(ConfigError, match="TOOLGYM_BLOCKING_THREADS must be a whole number of at least 1, got 'many'"):

        @tool
        def add() -> str:
            """Add."""
            return "3"


def test_a_tool_that_hangs_does_not_keep_the_interpreter_from_ending():
    program = """
import asyncio, threading
from toolgym.tools import tool
from toolgym.tools.concurrency.deadline import DeadlineError, with_deadline
from toolgym.tools.concurrency.execution_pool import init_execution_pool

@tool
def hang() -> str:
    "Hang."
    threading.Event().wait()

async def main():
    pool = init_execution_pool(1)
    for call in (lambda: hang.tool.execute("", {}), lambda: pool.execute(hang.tool.function)):
        try:
            await with_deadline(call(), 0.05)
        except DeadlineError as error:
            print(error)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count("did not finish") == 2, done.stderr


async def test_a_tool_in_a_process_is_killed_at_its_deadline_and_its_crash_ends_nothing_else(monkeypatch):
    @tool(runs_in="process")
    def work(what: str) -> str:
        """Work.

        Args:
            what: it.
        """
        import os
        import time

        if what == "hang":
            time.sleep(600)
        if what == "crash":
            os._exit(3)
        return f"{what} {os.getpid()}"

    monkeypatch.setenv("TOOLGYM_BLOCKING_PROCESSES", "1")
    monkeypatch.setattr(execution_pool, "_tool_pools", {})
    try:
        first, again = [(await work.tool.execute("", {"what": "add"})).text for _ in range(2)]
        assert first == again != f"add {os.getpid()}"
        with pytest.raises(DeadlineError):
            await with_deadline(work.tool.execute("", {"what": "hang"}), 0.2)
        other = (await work.tool.execute("", {"what": "add"})).text
        assert other.startswith("add ")
        assert other != first
        with pytest.raises(SandboxError, match="died while running work"):
            await work.tool.execute("", {"what": "crash"})
        assert (await work.tool.execute("", {"what": "add"})).text.startswith("add ")
        assert work("add") == f"add {os.getpid()}"
    finally:
        await tool_pool(PoolMode.ProcessMode).close()


def test_only_a_plain_function_runs_in_a_process():
    with pytest.raises(ConfigError, match="only a plain function"):

        @tool(runs_in="process")
        async def add() -> str:
            """Add."""
            return "3"

    with pytest.raises(ConfigError, match="runs_in must be 'thread' or 'process', got 'fiber'"):

        @tool(runs_in="fiber")
        def sub() -> str:
            """Subtract."""
            return "3"
