"""The limits of the run that some code belongs to. It finds them in its context; outside of a run there are none."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from contextvars import ContextVar

from toolgym.tools.concurrency.assigned import assigned
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter, RateLimiter

UNLIMITED = LocalRateLimiter(sys.maxsize)
"""A limiter that limits nothing."""


class RunLimit:
    """A limiter that a run sets for all code that it calls, in whatever task, thread or event loop.

    Args:
        name: what lists of context variables call it.
    """

    def __init__(self, name: str) -> None:
        self._limiter: ContextVar[RateLimiter] = ContextVar(name, default=UNLIMITED)

    @property
    def limiter(self) -> RateLimiter:
        """The limiter of the run that the caller belongs to; `UNLIMITED` where it belongs to none."""
        return self._limiter.get()

    def set(self, limiter: RateLimiter) -> AbstractContextManager[None]:
        """Set the limiter for the code of the block, and what it calls."""
        return assigned(self._limiter, limiter)

    def lift(self) -> None:
        """Let the limit hold no more for what the running task calls from here on."""
        self._limiter.set(UNLIMITED)


TOOL_CALLS = RunLimit("toolgym_tool_calls")
"""Each tool call holds a permit while the tool works."""

GENERATIONS = RunLimit("toolgym_generations")
"""Each request to the engine holds a permit."""
