"""A gate that bounds the requests that run and those that wait."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from typing import Protocol

from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ToolgymError

MAX_RETRY_AFTER = 60  # seconds


class BusyError(ToolgymError):
    """There is no slot, and no room in the queue, or the wait took too long. Answered with 429 and `retry_after`."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class SlotHolder(Protocol):
    """A further limit that a request needs a slot of, such as the processors'. It serves in order."""

    @property
    def full(self) -> bool: ...

    def hold(self) -> contextlib.AbstractAsyncContextManager[object]: ...


class Gate:
    """Lets a fixed number of requests run, first come first served, and a fixed number wait for a time."""

    def __init__(self, slots: int, max_queue: int, queue_timeout: float, beside: SlotHolder | None = None) -> None:
        self.max_queue = max_queue
        self.queue_timeout = queue_timeout
        self._slots = LocalRateLimiter(slots)
        self._beside = beside
        self.running = self.waiting = 0
        self._mean = 0.1

    @property
    def full(self) -> bool:
        """Whether a further request would be refused."""
        return self._must_wait and self.waiting >= self.max_queue

    @property
    def _must_wait(self) -> bool:
        return self._slots.full or (self._beside is not None and self._beside.full)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Hold a slot, and give the seconds that it took to get it. Raises BusyError."""
        time = asyncio.get_running_loop().time
        asked = time()
        if self.full:
            raise self.busy()
        async with contextlib.AsyncExitStack() as held:
            self.waiting += 1
            try:
                async with asyncio.timeout(self.queue_timeout) if self._must_wait else contextlib.nullcontext():
                    await held.enter_async_context(self._slots.permit())
                    if self._beside is not None:
                        await held.enter_async_context(self._beside.hold())
            except TimeoutError:
                raise self.busy(f"no slot came free within {self.queue_timeout:g} s") from None
            finally:
                self.waiting -= 1
            self.running += 1
            started = time()
            try:
                yield started - asked
            finally:
                self.running -= 1
                self._mean += 0.1 * (time() - started - self._mean)

    def busy(self, reason: str = "") -> BusyError:
        """Make the refusal, with an estimate of the time until the queue is empty."""
        seconds = math.ceil(self._mean * (self.waiting + 1) / max(1, self.running))
        reason = reason or f"{self.running} running and {self.waiting} waiting: no more are taken"
        return BusyError(reason, min(max(1, seconds), MAX_RETRY_AFTER))
