from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from toolgym.tools.concurrency import event_loop_thread
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread, LoopTimeoutError
from toolgym.tools.errors import EpisodeError


@pytest.fixture
def interrupts():
    """Python's own handler, which a background job of a shell is started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def bridge():
    made = EventLoopThread(name="bridge-under-test")
    yield made
    made.close()


def threads(name: str = "bridge-under-test") -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


async def answer(value=42):
    await asyncio.sleep(0)
    return value


def test_it_starts_with_the_first_call_and_keeps_its_loop(bridge):
    assert threads() == []

    async def loop():
        return asyncio.get_running_loop()

    assert bridge.run(loop()) is bridge.run(loop())
    (thread,) = threads()
    assert thread.daemon


def test_exceptions_reach_the_caller(bridge):
    async def fail():
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        bridge.run(fail())
    assert bridge.run(answer()) == 42


async def test_it_works_inside_a_running_loop(bridge):
    assert bridge.run(answer()) == 42


def test_it_works_from_several_threads_at_once(bridge):
    results: list[int] = []
    workers = [threading.Thread(target=lambda n=n: results.append(bridge.run(answer(n)))) for n in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert sorted(results) == list(range(16))


def test_the_coroutine_sees_the_callers_context_variables(bridge):
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set by the caller")

    async def read():
        return variable.get()

    assert bridge.run(read()) == "set by the caller"


def test_a_timeout_cancels(bridge, monkeypatch):
    monkeypatch.setattr(event_loop_thread, "GRACE", 60.0)
    ended = threading.Event()

    async def slow():
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    started = time.monotonic()
    with pytest.raises(LoopTimeoutError, match=r"0\.1 seconds"):
        bridge.run(slow(), timeout=0.1)
    assert ended.is_set()
    assert time.monotonic() - started < 30
    assert bridge.run(answer(), timeout=60) == 42


def test_a_keyboard_interrupt_cancels_and_waits_for_the_clean_up(bridge, interrupts, monkeypatch):
    cleaned: list[int] = []

    async def slow(number):
        # At once, so that the interrupt comes in many places of the caller, at the wait and before.
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(number)

    monkeypatch.setattr(event_loop_thread, "GRACE", 60.0)
    for number in range(50):
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            bridge.run(slow(number))
        assert cleaned == list(range(number + 1))
        assert time.monotonic() - started < 30
    assert bridge.run(answer()) == 42


def test_code_that_ignores_its_cancellation_is_left_behind(bridge, monkeypatch, caplog):
    monkeypatch.setattr(event_loop_thread, "GRACE", 0.1)
    let_go = threading.Event()

    async def stubborn():
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    with pytest.raises(LoopTimeoutError), caplog.at_level(logging.WARNING, "toolgym.envs"):
        bridge.run(stubborn(), timeout=0.1)
    assert "left behind" in caplog.text
    assert bridge.run(answer()) == 42
    let_go.set()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_code_that_exits_does_not_end_the_loop(bridge, kind):
    async def leave():
        raise kind(3)

    with pytest.raises(kind):
        bridge.run(leave())
    assert bridge.run(answer()) == 42


def test_calls_from_its_own_thread_are_refused(bridge):
    async def nested():
        bridge.run(answer())

    async def closing():
        bridge.close()

    with pytest.raises(EpisodeError, match="its own event loop"):
        bridge.run(nested())
    with pytest.raises(EpisodeError, match="own event loop"):
        bridge.run(closing())


def test_close_frees_everything():
    log: list[str] = []

    async def on_close():
        await asyncio.sleep(0)
        log.append("on_close")

    bridge = EventLoopThread(name="bridge-under-test", on_close=on_close)
    kept = []

    async def generator():
        try:
            yield 1
            yield 2
        finally:
            log.append("generator")

    async def begin():
        async def forever():
            try:
                await asyncio.sleep(60)
            finally:
                log.append("task")

        kept.append(asyncio.create_task(forever()))
        kept.append(generator())
        await kept[1].asend(None)
        await asyncio.to_thread(lambda: None)
        return asyncio.get_running_loop()

    loop = bridge.run(begin())
    assert len(threads()) == 2  # the loop's, and a worker
    bridge.close()
    assert log == ["task", "on_close", "generator"]
    assert threads() == []
    assert loop.is_closed()
    bridge.close()
    with pytest.raises(EpisodeError, match="closed"):
        bridge.run(answer())


def test_closing_before_the_first_call():
    log: list[str] = []

    async def on_close():
        log.append("closed")

    EventLoopThread().close()
    bridge = EventLoopThread(name="bridge-under-test", on_close=on_close)
    bridge.close()
    assert log == ["closed"]
    assert threads() == []


def test_what_on_close_raises_is_raised_once_and_everything_is_freed():
    async def on_close():
        raise ValueError("cannot close")

    bridge = EventLoopThread(name="bridge-under-test", on_close=on_close)
    bridge.run(answer())
    with pytest.raises(ValueError, match="cannot close"):
        bridge.close()
    assert threads() == []
    bridge.close()


def test_on_close_has_a_deadline():
    async def on_close():
        await asyncio.sleep(60)

    bridge = EventLoopThread(name="bridge-under-test", on_close=on_close, close_timeout=0.1)
    with pytest.raises(TimeoutError, match=r"0\.1 seconds"):
        bridge.close()
    assert threads() == []


def test_a_call_that_is_under_way_when_another_thread_closes():
    bridge = EventLoopThread(name="bridge-under-test")
    errors: list[BaseException] = []
    begun = threading.Event()

    async def slow():
        begun.set()
        await asyncio.sleep(60)

    def call():
        try:
            bridge.run(slow())
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=call)
    worker.start()
    assert begun.wait(60)
    bridge.close()
    worker.join(60)
    assert isinstance(errors[0], EpisodeError)
    assert "closed before it finished" in str(errors[0])


def test_a_thread_that_is_blocked_cannot_be_closed_and_says_so(monkeypatch):
    monkeypatch.setattr(event_loop_thread, "GRACE", 0.05)
    begun, let_go = threading.Event(), threading.Event()
    bridge = EventLoopThread(name="bridge-under-test", close_timeout=0.1)

    async def block():
        begun.set()
        let_go.wait(60)

    bridge.submit(block())
    assert begun.wait(60)
    with pytest.raises(LoopTimeoutError):
        bridge.run(answer(), timeout=0.1)
    with pytest.raises(LoopTimeoutError, match="blocks its thread"):
        bridge.close()
    let_go.set()
    monkeypatch.setattr(bridge._server, "patience", 60.0)
    bridge.close()
    assert threads() == []


def test_a_forgotten_one_is_closed():
    log: list[str] = []

    async def on_close():
        log.append("closed")

    bridge = EventLoopThread(name="bridge-under-test", on_close=on_close)
    bridge.run(answer())
    (thread,) = threads()
    del bridge
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert log == ["closed"]


def test_many_blocking_functions_run_at_once(bridge):
    barrier = threading.Barrier(48, timeout=60)

    async def block():
        await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(48)))

    bridge.run(block())  # all of them at once, or it breaks


def python(code: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # On a machine that is busy, asyncio remarks in this mode that a step took long.
    done.stderr = re.sub(r"^Executing <.*> took [0-9.]+ seconds\n", "", done.stderr, flags=re.MULTILINE)
    return done


def test_an_open_one_is_closed_at_exit_without_a_word():
    done = python(
        """
        import asyncio
        from toolgym.tools.concurrency.event_loop_thread import EventLoopThread

        async def on_close():
            await asyncio.sleep(0.2)
            print("closed")

        bridge = EventLoopThread(on_close=on_close)
        bridge.run(asyncio.sleep(0))
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def test_one_that_starts_while_the_program_ends_is_closed_without_a_word():
    done = python(
        """
        import asyncio, threading
        from toolgym.tools.concurrency.event_loop_thread import EventLoopThread

        class Late(threading.Thread):
            def run(self):
                threading.main_thread().join()
                super().run()

        threading.Thread = Late
        bridge = EventLoopThread()
        bridge.submit(asyncio.sleep(0))
        """
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_forked_child_is_refused_and_leaves_the_parents_alone():
    done = python(
        """
        import asyncio, os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what this is about
        from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
        from toolgym.tools.errors import EpisodeError

        async def on_close():
            print("closed by", "parent" if os.getpid() == parent else "child", flush=True)

        parent = os.getpid()
        bridge, unused = EventLoopThread(on_close=on_close), EventLoopThread()
        bridge.run(asyncio.sleep(0))
        child = os.fork()
        if child == 0:
            try:
                bridge.run(asyncio.sleep(0))
            except EpisodeError as error:
                print("refused" if "forked child" in str(error) else error, flush=True)
            bridge.close()
            print(unused.run(asyncio.sleep(0, "a fresh one works")), flush=True)
            unused.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(bridge.run(asyncio.sleep(0, "still fine")), flush=True)
        bridge.close()
        """
    )
    assert done.stderr == ""
    assert done.stdout == "refused\na fresh one works\nstill fine\nclosed by parent\n"


async def test_a_caller_on_another_loop_gets_the_value_or_the_exception(bridge):
    async def fail():
        raise ValueError("on purpose")

    assert await asyncio.gather(*(bridge.call(answer(n)) for n in range(20))) == list(range(20))
    with pytest.raises(ValueError, match="on purpose"):
        await bridge.call(fail())
    assert await asyncio.wrap_future(bridge.submit(answer(3))) == 3


async def test_cancelling_a_call_cancels_what_it_runs(bridge):
    seen = threading.Event(), threading.Event()

    async def wait():
        seen[0].set()
        try:
            await asyncio.sleep(60)
        finally:
            seen[1].set()

    call = asyncio.create_task(bridge.call(wait()))
    assert await asyncio.to_thread(seen[0].wait, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(seen[1].wait, 60)


async def test_a_call_whose_loop_closes_fails_rather_than_looking_cancelled():
    bridge = EventLoopThread(name="bridge-under-test")
    call = asyncio.create_task(bridge.call(asyncio.sleep(60)))
    await asyncio.sleep(0.05)
    await bridge.aclose()
    with pytest.raises(EpisodeError, match="closed before it finished"):
        await call
    with pytest.raises(EpisodeError, match="closed"):
        await bridge.call(answer())
    assert threads() == []


async def test_closing_may_come_before_the_cancellation_of_what_runs():
    ended = asyncio.Event()

    async def on_close():
        ended.set()

    async def until_the_end():
        await ended.wait()
        return "ended by itself"

    bridge = EventLoopThread(name="bridge-under-test", on_close=on_close, cancel_first=False)
    call = asyncio.create_task(bridge.call(until_the_end()))
    await asyncio.sleep(0.05)
    await bridge.aclose()
    assert await call == "ended by itself"
    await bridge.aclose()


async def test_closing_on_another_loop_raises_what_closing_raised():
    async def on_close():
        raise ValueError("cannot close")

    bridge = EventLoopThread(name="bridge-under-test", on_close=on_close)
    await bridge.call(answer())
    with pytest.raises(ValueError, match="cannot close"):
        await bridge.aclose()
    assert threads() == []
