"""A gate that bounds how much runs at once and how much waits."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator

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


class Gate:
    """Lets a fixed number of requests run, first come first served, and a fixed number wait.

    Args:
        slots: how many run at once.
        max_queue: how many wait at once.
        queue_timeout: most seconds that one waits.

    Raises:
        ConfigError: a number is out of range.
    """

    def __init__(self, slots: int, max_queue: int, queue_timeout: float) -> None:
        if slots < 1 or max_queue < 0 or not queue_timeout > 0:
            raise ConfigError(
                f"a gate needs a slot and a positive time to wait, got slots={slots!r}, max_queue={max_queue!r}, "
                f"queue_timeout={queue_timeout!r}"
            )
        self.slots = slots
        self.max_queue = max_queue
        self.queue_timeout = queue_timeout
        self._running = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._mean = 0.1

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether a further request would be refused."""
        return self._running >= self.slots and len(self._queue) >= self.max_queue

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Hold a slot while the block lasts. Gives the seconds that it took to get it.

        Raises:
            BusyError: the queue is full, or no slot came free in time.
        """
        time = asyncio.get_running_loop().time
        asked = time()
        if self._running < self.slots and not self._queue:
            self._running += 1
        else:
            await self._wait()
        started = time()
        try:
            yield started - asked
        finally:
            self._mean += 0.1 * (time() - started - self._mean)
            self._next()

    def busy(self, reason: str = "") -> BusyError:
        """Return the refusal, with an estimate of when the queue will be empty."""
        seconds = math.ceil(self._mean * (len(self._queue) + 1) / self.slots)
        reason = reason or f"{self._running} running and {len(self._queue)} waiting: no more are taken"
        return BusyError(reason, min(max(1, seconds), MAX_RETRY_AFTER))

    async def _wait(self) -> None:
        """Wait until another request gives its slot to this one."""
        if len(self._queue) >= self.max_queue:
            raise self.busy()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self.queue_timeout):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._next()  # the slot came at the same moment: the next request gets it
            else:
                with contextlib.suppress(ValueError):  # `_next` may have dropped it already
                    self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise self.busy(f"no slot came free within {self.queue_timeout:g} s") from None
            raise

    def _next(self) -> None:
        """Give a slot to the first request that waits; it is free if none waits."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():  # one that was cancelled a moment ago is done
                turn.set_result(None)  # the slot is now that request's
                return
        self._running -= 1
