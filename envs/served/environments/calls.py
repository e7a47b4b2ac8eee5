"""The calls of one session that outlive the connection that they came over."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any

KEPT = 8
"""Calls of one session whose results can be asked for again."""


class Calls:
    """The calls of one session: each runs to its end, whether its client is connected or not.

    The caller closes it.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, asyncio.Task[Any]] = OrderedDict()

    def start(self, call: Coroutine[Any, Any, Any]) -> str:
        """Start a call and return its id."""
        while len(self._tasks) >= KEPT and next(iter(self._tasks.values())).done():
            self._tasks.popitem(last=False)
        name = uuid.uuid4().hex
        task = self._tasks[name] = asyncio.create_task(call)
        task.add_done_callback(_read)
        return name

    def find(self, name: str) -> asyncio.Task[Any] | None:
        """Return a call; None: there is none of that id (any more)."""
        return self._tasks.get(name)

    async def close(self) -> None:
        """Cancel what runs, and wait for it."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()


def _read(task: asyncio.Task[Any]) -> None:
    """Read a task's exception: where its client is gone, asyncio would log it."""
    if not task.cancelled():
        task.exception()
