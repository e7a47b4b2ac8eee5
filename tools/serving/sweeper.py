"""A task that looks for idle sessions now and then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

LONGEST_PAUSE = 5.0
"""Most seconds between two looks."""


class Sweeper:
    """Calls a function every quarter of an idle time, and at least every 5 s.

    Args:
        sweep: closes what was idle for too long; it raises nothing.
        idle_timeout: seconds without a call after which something is idle.
    """

    def __init__(self, sweep: Callable[[], Awaitable[None]], idle_timeout: float) -> None:
        self._sweep = sweep
        self._pause = min(LONGEST_PAUSE, idle_timeout / 4)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, on the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, if it was started."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            await self._sweep()
