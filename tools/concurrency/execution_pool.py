"""Blocking functions beside the event loop, in threads or processes: a bounded number at once, first come first served.

The names and options of `init_execution_pool` and `PoolMode` are those of verl's sandbox tool, with what was missing
there: both modes work, the rate limit can be switched off, an exception reaches the caller, and a worker that dies is
replaced.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import enum
import inspect
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, get_args

import cloudpickle

from toolgym.tools.concurrency.blocking import DaemonThread, NoThreadError, contained, function_name, in_thread
from toolgym.tools.concurrency.deadline import DeadlineError, log_overrun, overran, queueing, shielded
from toolgym.tools.concurrency.rate_limit import Lease, LocalRateLimiter, RateLimiter
from toolgym.tools.concurrency.run_limits import UNLIMITED, LimitScope, named_limiter
from toolgym.tools.errors import ConfigError, SandboxError, require_whole_number

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

THREADS_VARIABLE = "TOOLGYM_BLOCKING_THREADS"
"""Environment variable: how many blocking tools run at once in threads of a process."""

DEFAULT_THREADS = 256
"""Blocking tools mostly wait, and a thread that waits costs some ten KiB."""

PROCESSES_VARIABLE = "TOOLGYM_BLOCKING_PROCESSES"
"""Environment variable: how many blocking tools run at once in processes of their own. Default: the processors."""

QUEUE_TIMEOUT = 600.0
"""Seconds that a tool waits for a free worker, unless a deadline around it is shorter."""

POOL_LIMIT_NAME = "rate-limiter"

START_TIMEOUT = 120.0
"""Seconds for a worker process to start: it imports the main module, which may be a whole trainer."""


class PoolMode(enum.Enum):
    ThreadMode = 1
    """For functions that wait: HTTP clients, files. A thread cannot be stopped: it runs on unseen when its caller has
    given up, and ends with its function. Threads are daemons."""
    ProcessMode = 2
    """For functions that compute, or that may crash. One whose caller has given up is killed."""


class ExecutionPool:
    """Runs functions for all event loops of a process, at most `num_workers` at once, and within a `limiter` that
    others share. A call waits at most `queue_timeout` seconds for a worker.

    Each worker is an executor of one thread or process, so that one that is killed or never ends takes no other
    function with it. When its caller gives it up, as at a deadline, its thread is left behind and replaced, its process
    is killed. Workers are used again: functions may keep connections in `threading.local`.
    """

    def __init__(
        self,
        num_workers: int,
        mode: PoolMode = PoolMode.ThreadMode,
        *,
        limiter: RateLimiter | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        require_whole_number("num_workers", num_workers, at_least=1)
        self.num_workers, self.mode, self.queue_timeout = num_workers, mode, queue_timeout
        self._limiter = limiter or UNLIMITED
        self._slots = LocalRateLimiter(num_workers)
        self._idle: list[Executor] = []
        self._workers: set[Executor] = set()
        self._left: dict[Future[Any], str] = {}
        self._closed = False
        self._lock = threading.RLock()  # re-entrant: a garbage collection inside it may end a forgotten call

    @property
    def left_behind(self) -> dict[str, int]:
        """Numbers of threads that were left behind and still run, by the name that their calls gave."""
        with self._lock:
            return dict(collections.Counter(self._left.values()))

    async def execute(self, function: Callable[..., T], *args: Any, timeout: float | None = None, **kwargs: Any) -> T:
        return await self.run(partial(function, *args, **kwargs), name=function_name(function), timeout=timeout)

    async def run(self, function: Callable[[], T], *, name: str, timeout: float | None = None) -> T:
        """Run a function and return what it returns, or raise what it raises; see also `contained`.

        While it waits for a worker, deadlines of `with_deadline` stand still. In a thread the function has the caller's
        context variables; a process takes any function that cloudpickle can carry, lambdas included.

        Raises:
            TimeoutError: it did not finish within `timeout` seconds, queueing not counted.
            DeadlineError: no worker came free within `queue_timeout`.
            SandboxError: the worker process died, or cannot be started; or the pool is closed.
            ConfigError: the function cannot be carried to another process, or what it returns cannot be carried back.
        """
        call: Callable[[], Any] = partial(contextvars.copy_context().run, contained, function, (), {})
        if self.mode is PoolMode.ProcessMode:
            call = partial(_call, _dumps(function, name), name)
        slot = await self._slot()
        try:
            async with self._limiter.permit():
                worker, future = await self._begin(call)
                try:
                    async with asyncio.timeout(timeout):
                        value = await asyncio.wrap_future(future)
                except BrokenExecutor as error:
                    raise SandboxError(f"a worker process died while running {name}; it is replaced") from error
                finally:
                    self._give_up(worker, future, name)
        finally:
            slot.release()
        return cast(T, cloudpickle.loads(value) if self.mode is PoolMode.ProcessMode else value)

    def shutdown(self) -> None:
        """End the workers that are idle, and each of the others with its function. Returns at once."""
        self._closed = True
        self._limiter = UNLIMITED  # the next pool may set another limit
        with self._lock:
            self._idle.clear()
            workers, self._workers = self._workers, set()
        _shut_down(workers, wait=False)

    async def close(self) -> None:
        workers = set(self._workers)
        self.shutdown()
        await shielded(in_thread(_shut_down, workers))

    async def _slot(self) -> Lease:
        try:
            with queueing():
                async with asyncio.timeout(self.queue_timeout):
                    return await self._slots.acquire()
        except TimeoutError:
            raise DeadlineError(self.queue_timeout or 0.0, stuck=False, queued=True) from None

    async def _begin(self, call: Callable[[], Any]) -> tuple[Executor, Future[Any]]:
        while True:
            if self._closed:
                raise SandboxError("the pool is closed; make another")
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                worker = await self._start()
            try:
                future = worker.submit(call)
            except RuntimeError:  # broken, or shut down a moment ago
                self._discard(worker)
                continue
            future.add_done_callback(partial(self._on_done, worker))  # before the caller hears of it
            return worker, future

    async def _start(self) -> Executor:
        worker: Executor
        if self.mode is PoolMode.ThreadMode:
            try:
                worker = DaemonThread("toolgym-blocking")
            except NoThreadError as error:
                hung = ", ".join(f"{count} in {name!r}" for name, count in self.left_behind.items()) or "none"
                raise NoThreadError(f"{error}; threads that overran a deadline and still run: {hung}") from error
            self._workers.add(worker)
            return worker
        # Spawned, not forked: this process may have threads that hold locks.
        worker = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        self._workers.add(worker)
        try:  # starting it is not part of the function's time
            async with asyncio.timeout(START_TIMEOUT):
                await asyncio.wrap_future(worker.submit(int))
        except (BrokenExecutor, OSError, TimeoutError) as error:
            self._discard(worker)
            raise SandboxError(f"a worker process cannot be started: {type(error).__name__}: {error}") from error
        except BaseException:
            self._discard(worker)
            raise
        return worker

    def _on_done(self, worker: Executor, future: Future[Any]) -> None:
        with self._lock:
            self._left.pop(future, None)
            if worker in self._workers:
                self._idle.append(worker)

    def _give_up(self, worker: Executor, future: Future[Any], name: str) -> None:
        with self._lock:
            if future.done():
                return
            if self.mode is PoolMode.ThreadMode:
                self._left[future] = name
            self._discard(worker)
        if self.mode is PoolMode.ThreadMode and overran():
            count = self.left_behind.get(name, 0)
            log_overrun(f"thread of {name}", f"the thread of the blocking tool {name!r}; {count} of its threads run on")

    def _discard(self, worker: Executor) -> None:
        self._workers.discard(worker)
        processes = list((worker._processes or {}).values()) if isinstance(worker, ProcessPoolExecutor) else []
        worker.shutdown(wait=False)
        for process in processes:
            process.kill()


def init_execution_pool(
    num_workers: int,
    enable_global_rate_limit: bool = True,
    rate_limit: int = 10,
    mode: PoolMode = PoolMode.ThreadMode,
    rate_limit_scope: LimitScope = "process",
) -> ExecutionPool:
    """Make a pool; `close` it when done.

    With `enable_global_rate_limit`, all pools of the process together run at most `rate_limit` functions at once; with
    the scope `cluster`, all pools of the job on the Ray cluster do. Another limit in the same scope is a `ConfigError`.
    """
    if not isinstance(mode, PoolMode):
        raise ConfigError(f"mode must be PoolMode.ThreadMode or PoolMode.ProcessMode, got {mode!r}")
    if rate_limit_scope not in get_args(LimitScope):
        raise ConfigError(f"rate_limit_scope must be 'process' or 'cluster', got {rate_limit_scope!r}")
    limiter = named_limiter(POOL_LIMIT_NAME, rate_limit, rate_limit_scope) if enable_global_rate_limit else None
    return ExecutionPool(num_workers, mode, limiter=limiter)


_tool_pools: dict[PoolMode, ExecutionPool] = {}
_tool_pools_lock = threading.Lock()


def tool_pool(mode: PoolMode = PoolMode.ThreadMode) -> ExecutionPool:
    """Return the pool of all blocking tools of this process that run in such workers."""
    variable, default = THREADS_VARIABLE, DEFAULT_THREADS
    if mode is PoolMode.ProcessMode:
        variable, default = PROCESSES_VARIABLE, os.cpu_count() or 1
    with _tool_pools_lock:
        if mode not in _tool_pools:
            text = os.environ.get(variable, str(default))
            if not text.isdecimal() or not int(text):
                raise ConfigError(f"{variable} must be a whole number of at least 1, got {text!r}")
            _tool_pools[mode] = ExecutionPool(int(text), mode, queue_timeout=QUEUE_TIMEOUT)
        return _tool_pools[mode]


def runs_inline(function: F) -> F:
    """Mark a plain function that is called on the event loop, and not in a thread. Use it as a decorator.

    It saves about 0.1 ms for each call. It is for functions that end within a millisecond and never wait, and for
    functions that only work in the main thread. While such a function runs, no other episode makes progress, and no
    deadline ends the function.

    Raises:
        ConfigError: the function cannot have attributes; define it with `def`, or give its class `runs_inline = True`.
    """
    try:
        function.runs_inline = True  # type: ignore[attr-defined]
    except AttributeError as error:
        raise ConfigError(f"runs_inline cannot mark {function!r}: {error}") from error
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object that is called like a function, is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def is_inline(function: Callable[..., Any]) -> bool:
    """Return whether a function is called on the event loop: an async function, or one that `runs_inline` marks."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "runs_inline", False) is True or is_async(function)


async def call_function(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a user, and return what it returns, awaited if it is awaitable.

    An async function, and one that `runs_inline` marks, is called on the event loop. Any other function is called in a
    thread of `tool_pool`, with the caller's context variables, so that it delays no other episode. The caller sets the
    deadline; a thread that overruns it is left behind.
    """
    if is_inline(function):
        value = function(*args)
    else:
        value = await tool_pool().run(partial(function, *args), name=function_name(function))
    return await value if inspect.isawaitable(value) else value


os.register_at_fork(after_in_child=lambda: globals().update(_tool_pools={}, _tool_pools_lock=threading.Lock()))


def _shut_down(workers: Iterable[Executor], wait: bool = True) -> None:
    for worker in workers:
        worker.shutdown(wait=wait)


def _dumps(function: Callable[[], Any], name: str) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(function)
    except Exception as error:
        raise ConfigError(f"{name} and its arguments cannot be sent to another process: {error}") from error
    return data


def _call(data: bytes, name: str) -> bytes:
    """Carry out what `_dumps` made, in another process. Nothing that cannot travel back breaks the worker."""
    function = cloudpickle.loads(data)
    try:
        value = contained(function, (), {})
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001  its class may raise anything when it is copied
            raise RuntimeError(f"{name} raised {type(error).__name__}: {error}") from error
        raise
    try:
        result: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise ConfigError(f"what {name} returned cannot be sent to another process: {error}") from error
    return result
