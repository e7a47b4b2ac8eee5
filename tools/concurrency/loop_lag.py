"""`LoopLag`: how late an event loop calls what is due."""

from __future__ import annotations

import collections
import math
from typing import NamedTuple

KEPT = 4096
"""The newest lags that are kept: at one in 50 ms, those of the last three minutes and a half."""

_MOST_MISSED = 200


class Lag(NamedTuple):
    """Seconds by which timers were called late.

    Attributes:
        p50: half of them were less late.
        p99: 99 of 100 were less late.
        most: the latest one since the beginning.
    """

    p50: float
    p99: float
    most: float


class LoopLag:
    """The lags of a timer that is due once every `interval` seconds.

    A timer that is late by many intervals stands for those that would have been due meanwhile, and each of them counts
    with the lag that it would have had. Else one that is late by a minute would be a single number among thousands
    (Gil Tene, "How NOT to measure latency").

    Args:
        interval: seconds.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._lags: collections.deque[float] = collections.deque(maxlen=KEPT)
        self._most = 0.0

    def add(self, seconds: float) -> None:
        """The timer was called so late."""
        self._most = max(self._most, seconds)
        missed = min(_MOST_MISSED, int(seconds / self._interval))
        self._lags.extend(seconds - number * self._interval for number in range(missed + 1))

    def read(self) -> Lag:
        """The lags so far; all 0 where there are none."""
        lags = sorted(self._lags)
        if not lags:
            return Lag(0.0, 0.0, 0.0)
        p50, p99 = (lags[min(len(lags) - 1, math.ceil(share * len(lags)) - 1)] for share in (0.5, 0.99))
        return Lag(p50, p99, self._most)
