"""Blocking functions beside the event loop, in threads that functions which hang cannot use up.

`asyncio.to_thread` runs the processors and four functions at once, for all of an event loop: as many that hang disable
all others, the library's own among them. So blocking tools run in the threads of `tool_threads`, where one that overran
its deadline is left behind and replaced. Each piece of the library's own work has a thread for itself: `in_thread`.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextvars
import functools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from toolgym.tools.concurrency.deadline import DeadlineError, ExitError, OverrunLog, overran, queueing
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, ToolgymError, error_text

T = TypeVar("T")
P = ParamSpec("P")

THREADS_VARIABLE = "TOOLGYM_BLOCKING_THREADS"
"""Environment variable: how many blocking tools run at once in a process."""

DEFAULT_THREADS = 256
"""The same where it is not set. Blocking tools mostly wait, and a thread that waits costs some ten KiB."""

QUEUE_TIMEOUT = 600.0
"""Seconds that a call waits for a free thread, unless a deadline around it is shorter."""


class NoThreadError(ToolgymError, RuntimeError):
    """The system gives this process no further thread. Says how many threads hang, and where."""


class DaemonThread(Executor):
    """An executor of one thread, which does not keep the interpreter from ending.

    Raises:
        NoThreadError: the system gives this process no further thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True)
        self._ended = False
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NoThreadError(str(error)) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._ended:
            raise RuntimeError("the thread takes no further functions")
        future: Future[T] = Future()
        self._calls.put((future, functools.partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended = True
        self._calls.put(None)
        if wait:
            self._thread.join()


def _serve(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        future, function = call
        if future.set_running_or_notify_cancel():
            try:
                value = function()
            except StopIteration as error:  # no asyncio future takes it: the caller would wait for ever
                future.set_exception(RuntimeError(f"the function of a thread raised {error!r}"))
            except BaseException as error:  # noqa: BLE001  the caller gets it
                future.set_exception(error)
            else:
                future.set_result(value)
        del call, future, function  # what they hold must not live until the next call
        value = None


class BlockingPool:
    """Runs blocking functions for all event loops of a process, a bounded number at once, first come, first served.

    A thread cannot be stopped. When its caller waits no longer, as at a deadline, it is left behind: it runs on unseen,
    takes no place, and ends with its function. Other threads stay for later calls, as functions may keep connections
    in `threading.local`. All are daemons.

    Args:
        max_threads: functions at once, not counting those that were left behind.
        queue_timeout: seconds that a call waits for a free thread, unless a deadline around it is shorter.

    Raises:
        ConfigError: `max_threads` is not a whole number of at least 1.
    """

    def __init__(self, max_threads: int, *, queue_timeout: float = QUEUE_TIMEOUT) -> None:
        if not isinstance(max_threads, int) or max_threads < 1:
            raise ConfigError(f"max_threads must be a whole number of at least 1, got {max_threads!r}")
        self.max_threads = max_threads
        self.queue_timeout = queue_timeout
        self._places = LocalRateLimiter(max_threads)
        self._idle: list[DaemonThread] = []
        self._closed = False
        self._left: dict[Future[Any], str] = {}
        self._logs: dict[str, OverrunLog] = {}
        self._lock = threading.RLock()  # re-entrant: a garbage collection inside it may end a forgotten call

    @property
    def left_behind(self) -> dict[str, int]:
        """How many threads were left behind and still run, by the name that their calls gave."""
        with self._lock:
            return dict(collections.Counter(self._left.values()))

    async def run(self, function: Callable[[], T], *, name: str) -> T:
        """Run a function in a thread, with the caller's context variables, and return what it returns.

        While it waits for a thread, deadlines of `with_deadline` stand still.

        Args:
            function: takes no arguments; see `functools.partial`.
            name: what `left_behind` and the log call it.

        Raises:
            DeadlineError: no thread came free within `queue_timeout` seconds.
            NoThreadError: the system gives this process no further thread.
            Exception: what the function raises; see `contained`.
        """
        try:
            with queueing():
                async with asyncio.timeout(self.queue_timeout):
                    place = await self._places.acquire()
        except TimeoutError:
            raise DeadlineError(self.queue_timeout, stuck=False, queued=True) from None
        try:
            thread = self._thread()
            future: Future[T] = thread.submit(contextvars.copy_context().run, contained, function, (), {})
            future.add_done_callback(functools.partial(self._on_done, thread))  # before the caller hears of it
            try:
                return await asyncio.wrap_future(future)
            finally:
                self._leave_behind(future, name)
        finally:
            place.release()

    def close(self) -> None:
        """End the threads that are idle, and each of the others with its function."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().shutdown(wait=False)

    def _thread(self) -> DaemonThread:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return DaemonThread("toolgym-blocking")
        except NoThreadError as error:
            hung = ", ".join(f"{count} in {name!r}" for name, count in self.left_behind.items())
            raise NoThreadError(f"{error}; threads that overran a deadline and still run: {hung or 'none'}") from error

    def _leave_behind(self, future: Future[Any], name: str) -> None:
        """Give up the thread where it still runs the function."""
        with self._lock:
            if future.done():
                return
            self._left[future] = name
            count = sum(one == name for one in self._left.values())
            log = self._logs.setdefault(name, OverrunLog())
        if overran():
            log.add(f"the thread of the blocking tool {name!r}; {count} of its threads run on")

    def _on_done(self, thread: DaemonThread, future: Future[Any]) -> None:
        with self._lock:
            if self._left.pop(future, None) is None and not self._closed:
                self._idle.append(thread)
            else:
                thread.shutdown(wait=False)


_tool_threads: BlockingPool | None = None
_tool_threads_lock = threading.Lock()


def tool_threads() -> BlockingPool:
    """Return the pool of all blocking tools of this process.

    Raises:
        ConfigError: the environment variable `TOOLGYM_BLOCKING_THREADS` is not a whole number of at least 1.
    """
    global _tool_threads
    with _tool_threads_lock:
        if _tool_threads is None:
            text = os.environ.get(THREADS_VARIABLE, str(DEFAULT_THREADS))
            if not text.isdecimal() or not int(text):
                raise ConfigError(f"{THREADS_VARIABLE} must be a whole number of at least 1, got {text!r}")
            _tool_threads = BlockingPool(int(text))
        return _tool_threads


def _forget_threads() -> None:
    """In a forked child, which has none of its parent's threads."""
    global _tool_threads, _tool_threads_lock
    _tool_threads, _tool_threads_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_threads)


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread for itself, with the caller's context variables, and return what it returns.

    Raises:
        NoThreadError: the system gives this process no further thread.
        Exception: what the function raises; see `contained`.
    """
    thread = DaemonThread("toolgym-work")
    future: Future[T] = thread.submit(contextvars.copy_context().run, contained, function, args, kwargs)
    thread.shutdown(wait=False)
    return await asyncio.wrap_future(future)


def contained(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function. What it raises can be raised to the waiting caller, without ending or cancelling it.

    Raises:
        ExitError: the function called `sys.exit`, or raised something else that is meant to end a program.
        RuntimeError: the function raised `StopIteration`, which no coroutine can.
    """
    try:
        return function(*args, **kwargs)
    except (StopIteration, concurrent.futures.CancelledError) as error:
        raise RuntimeError(f"{function_name(function)} raised {error_text(error)}") from error
    except Exception:
        raise
    except BaseException as error:
        raise ExitError(f"{function_name(function)} raised {error_text(error)}") from error


def function_name(function: Callable[..., Any]) -> str:
    """What to call a function where a model reads it: `repr` has an address, which is another one each time."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
