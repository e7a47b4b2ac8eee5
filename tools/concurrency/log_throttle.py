from __future__ import annotations

import math
import threading
import time


class LogThrottle:
    """At most one line per key is due in `interval` seconds. Callable from every thread."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._seen: dict[str, tuple[float, int]] = {}
        self._lock = threading.RLock()  # re-entrant: a garbage collection inside it may log

    def due(self, key: str) -> int | None:
        """Return how many lines of that key were not due since the last one that was; None: this one is not due."""
        with self._lock:
            now, (last, skipped) = time.monotonic(), self._seen.get(key, (-math.inf, 0))
            if now - last < self.interval:
                self._seen[key] = (last, skipped + 1)
                return None
            self._seen[key] = (now, 0)
            return skipped
