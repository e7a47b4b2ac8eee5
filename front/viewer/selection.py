"""`Selection`: the rows of an index that a query selects, kept up while the run goes on; and figures of them."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from toolgym.viewer.query import Query
from toolgym.viewer.run_index import Row, RunIndex

BINS = 8
CHUNK = 1_000
"""Rows that a query looks at before the time is looked at."""


class Bar(NamedTuple):
    """One bar of a chart: `shown` of `rows`, which the query `terms` selects."""

    label: str
    terms: str
    rows: int
    shown: int


class Selection:
    """Reads and selects in steps, for a thread of its own; other threads may read its attributes.

    Attributes:
        query: the one that the rows are selected by.
        rows: those selected so far, in the order of the query.
        finished: whether all that the files hold was read and looked at.
    """

    def __init__(self, index: RunIndex, query: Query | None = None) -> None:
        self.index = index
        self.rows: list[Row] = []
        self.finished = False
        self._wanted = self.query = query or Query()
        self._selected: list[Row] = []
        self._looked_at = 0

    def ask(self, query: Query) -> None:
        """Select by another query from the next step on."""
        self._wanted = query
        self.finished = False

    def step(self, seconds: float = 0.2) -> bool:
        """Read and select for about so many seconds each. Returns whether anything may look different now.

        Raises:
            ConfigError: see `RunIndex.read`.
        """
        before = len(self.index), len(self._selected), self.finished
        asked_anew = self._wanted is not self.query
        if asked_anew:
            self.query, self._selected, self._looked_at = self._wanted, [], 0
        more = self.index.read(seconds)
        stop_at = time.monotonic() + seconds
        while self._looked_at < len(self.index) and time.monotonic() < stop_at and self._wanted is self.query:
            among = self.index.rows[self._looked_at : self._looked_at + CHUNK]
            self._selected += self.query.select(self.index, among)
            self._looked_at += len(among)
        if asked_anew or len(self._selected) != before[1]:
            self.rows = self.query.ordered(list(self._selected))
        self.finished = not more and self._looked_at == len(self.index) and self._wanted is self.query
        return asked_anew or before != (len(self.index), len(self._selected), self.finished)


def charts(every: Sequence[Row], shown: Sequence[Row]) -> dict[str, list[Bar]]:
    """Count the rows and those shown by reward, by stop reason, and by the status of tool calls that were not ok."""
    stops, stops_shown = (Counter(row.stop for row in rows) for rows in (every, shown))
    problems, problems_shown = (Counter(status for row in rows for status in row.problems) for rows in (every, shown))
    return {
        "reward": _histogram(every, shown),
        "ended": [Bar(stop, f"stop={stop}", count, stops_shown[stop]) for stop, count in stops.most_common()],
        "calls": [
            Bar(name, f'tool="{name}"' if " " in name else f"tool={name}", count, problems_shown[name])
            for name, count in problems.most_common()
        ],
    }


def _histogram(every: Sequence[Row], shown: Sequence[Row]) -> list[Bar]:
    """One bar for each reward if there are few, else bins of equal width."""
    counts = Counter(row.reward for row in every)
    values = sorted(value for value in counts if math.isfinite(value))
    if not values:
        return []
    counts_shown = Counter(row.reward for row in shown)
    if len(values) <= BINS:
        return [Bar(f"{v:.4g}", f"reward={v!r}", counts[v], counts_shown[v]) for v in values]
    low, high = values[0], values[-1]
    edges = sorted({float(f"{low + (high - low) * place / BINS:.6g}") for place in range(1, BINS)})
    sums, sums_shown = [0] * (len(edges) + 1), [0] * (len(edges) + 1)
    for value in values:
        place = bisect_right(edges, value)
        sums[place] += counts[value]
        sums_shown[place] += counts_shown[value]
    bars = []
    for place, count in enumerate(sums):
        over = [f"reward>={edges[place - 1]!r}"] if place else []
        below = [f"reward<{edges[place]!r}"] if place < len(edges) else []
        label = f"{edges[place - 1] if place else low:.4g}…{edges[place] if place < len(edges) else high:.4g}"
        bars.append(Bar(label, " ".join([*over, *below]), count, sums_shown[place]))
    return bars
