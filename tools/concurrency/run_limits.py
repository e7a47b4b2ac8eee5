"""Limiters by context, of the run that some code belongs to, and by name, for a process or a cluster."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Literal

from toolgym.tools.concurrency.deadline import queue_clock
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter, RateLimiter, global_limiter
from toolgym.tools.concurrency.set_contextvar import set_contextvar

LimitScope = Literal["process", "cluster"]
"""`process`: this one. `cluster`: all processes of the job on its Ray cluster, see `RayRateLimiter`."""

UNLIMITED = LocalRateLimiter(sys.maxsize)


class RunLimit:
    """A limiter that a run sets for all code that it calls, in whatever task, thread or event loop."""

    def __init__(self, name: str) -> None:
        self._limiter: ContextVar[RateLimiter] = ContextVar(name, default=UNLIMITED)

    @property
    def limiter(self) -> RateLimiter:
        return self._limiter.get()

    def set(self, limiter: RateLimiter) -> AbstractContextManager[None]:
        return set_contextvar(self._limiter, limiter)

    def lift(self) -> None:
        """Let the limit hold no more for what the running task calls from here on."""
        self._limiter.set(UNLIMITED)


TOOL_CALLS = RunLimit("toolgym_tool_calls")
GENERATIONS = RunLimit("toolgym_generations")


def named_limiter(name: str, limit: int, scope: LimitScope) -> RateLimiter:
    """The limiter of that name that all callers in the scope share."""
    if scope == "process":
        return global_limiter(name, limit)
    from toolgym.tools.concurrency.cluster.rate_limit import RayRateLimiter

    return RayRateLimiter(name, limit)


@contextlib.asynccontextmanager
async def hold_permits(limiters: Sequence[RateLimiter]) -> AsyncIterator[Callable[[], float]]:
    """Hold a permit of each limiter, taken in this order. Gives a function that returns the seconds spent queueing."""
    async with contextlib.AsyncExitStack() as held:
        queued = held.enter_context(queue_clock())
        for limiter in limiters:
            await held.enter_async_context(limiter.permit())
        yield queued
