"""`EventLoopThread`: the bridge from synchronous code to async envs.

One daemon thread with an event loop of its own. It starts with the first call, works inside a running event loop
(as in a notebook, whose loop merely waits meanwhile), and is gone after `close`: tasks cancelled, async generators
and the loop's worker threads shut down, thread joined, loop closed.

An owner that is forgotten instead of closed is closed by the garbage collector, or at the interpreter's exit.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from toolgym.tools.deadline import with_deadline
from toolgym.tools.errors import EpisodeError, ToolgymError

T = TypeVar("T")

GRACE = 5.0
"""Seconds that cancelled code gets to clean up, before the caller goes on without it."""

SLICE = 0.1
"""Seconds for which a thread waits before it looks again whether it was interrupted."""

_log = logging.getLogger("toolgym.envs")


class LoopTimeoutError(ToolgymError, TimeoutError):
    """A coroutine, or the closing of the event loop, did not finish in the time it was given."""


class EventLoopThread:
    """Runs coroutines for synchronous code, from any thread.

    Args:
        name: of the thread, for people who look at a list of threads.
        on_close: a coroutine function that runs on the loop last, also when this object is forgotten instead of
            closed. It must not refer to the owner of this object, or nothing would ever be forgotten.
        close_timeout: seconds that `on_close` may take.
        max_threads: worker threads for blocking functions (`asyncio.to_thread`); they start as they are needed.

    Example:
        >>> import asyncio
        >>> bridge = EventLoopThread()
        >>> bridge.run(asyncio.sleep(0, "done"))
        'done'
        >>> bridge.close()
    """

    def __init__(
        self,
        *,
        name: str = "toolgym-loop",
        on_close: Callable[[], Awaitable[None]] | None = None,
        close_timeout: float = 60.0,
        max_threads: int = 64,
    ) -> None:
        self._server = _Server(name, on_close, close_timeout, max_threads)
        self._finalizer = weakref.finalize(self, self._server.stop, forgotten=True)
        self._finalizer.atexit = False  # `_close_all` does it: it waits for the threads, which a finalizer must not
        _servers.add(self._server)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and return what it gives.

        A KeyboardInterrupt here cancels the coroutine, and is raised once that is over (or after `GRACE` seconds).

        Args:
            coroutine: what to run; it sees the caller's context variables.
            timeout: seconds after which it is cancelled; None: as long as it takes.

        Raises:
            LoopTimeoutError: `timeout` passed.
            EpisodeError: after `close`, in a forked child of the process that started the loop, from the loop's own
                thread, or `close` was called meanwhile.
        """
        call = _Call(coroutine)
        try:
            self._server.submit(call)
            if call.wait(timeout):
                return call.result()
            self._server.cancel(call)
        except BaseException:  # an interrupt may come anywhere
            if not call.submitted:
                coroutine.close()  # nobody will await it
            elif not call.finished.is_set():
                self._server.cancel(call)
            raise
        raise LoopTimeoutError(f"the call did not finish within {timeout:g} seconds and was cancelled")

    def close(self) -> None:
        """Cancel what still runs, run `on_close`, and free everything. Closing twice is fine.

        Raises:
            Exception: what `on_close` raised; everything is freed all the same.
            LoopTimeoutError: something blocks the loop's thread, which therefore could not be joined.
            EpisodeError: called from the loop's own thread.
        """
        server = self._server
        if server.is_inherited():
            self._finalizer.detach()  # thread and resources are the parent's
            return
        if server.thread is threading.current_thread():
            raise EpisodeError("close was called from the env's own event loop, which would wait for itself")
        server.stop()
        server.join()
        self._finalizer.detach()
        error, server.error = server.error, None
        if error is not None:
            raise error


class _Call(Generic[T]):
    """One coroutine on its way through the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.coroutine = coroutine
        self.submitted = False
        self.finished = threading.Event()
        self.task: asyncio.Task[T] | None = None

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.coroutine)
        self.task.add_done_callback(self._done)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        else:  # an interrupt came before `start` was scheduled, and now it never will be
            self.coroutine.close()
            self.finished.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is over; False when `timeout` passed first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        # In slices: an interrupt that comes just before a lock is waited for is not seen until the wait is over.
        while not self.finished.wait(SLICE if deadline is None else min(SLICE, deadline - time.monotonic())):
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def result(self) -> T:
        assert self.task is not None
        if self.task.cancelled():
            raise EpisodeError("the call was cancelled: the env was closed before it finished")
        return self.task.result()

    def _done(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # whoever waits gets it from result(); if nobody waits any more, nobody wants it
        self.finished.set()


class _Server:
    """The thread's side: everything that must outlive a forgotten `EventLoopThread`."""

    def __init__(
        self,
        name: str,
        on_close: Callable[[], Awaitable[None]] | None,
        close_timeout: float,
        max_threads: int,
    ) -> None:
        self.name = name
        self.on_close = on_close
        self.close_timeout = close_timeout
        self.max_threads = max_threads
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # Re-entrant: a garbage collection inside it may find the owner forgotten, and call `stop`.
        self._lock = threading.RLock()
        self._closing = False
        self._forgotten = False
        self._stop_seen = False
        self._pid = os.getpid()

    def is_inherited(self) -> bool:
        """Whether the thread was started by a process that this one was forked from."""
        return self.thread is not None and self._pid != os.getpid()

    def submit(self, call: _Call[Any]) -> None:
        # Without the lock: a fork may have copied it locked, and the loop's thread must not wait for itself.
        if self.is_inherited():
            raise EpisodeError(
                f"this env was first used in process {self._pid}, and this is a forked child, {os.getpid()}: threads "
                "do not survive a fork; make the env in the process that uses it"
            )
        if self.thread is threading.current_thread():
            raise EpisodeError(
                "a synchronous env was called from its own event loop, which would wait for itself for ever; "
                "inside async code, await the async env instead (toolgym.make)"
            )
        with self._lock:
            if self._closing:
                raise EpisodeError("the env is closed; make another")
            loop = self._loop if self._loop is not None else self._start()
            call.submitted = True
            # Under the lock, so that no call comes after the loop was told to stop and waits for ever.
            loop.call_soon_threadsafe(call.start)

    def cancel(self, call: _Call[Any]) -> None:
        """Cancel a call and wait a little for it to clean up."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: the call is over
            self._loop.call_soon_threadsafe(call.cancel)
        if not call.finished.wait(GRACE):
            _log.warning(
                "a cancelled call did not end within %g seconds and was left behind: %r",
                GRACE,
                call.coroutine,
            )

    def stop(self, *, forgotten: bool = False) -> None:
        """Tell the thread to wind up. Returns at once; callable from a garbage collection on any thread."""
        if self.is_inherited():
            return
        with self._lock:
            if self._closing:
                return
            self._forgotten = forgotten
            self._closing = True
            if self._loop is None and self.on_close is None:
                return
            loop = self._loop if self._loop is not None else self._start()
            loop.call_soon_threadsafe(self._stop_loop)

    def join(self) -> None:
        """Wait until the thread is gone."""
        thread = self.thread
        if thread is None:
            return
        # The wind-up has deadlines of its own; this one holds when a blocking call keeps them from being looked at.
        timeout = self.close_timeout + 5 * GRACE
        thread.join(timeout)
        if thread.is_alive():
            raise LoopTimeoutError(
                f"the event loop {self.name!r} did not stop within {timeout:g} seconds: something blocks its thread"
            )

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._serve, args=(loop,), name=self.name, daemon=True)
        self._pid, self._loop, self.thread = os.getpid(), loop, thread
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left; after an interrupt, however, the thread does run
            self._loop = self.thread = None
            loop.close()
            raise
        return loop

    def _stop_loop(self) -> None:
        self._stop_seen = True
        assert self._loop is not None
        self._loop.stop()

    # ------------------------------------------------------------------ on the thread

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        # Our own instead of the loop's default one, whose shutdown has no deadline before Python 3.12.
        executor = concurrent.futures.ThreadPoolExecutor(self.max_threads, thread_name_prefix=self.name)
        loop.set_default_executor(executor)
        try:
            while not self._stop_seen:
                # asyncio lets these two out of the loop besides keeping them for whoever awaits the task; one tool
                # that calls sys.exit() must not end the loop for all.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()
            try:
                loop.run_until_complete(self._wind_up())
            except BaseException as error:  # noqa: BLE001  `close` raises it
                self._failed(error)
        finally:
            asyncio.set_event_loop(None)
            _shut_down(executor)
            loop.close()

    async def _wind_up(self) -> None:
        await _cancel_tasks()
        if self.on_close is not None:
            try:
                await with_deadline(_awaited(self.on_close()), self.close_timeout)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  `close` raises it
                self._failed(error)
            await _cancel_tasks()
        await with_deadline(asyncio.get_running_loop().shutdown_asyncgens(), GRACE)

    def _failed(self, error: BaseException) -> None:
        if self._forgotten:
            _log.warning("closing an env that nobody closed failed: %s: %s", type(error).__name__, error)
        elif self.error is None:
            self.error = error


async def _awaited(value: Awaitable[None]) -> None:
    await value


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=GRACE)
        for task in pending:
            _log.warning("a task ignores cancellation and was left behind: %r", task)


def _shut_down(executor: concurrent.futures.Executor) -> None:
    """End an executor's threads, waiting a little for those that are at work."""
    closer = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    try:
        closer.start()
    except RuntimeError:  # the interpreter is ending, and has waited for the worker threads already
        executor.shutdown(wait=False, cancel_futures=True)
        return
    closer.join(GRACE)
    if closer.is_alive():
        _log.warning("a blocking function still runs in a worker thread and was left behind")


_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what nobody closed, while threads can still run."""
    open_ones = [server for server in list(_servers) if not server.is_inherited()]
    for server in open_ones:
        with contextlib.suppress(RuntimeError):  # no thread can be started any more
            server.stop(forgotten=True)
    deadline = time.monotonic() + GRACE
    for server in open_ones:
        if server.thread is not None:
            server.thread.join(max(0.0, deadline - time.monotonic()))
