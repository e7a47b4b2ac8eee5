"""Running functions beside the event loop, a bounded number at once, strictly first come, first served.

For tools whose work is a blocking function: a client library without async calls, a computation. The names and options
are those of verl's sandbox tool (`init_execution_pool`, `PoolMode`), with what was missing there: both modes work, the
rate limit can be switched off, an exception reaches the caller, and a worker that dies is replaced.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import enum
import multiprocessing
import pickle
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast, get_args

import cloudpickle

from toolgym.tools.concurrency.blocking import DaemonThread, contained, function_name, in_thread
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.concurrency.limit_scope import LimitScope, named_limiter
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter, RateLimiter
from toolgym.tools.errors import ConfigError, SandboxError

T = TypeVar("T")

POOL_LIMIT_NAME = "rate-limiter"
"""Name under which all pools of a process share their rate limit."""

START_TIMEOUT = 120.0
"""Seconds for a worker process to start: it imports the main module, which may be a whole trainer."""


class PoolMode(enum.Enum):
    """Where functions run."""

    ThreadMode = 1
    """In threads of this process. For functions that wait: HTTP clients, files."""
    ProcessMode = 2
    """In processes. For functions that compute, or that may crash."""


class ExecutionPool:
    """Runs functions in threads or processes. Made by `init_execution_pool`; `close` it when done.

    Each worker is an executor of one thread or process, so that one that is killed or never ends takes no other
    function with it.
    """

    def __init__(self, num_workers: int, limiter: RateLimiter | None, mode: PoolMode) -> None:
        self.num_workers, self.mode = num_workers, mode
        self._limiter = limiter
        self._places = LocalRateLimiter(num_workers)
        self._idle: list[Executor] = []
        self._workers: set[Executor] = set()
        self._closed = False

    async def execute(self, function: Callable[..., T], *args: Any, timeout: float | None = None, **kwargs: Any) -> T:
        """Run a function and return what it returns, or raise what it raises.

        Args:
            function: in process mode it may be any function that cloudpickle can carry, lambdas included.
            args: its positional arguments.
            timeout: seconds for the function itself, queueing not counted. A thread that overruns it cannot be stopped:
                it runs on unseen, and another takes its place. A process is killed and replaced. The same happens when
                the caller is cancelled.
            kwargs: its keyword arguments.

        Raises:
            TimeoutError: it did not finish in time.
            SandboxError: the worker process died, or cannot be started; or the pool is closed.
            ConfigError: the function cannot be carried to another process, or what it returns cannot be carried back.
            ExitError: the function called `sys.exit`, or raised something else that is meant to end a program.
            RuntimeError: the function raised `StopIteration`, which no coroutine can.
        """
        call = partial(contained, function, args, kwargs)
        if self.mode is PoolMode.ProcessMode:
            call = partial(_call, _dumps(function, args, kwargs))
        async with self._places.permit(), self._permit():
            worker, future = await self._begin(call)
            clock = asyncio.timeout(timeout)
            try:
                async with clock:
                    found = await asyncio.wrap_future(future)
            except BrokenExecutor as error:
                self._discard(worker)
                raise SandboxError(
                    f"a worker process died while running {function_name(function)}; it is replaced"
                ) from error
            except BaseException as error:
                if clock.expired() or isinstance(error, asyncio.CancelledError):
                    self._discard(worker)
                else:  # what the function raised
                    self._idle.append(worker)
                raise
            self._idle.append(worker)
        return cast(T, cloudpickle.loads(found) if self.mode is PoolMode.ProcessMode else found)

    async def close(self) -> None:
        """Wait for what runs and end the workers. Closing twice is fine."""
        self._closed = True
        self._limiter = None  # the next pool may set another limit
        self._idle.clear()
        workers, self._workers = self._workers, set()
        await shielded(in_thread(_shut_down, workers))

    @contextlib.asynccontextmanager
    async def _permit(self) -> AsyncIterator[None]:
        if self._limiter is None:
            yield
        else:
            async with self._limiter.permit():
                yield

    async def _begin(self, call: Callable[[], Any]) -> tuple[Executor, concurrent.futures.Future[Any]]:
        """Hand a call to a worker that is idle, or to a new one. One that died while it was idle is passed over."""
        while True:
            if self._closed:
                raise SandboxError("the pool is closed; make another with init_execution_pool")
            worker = self._idle.pop() if self._idle else await self._start()
            try:
                return worker, worker.submit(call)
            except RuntimeError:  # broken, or shut down by `close` a moment ago
                self._discard(worker)

    async def _start(self) -> Executor:
        worker: Executor
        if self.mode is PoolMode.ThreadMode:
            worker = DaemonThread("toolgym-pool")
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

    def _discard(self, worker: Executor) -> None:
        """Leave a worker to its end; a process is killed."""
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
    """Make a pool.

    Args:
        num_workers: functions that this pool runs at once.
        enable_global_rate_limit: whether all pools of the process, or of the cluster, together are limited.
        rate_limit: functions that they run at once.
        mode: threads or processes.
        rate_limit_scope: `process`, or `cluster` for all pools of the job on the Ray cluster that the process is
            connected to.

    Raises:
        ConfigError: a number is not positive, or another pool of the process has another `rate_limit`.
    """
    if not isinstance(num_workers, int) or num_workers < 1:
        raise ConfigError(f"num_workers must be a whole number of at least 1, got {num_workers!r}")
    if not isinstance(mode, PoolMode):
        raise ConfigError(f"mode must be PoolMode.ThreadMode or PoolMode.ProcessMode, got {mode!r}")
    if rate_limit_scope not in get_args(LimitScope):
        raise ConfigError(f"rate_limit_scope must be 'process' or 'cluster', got {rate_limit_scope!r}")
    limiter = named_limiter(POOL_LIMIT_NAME, rate_limit, rate_limit_scope) if enable_global_rate_limit else None
    return ExecutionPool(num_workers, limiter, mode)


def _shut_down(workers: Iterable[Executor]) -> None:
    for worker in workers:
        worker.shutdown()


def _dumps(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        data: bytes = cloudpickle.dumps((function, args, kwargs))
    except Exception as error:
        raise ConfigError(
            f"{function_name(function)} and its arguments cannot be sent to another process: {error}"
        ) from error
    return data


def _call(data: bytes) -> bytes:
    """Carry out what `_dumps` made, in another process. Nothing that cannot travel back breaks the worker."""
    function, args, kwargs = cloudpickle.loads(data)
    try:
        value = contained(function, args, kwargs)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001  its class may raise anything when it is copied
            raise RuntimeError(f"{function_name(function)} raised {type(error).__name__}: {error}") from error
        raise
    try:
        found: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise ConfigError(
            f"what {function_name(function)} returned cannot be sent to another process: {error}"
        ) from error
    return found
