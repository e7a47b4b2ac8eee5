"""Running functions beside the event loop, a bounded number at once, strictly first come, first served.

For tools whose work is a blocking function: a client library without async calls, a computation. The names and options
are those of verl's sandbox tool (`init_execution_pool`, `PoolMode`), with what was missing there: both modes work, the
rate limit can be switched off, an exception reaches the caller, and a worker that dies is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import multiprocessing
from collections.abc import AsyncIterator, Callable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, TypeVar

import cloudpickle

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.rate_limit import LocalRateLimiter, RateLimiter, global_limiter

T = TypeVar("T")

POOL_LIMIT_NAME = "rate-limiter"
"""Name under which all pools of a process share their rate limit."""


class PoolMode(enum.Enum):
    """Where functions run."""

    ThreadMode = 1
    """In threads of this process. For functions that wait: HTTP clients, files."""
    ProcessMode = 2
    """In processes. For functions that compute, or that may crash."""


class ExecutionPool:
    """Runs functions in threads or processes. Made by `init_execution_pool`; `close` it when done."""

    def __init__(self, num_workers: int, limiter: RateLimiter | None, mode: PoolMode) -> None:
        self.num_workers, self.mode = num_workers, mode
        self._limiter = limiter
        self._workers = LocalRateLimiter(num_workers)
        self._executor: Executor | None = None
        self._closed = False

    async def execute(self, function: Callable[..., T], *args: Any, timeout: float | None = None, **kwargs: Any) -> T:
        """Run a function and return what it returns, or raise what it raises.

        Args:
            function: in process mode it may be any function that cloudpickle can carry, lambdas included.
            args: its positional arguments.
            timeout: seconds for the function itself, queueing not counted. A thread that overruns it cannot be stopped
                and runs on unseen; a process that does is killed with its pool, which is then replaced.
            kwargs: its keyword arguments.

        Raises:
            TimeoutError: it did not finish in time.
            SandboxError: the worker process died.
            ConfigError: the function cannot be carried to another process.
        """
        if self._closed:
            raise SandboxError("the pool is closed; make another with init_execution_pool")
        async with self._workers.permit(), self._permit():
            executor = self._open()
            loop = asyncio.get_running_loop()
            if self.mode is PoolMode.ThreadMode:
                future = loop.run_in_executor(executor, lambda: function(*args, **kwargs))
            else:
                future = loop.run_in_executor(executor, _call, _dumps(function, args, kwargs))
            try:
                async with asyncio.timeout(timeout):
                    return await future
            except TimeoutError:
                if future.cancelled() and self.mode is PoolMode.ProcessMode:
                    self._replace(executor, kill=True)
                raise
            except BrokenExecutor as error:
                self._replace(executor)
                raise SandboxError(f"a worker process died while running {function!r}; it is replaced") from error

    async def close(self) -> None:
        """Wait for what runs and end the workers. Closing twice is fine."""
        self._closed = True
        self._limiter = None  # whoever comes next may set another limit
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.shutdown, True, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def _permit(self) -> AsyncIterator[None]:
        if self._limiter is None:
            yield
        else:
            async with self._limiter.permit():
                yield

    def _open(self) -> Executor:
        if self._executor is None:
            if self.mode is PoolMode.ThreadMode:
                self._executor = ThreadPoolExecutor(self.num_workers, thread_name_prefix="toolgym-pool")
            else:
                # Spawned, not forked: this process may have threads that hold locks.
                context = multiprocessing.get_context("spawn")
                self._executor = ProcessPoolExecutor(self.num_workers, mp_context=context)
        return self._executor

    def _replace(self, broken: Executor, *, kill: bool = False) -> None:
        if self._executor is broken:
            self._executor = None
        if kill and isinstance(broken, ProcessPoolExecutor):
            for process in list(broken._processes.values()):
                process.kill()
        broken.shutdown(wait=False, cancel_futures=True)


def init_execution_pool(
    num_workers: int,
    enable_global_rate_limit: bool = True,
    rate_limit: int = 10,
    mode: PoolMode = PoolMode.ThreadMode,
) -> ExecutionPool:
    """Make a pool.

    Args:
        num_workers: functions that this pool runs at once.
        enable_global_rate_limit: whether all pools of the process together are limited.
        rate_limit: functions that they run at once.
        mode: threads or processes.

    Raises:
        ConfigError: a number is not positive, or another pool of the process has another `rate_limit`.
    """
    if not isinstance(num_workers, int) or num_workers < 1:
        raise ConfigError(f"num_workers must be a whole number of at least 1, got {num_workers!r}")
    if not isinstance(mode, PoolMode):
        raise ConfigError(f"mode must be PoolMode.ThreadMode or PoolMode.ProcessMode, got {mode!r}")
    limiter = global_limiter(POOL_LIMIT_NAME, rate_limit) if enable_global_rate_limit else None
    return ExecutionPool(num_workers, limiter, mode)


def _dumps(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        data: bytes = cloudpickle.dumps((function, args, kwargs))
    except Exception as error:
        raise ConfigError(f"{function!r} and its arguments cannot be sent to another process: {error}") from error
    return data


def _call(data: bytes) -> Any:
    function, args, kwargs = cloudpickle.loads(data)
    return function(*args, **kwargs)
