"""`DetachableSession`: a session of a server whose calls are tasks of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import NoSessionError
from toolgym.tools.serving.session_table import TableSession

T = TypeVar("T")


class DetachableSession(TableSession):
    """A session of one client, which may go away while a call runs."""

    def __init__(self, name: str, *, patience: float, max_waiting: int) -> None:
        super().__init__(name, patience=patience, max_waiting=max_waiting)
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def busy(self) -> bool:
        return bool(self._calls) or super().busy

    def start(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a call that goes on when its client disconnects. `end_calls` cancels it."""
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._ended)
        return task

    async def in_turn(self, call: Callable[[], Coroutine[Any, Any, T]], *, goes_on: bool) -> T:
        """Run a call after those before it. Unless it `goes_on`, it is cancelled when its client disconnects.

        Raises BusyError if too many calls wait or the wait took too long, NoSessionError if the session was closed.
        """

        async def run() -> T:
            async with self.turn():
                return await call()

        task = self.start(run())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `end_calls`
                raise NoSessionError(self.name) from None
            if not goes_on:
                task.cancel()
                await shielded(asyncio.wait({task}))
            raise

    async def end_calls(self) -> None:
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # its client may be gone, and asyncio would log it
