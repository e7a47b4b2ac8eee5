"""`ToolLoops`: an event loop for each tool that was caught blocking the one that it shared with others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
from collections.abc import Hashable

from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.concurrency.loop_watch import LoopWatch, watch_loop

GIVEN_UP_AFTER = 30.0
"""Seconds that a tool may block its own event loop before instances that are opened later get another one."""

_log = logging.getLogger("toolgym.tools")


class _ToolLoop:
    def __init__(self, name: str) -> None:
        self.thread = EventLoopThread(name=f"toolgym-tool-{name}")
        self._watch: LoopWatch | None = None
        self.thread.submit(self._watched())

    async def _watched(self) -> None:
        with watch_loop() as self._watch:
            # Until the loop is closed. The timer keeps this task alive, which the loop knows by a weak reference only.
            await asyncio.sleep(math.inf)

    @property
    def given_up(self) -> bool:
        return self._watch is not None and self._watch.overdue() > GIVEN_UP_AFTER


class ToolLoops:
    """The tools of this process that were caught, and their event loops. Callable from every thread."""

    def __init__(self) -> None:
        self._caught: dict[Hashable, tuple[str, _ToolLoop | None]] = {}
        self._lock = threading.Lock()

    def catch(self, tool: Hashable, name: str) -> bool:
        """Returns whether that is new."""
        with self._lock:
            new = tool not in self._caught
            self._caught.setdefault(tool, (name, None))
            return new

    def loop_of(self, tool: Hashable) -> EventLoopThread | None:
        if tool not in self._caught:
            return None
        with self._lock:
            name, loop = self._caught[tool]
            if loop is not None and loop.given_up:
                _log.warning(
                    "the tool %r has blocked its own event loop for %g seconds: the instances there are given up, and "
                    "later ones get another loop",
                    name,
                    GIVEN_UP_AFTER,
                )
                loop.thread.stop()
                loop = None
            if loop is None:
                loop = _ToolLoop(name)
                self._caught[tool] = name, loop
            return loop.thread

    def close(self) -> None:
        with self._lock:
            caught, self._caught = self._caught, {}
        for _, loop in caught.values():
            if loop is not None:
                with contextlib.suppress(RuntimeError):
                    loop.thread.stop()


TOOL_LOOPS = ToolLoops()


os.register_at_fork(after_in_child=lambda: globals().update(TOOL_LOOPS=ToolLoops()))
