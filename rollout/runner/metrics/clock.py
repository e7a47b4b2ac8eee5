"""`RunClock`: wall time and CPU time while runs go on."""

from __future__ import annotations

import time


class RunClock:
    """Wall time, and CPU time of this process, while runs go on.

    Args:
        running: whether one goes on already.
    """

    def __init__(self, *, running: bool) -> None:
        self._wall = self._cpu = 0.0
        self._began: tuple[float, float] | None = None
        if running:
            self.start()

    def start(self) -> None:
        """A run goes on."""
        self._began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """None goes on."""
        self._wall, self._cpu = self.read()
        self._began = None

    def read(self) -> tuple[float, float]:
        """Wall seconds and CPU seconds so far."""
        began = self._began
        if began is None:
            return self._wall, self._cpu
        return self._wall + time.perf_counter() - began[0], self._cpu + time.process_time() - began[1]
