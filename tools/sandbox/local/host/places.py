"""`Places`: how many executions of a local sandbox there are at once, and how many of them compute.

An execution that computes needs a processor, and one that sleeps only memory. So there are two numbers. Where
executions wait for a processor's place, the sandbox looks which ones sleep, and lends their places to others. An
execution that wakes up takes a place at once, as it cannot be stopped; then that many fewer begin until others end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

from toolgym.tools.concurrency.deadline import queueing
from toolgym.tools.concurrency.rate_limit import Lease, LocalRateLimiter

COMPUTING_EACH = 4
"""Executions for each processor that may compute at once. One that computes gets a fourth of a processor at least, so
that its wall-clock deadline holds what it could expect; and while it waits for something, others use the processor."""

RUNNING_EACH = 32
"""Executions for each processor, most of them asleep."""

MEMORY_SHARE = 1 / 8
"""How much of its limit of memory an execution is expected to use. The limit itself is enforced."""

LOOK_EVERY = 0.02
"""Seconds between two looks for executions that sleep, while others wait."""

LOOK_SHARE = 0.05
"""Share of a processor that looking may take: after a long look the next one comes later."""


class Place:
    """What one execution holds of a processor's places. Its methods may be called from any thread.

    Args:
        places: all of them.
        lease: its own.
    """

    def __init__(self, places: LocalRateLimiter, lease: Lease) -> None:
        self._places, self._lease = places, lease
        self._lock = threading.Lock()  # a look may find out that it sleeps just when it ends
        self._ended = False

    def note(self, *, asleep: bool) -> None:
        """Lend the place to others, or take one again."""
        with self._lock:
            if self._ended:
                return
            if asleep:
                self._lease.release()
            elif not self._lease.held:
                self._lease = self._places.overdraw()

    def release(self) -> None:
        """Give the place back, where it is not lent."""
        with self._lock:
            self._ended = True
            self._lease.release()


class Places:
    """Admits executions, first come, first served, from any event loop.

    Args:
        executions: most executions at once.
        computing: how many of them may compute.
        look: tells the `Place` of each execution whether it sleeps; returns the seconds of a processor that it took.
        loop: returns the event loop to look in; None: the one that runs.
    """

    def __init__(
        self,
        executions: int,
        computing: int,
        look: Callable[[], Awaitable[float]],
        loop: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None,
    ) -> None:
        self.executions = LocalRateLimiter(executions)
        self.computing = LocalRateLimiter(computing)
        self._look, self._loop = look, loop
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def permit(self) -> AsyncIterator[Place]:
        """Hold a place for the length of the block. While the caller waits for it, deadlines stand still."""
        async with self.executions.permit():
            with queueing():
                if self.computing.full:
                    with contextlib.suppress(RuntimeError):  # that loop is closed, and the sandbox with it
                        (self._loop() or asyncio.get_running_loop()).call_soon_threadsafe(self._look_out)
                place = Place(self.computing, await self.computing.acquire())
            try:
                yield place
            finally:
                place.release()

    async def close(self) -> None:
        """Stop to look. Called in the loop that looks."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    def _look_out(self) -> None:
        if not self._closed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            seconds = await self._look()
            await asyncio.sleep(max(LOOK_EVERY, seconds / LOOK_SHARE))
            if not self.computing.waiting:
                return
