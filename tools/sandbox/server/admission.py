"""Who runs now, who waits, and who is told to come back."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from types import TracebackType

from toolgym.tools.errors import ConfigError

MAX_RETRY_AFTER = 60
"""Most seconds that a client is told to wait."""


class Busy(Exception):
    """There is no place, and none in the queue either, or the wait for one took too long.

    Args:
        reason: what is full.
        retry_after: seconds after which it may be worth another try.
    """

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Gate:
    """Lets a fixed number in, first come first served, and a fixed number wait.

    Args:
        places: how many are inside at once.
        max_queue: how many wait at once.
        patience: most seconds that one waits.
    """

    def __init__(self, places: int, max_queue: int, patience: float) -> None:
        if places < 1 or max_queue < 0 or not patience > 0:
            raise ConfigError(
                f"a gate needs a place and some patience, got places={places!r}, max_queue={max_queue!r}, "
                f"patience={patience!r}"
            )
        self.places = places
        self.max_queue = max_queue
        self.patience = patience
        self._inside = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._mean = 0.1

    @property
    def inside(self) -> int:
        """How many are inside."""
        return self._inside

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether one who came now would be sent away."""
        return self._inside >= self.places and len(self._queue) >= self.max_queue

    def place(self) -> Place:
        """A place, to be held with `async with`."""
        return Place(self)

    def busy(self, reason: str = "") -> Busy:
        """The refusal, with a guess of when the queue will have gone."""
        seconds = math.ceil(self._mean * (len(self._queue) + 1) / self.places)
        reason = reason or f"{self._inside} running and {len(self._queue)} waiting: no more are taken"
        return Busy(reason, min(max(1, seconds), MAX_RETRY_AFTER))

    async def enter(self) -> None:
        """Come in, or wait for a place.

        Raises:
            Busy: the queue is full, or no place came free in time.
        """
        if self._inside < self.places and not self._queue:
            self._inside += 1
            return
        if len(self._queue) >= self.max_queue:
            raise self.busy()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            async with asyncio.timeout(self.patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._next()  # the place came at the same moment; the next one gets it
            else:
                with contextlib.suppress(ValueError):  # `_next` may have dropped it already
                    self._queue.remove(turn)
            if isinstance(error, TimeoutError):
                raise self.busy(f"no place came free within {self.patience:g} s") from None
            raise

    def leave(self, seconds: float) -> None:
        """Give the place back after so many seconds inside."""
        self._mean += 0.1 * (seconds - self._mean)
        self._next()

    def _next(self) -> None:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():  # one that was cancelled a moment ago is done
                turn.set_result(None)  # the place passes from hand to hand
                return
        self._inside -= 1


class Place:
    """A place inside a `Gate` while its `async with` lasts. `waited` is how many seconds it took to get."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._since = 0.0
        self.waited = 0.0

    async def __aenter__(self) -> Place:
        time = asyncio.get_running_loop().time
        before = time()
        await self._gate.enter()
        self._since = time()
        self.waited = self._since - before
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave(asyncio.get_running_loop().time() - self._since)
