"""`EventLoopThread`: an event loop in a thread of its own, for synchronous callers and for other event loops."""

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

from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.concurrency.eager_task import awaited
from toolgym.tools.errors import EpisodeError, ToolgymError

T = TypeVar("T")

GRACE = 5.0
"""Seconds that cancelled code gets to clean up, before the caller goes on without it."""

SLICE = 0.1

_log = logging.getLogger("toolgym.tools")


class LoopTimeoutError(ToolgymError, TimeoutError):
    pass


class EventLoopThread:
    """Runs coroutines for callers on any thread, synchronous or on an event loop of their own.

    Its daemon thread starts with the first call and is gone after `close`, with the tasks, async generators and worker
    threads (at most `max_threads`) of its loop. An owner that is forgotten instead of closed is closed by the garbage
    collector, or at the interpreter's exit.

    `on_close` runs on the loop last, for at most `close_timeout` seconds; it must not refer to the owner of this
    object, or nothing would ever be forgotten. With `cancel_first`, coroutines that still run are cancelled before it,
    else after it.

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
        cancel_first: bool = True,
        max_threads: int = 64,
    ) -> None:
        self._server = _Server(name, on_close, close_timeout, cancel_first, max_threads)
        self._finalizer = weakref.finalize(self, self._server.stop, forgotten=True)
        self._finalizer.atexit = False  # `_close_all` does it: it waits for the threads, which a finalizer must not
        _servers.add(self._server)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop, with the caller's context variables, and return its result.

        It works inside of a running event loop too (as in a notebook), which waits. A KeyboardInterrupt here cancels
        the coroutine, and is raised once that is over (or after `GRACE` seconds). Raises `LoopTimeoutError` if
        `timeout` passed, and `EpisodeError` if the loop is closed, this process's parent's, or that of the calling
        thread.
        """
        call = _Call(coroutine)
        try:
            self._server.submit(call)
            if call.wait(timeout):
                return call.result()
            self._server.cancel(call)
        except BaseException:  # an interrupt may come anywhere
            if not call.submitted:
                coroutine.close()  # it will not be awaited
            elif not call.finished.is_set():
                self._server.cancel(call)
            raise
        raise LoopTimeoutError(f"the call did not finish within {timeout:g} seconds and was cancelled")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin to run a coroutine on the loop. Cancelling the future cancels the coroutine."""
        try:
            return self._server.schedule(lambda loop: asyncio.run_coroutine_threadsafe(coroutine, loop))
        except BaseException:
            coroutine.close()  # it will not be awaited
            raise

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result = asyncio.wrap_future(self.submit(coroutine))
        try:
            await asyncio.wait({result})
        except asyncio.CancelledError:
            result.cancel()
            raise
        if result.cancelled():
            raise EpisodeError("the call was cancelled: the event loop was closed before it finished")
        return result.result()

    def stop(self) -> None:
        """Begin to do as `close`, for callers that cannot wait, as one on the loop itself. What `on_close` raises goes
        to the log."""
        self._server.stop(forgotten=True)

    async def aclose(self) -> None:
        """As `close`, for a caller on another loop. Once begun, it happens even if cancelled."""
        server = self._server
        if not server.is_inherited():
            server.stop()
            try:
                async with asyncio.timeout(server.patience):
                    while server.thread is not None and server.thread.is_alive():  # noqa: ASYNC110  it sets no event
                        await asyncio.sleep(0.002)
            except TimeoutError:
                raise server.stuck() from None
        self._finish()

    def close(self) -> None:
        """Cancel what still runs, run `on_close`, whose error is raised, and free everything. Closing twice is fine.
        Raises `LoopTimeoutError` if something blocks the loop's thread."""
        server = self._server
        if not server.is_inherited():  # otherwise thread and resources are the parent's
            if server.thread is threading.current_thread():
                raise EpisodeError("close was called from the env's own event loop, which would wait for itself")
            server.stop()
            server.join()
        self._finish()

    def _finish(self) -> None:
        self._finalizer.detach()
        error, self._server.error = self._server.error, None
        if error is not None:
            raise error


class _Call(Generic[T]):
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
            task.exception()  # retrieved, so that asyncio does not log it; `result()` raises it for a waiter
        self.finished.set()


class _Server:
    """The thread's side: everything that must outlive a forgotten `EventLoopThread`."""

    def __init__(
        self,
        name: str,
        on_close: Callable[[], Awaitable[None]] | None,
        close_timeout: float,
        cancel_first: bool,
        max_threads: int,
    ) -> None:
        self.name = name
        self.on_close = on_close
        self.close_timeout = close_timeout
        self.cancel_first = cancel_first
        # Closing has deadlines of its own; this one holds when a blocking call keeps them from being looked at.
        self.patience = close_timeout + 5 * GRACE
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
        if self.thread is threading.current_thread() and not self.is_inherited():
            raise EpisodeError(
                "a synchronous env was called from its own event loop, which would wait for itself forever; "
                "inside async code, await the async env instead (toolgym.make)"
            )

        def begin(loop: asyncio.AbstractEventLoop) -> None:
            call.submitted = True
            loop.call_soon_threadsafe(call.start)

        self.schedule(begin)

    def schedule(self, begin: Callable[[asyncio.AbstractEventLoop], T]) -> T:
        # Without the lock: a fork may have copied it locked.
        if self.is_inherited():
            raise EpisodeError(
                f"this event loop was first used in process {self._pid}, and this is a forked child, {os.getpid()}: "
                "threads do not survive a fork; make the env or the sandbox in the process that uses it"
            )
        with self._lock:
            if self._closing:
                raise EpisodeError("the env or sandbox is closed; make another")
            # Under the lock, so that no call is scheduled after the loop's stop, where it would wait forever.
            return begin(self._loop if self._loop is not None else self._start())

    def cancel(self, call: _Call[Any]) -> None:
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
        """Begin to end the thread. Returns at once; callable from a garbage collection on any thread."""
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
        thread = self.thread
        if thread is None:
            return
        thread.join(self.patience)
        if thread.is_alive():
            raise self.stuck()

    def stuck(self) -> LoopTimeoutError:
        return LoopTimeoutError(
            f"the event loop {self.name!r} did not stop within {self.patience:g} seconds: something blocks its thread"
        )

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        # Our own instead of the loop's default one, whose shutdown has no deadline before Python 3.12. Made here: the
        # first one of a process imports its module, which fails on a thread once the main one has ended.
        executor = concurrent.futures.ThreadPoolExecutor(self.max_threads, thread_name_prefix=self.name)
        thread = threading.Thread(target=self._serve, args=(loop, executor), name=self.name, daemon=True)
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

    def _serve(self, loop: asyncio.AbstractEventLoop, executor: concurrent.futures.ThreadPoolExecutor) -> None:
        asyncio.set_event_loop(loop)
        loop.set_default_executor(executor)
        try:
            while not self._stop_seen:
                # asyncio raises these two from the loop besides storing them in the task; one tool that calls
                # sys.exit() must not end the loop for all.
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
        if self.cancel_first:
            await _cancel_tasks()
        if self.on_close is not None:
            try:
                await with_deadline(awaited(self.on_close()), self.close_timeout)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  `close` raises it
                self._failed(error)
        await _cancel_tasks()
        await with_deadline(asyncio.get_running_loop().shutdown_asyncgens(), GRACE)

    def _failed(self, error: BaseException) -> None:
        if self._forgotten:
            _log.warning("closing what was not closed by its owner failed: %s: %s", type(error).__name__, error)
        elif self.error is None:
            self.error = error


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=GRACE)
        for task in pending:
            _log.warning("a task ignores cancellation and was left behind: %r", task)


def _shut_down(executor: concurrent.futures.Executor) -> None:
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
    """Close what its owner did not, while threads can still run."""
    open_ones = [server for server in list(_servers) if not server.is_inherited()]
    for server in open_ones:
        with contextlib.suppress(RuntimeError):  # no thread can be started any more
            server.stop(forgotten=True)
    deadline = time.monotonic() + GRACE
    for server in open_ones:
        if server.thread is not None:
            server.thread.join(max(0.0, deadline - time.monotonic()))
