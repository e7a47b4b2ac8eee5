"""`Seldom`: what happens thousands of times is logged once in a while."""

from __future__ import annotations

import math
import time


class Seldom:
    """Says when a line of the log is due.

    Args:
        interval: at most one line about the same thing is due in so many seconds.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._seen: dict[str, tuple[float, int]] = {}

    def due(self, what: str) -> int | None:
        """Return how often it happened since the last line, this time left out; None: no line is due."""
        now, (last, more) = time.monotonic(), self._seen.get(what, (-math.inf, 0))
        if now - last < self.interval:
            self._seen[what] = (last, more + 1)
            return None
        self._seen[what] = (now, 0)
        return more
