"""`Sketch`: a bounded-memory percentile sketch; forty lines, where a package would be a further dependency."""

from __future__ import annotations

import math
from collections.abc import Iterator

ACCURACY = 0.02
"""Most that a percentile is off, as a part of itself."""

_LEAST = 1e-6
_GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
_PER_LOG = 1 / math.log(_GROWTH)
_LOWEST = math.ceil(math.log(_LEAST) * _PER_LOG)


class Sketch:
    """Counts numbers of at least 0 in buckets whose bounds grow by the same factor, so that each percentile is exact to
    `ACCURACY` of itself: DDSketch (Masson, Rim, Lee, 2019, arXiv 1908.10693). What is below 1e-6 counts as 0."""

    __slots__ = ("_buckets", "count", "most", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.most = 0.0

    def add(self, value: float) -> None:
        bucket = math.ceil(math.log(value) * _PER_LOG) if value > _LEAST else _LOWEST
        buckets = self._buckets
        buckets[bucket] = buckets.get(bucket, 0) + 1
        self.count += 1
        self.total += value
        if value > self.most:
            self.most = value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, part: float) -> float:
        """The number that this part (0 to 1) of the numbers does not exceed; 0 if there are none."""
        wanted = max(1, math.ceil(part * self.count))
        for bound, count in self.cumulated():
            if count >= wanted:
                return 0.0 if bound <= _LEAST else min(self.most, bound * 2 / (1 + _GROWTH))
        return 0.0

    def cumulated(self) -> Iterator[tuple[float, int]]:
        """Upper bounds, and how many numbers do not exceed each, upwards."""
        count = 0
        for bucket, more in sorted(self._buckets.items()):  # a copy, as another thread may read
            count += more
            yield _LEAST if bucket == _LOWEST else _GROWTH**bucket, count
