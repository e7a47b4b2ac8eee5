"""A gate that bounds how much runs at once and how much waits."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Protocol

from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, ToolgymError

MAX_RETRY_AFTER = 60
"""Most seconds that a client is asked to wait."""


class BusyError(ToolgymError):
    """There is no slot, and no room in the queue either, or the wait for a slot took too long. Answered with 429.

    Args:
        reason: what is full.
        retry_after: seconds after which it may be worth another try.
    """

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class SlotHolder(Protocol):
    """A further limit that a request needs a slot of, such as the processors'. It serves in order."""

    @property
    def full(self) -> bool:
        """Whether a further request would wait."""

    def hold(self) -> contextlib.AbstractAsyncContextManager[object]:
        """Hold a slot for the length of the block."""


class Gate:
    """Lets a fixed number of requests run, first come first served, and a fixed number wait.

    Args:
        slots: requests that run at once.
        max_queue: requests that wait at once.
        queue_timeout: most seconds that one waits.
        beside: a further limit; None: there is none.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(self, slots: int, max_queue: int, queue_timeout: float, beside: SlotHolder | None = None) -> None:
        if slots < 1 or max_queue < 0 or not queue_timeout > 0:
            raise ConfigError(
                f"a gate needs a slot and a positive time to wait, got slots={slots!r}, max_queue={max_queue!r}, "
                f"queue_timeout={queue_timeout!r}"
            )
        self.max_queue = max_queue
        self.queue_timeout = queue_timeout
        self._slots = LocalRateLimiter(slots)
        self._beside = beside
        self._running = self._waiting = 0
        self._mean = 0.1

    @property
    def running(self) -> int:
        """Number of requests that run."""
        return self._running

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a slot."""
        return self._waiting

    @property
    def full(self) -> bool:
        """Whether a further request would be refused."""
        return self._must_wait and self._waiting >= self.max_queue

    @property
    def _must_wait(self) -> bool:
        return self._slots.full or (self._beside is not None and self._beside.full)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Hold a slot while the block lasts. Gives the seconds that it took to get it.

        Raises:
            BusyError: the queue is full, or no slot came free in time.
        """
        time = asyncio.get_running_loop().time
        asked = time()
        if self.full:
            raise self.busy()
        async with contextlib.AsyncExitStack() as held:
            self._waiting += 1
            try:
                async with asyncio.timeout(self.queue_timeout if self._must_wait else None):
                    await held.enter_async_context(self._slots.permit())
                    if self._beside is not None:
                        await held.enter_async_context(self._beside.hold())
            except TimeoutError:
                raise self.busy(f"no slot came free within {self.queue_timeout:g} s") from None
            finally:
                self._waiting -= 1
            self._running += 1
            started = time()
            try:
                yield started - asked
            finally:
                self._running -= 1
                self._mean += 0.1 * (time() - started - self._mean)

    def busy(self, reason: str = "") -> BusyError:
        """Return the refusal, with an estimate of when the queue will be empty."""
        seconds = math.ceil(self._mean * (self._waiting + 1) / max(1, self._running))
        reason = reason or f"{self._running} running and {self._waiting} waiting: no more are taken"
        return BusyError(reason, min(max(1, seconds), MAX_RETRY_AFTER))
