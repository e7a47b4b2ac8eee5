"""Counts and times, in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the histograms' buckets, in seconds."""

PREFIX = "toolgym_sandbox"

Labels = tuple[tuple[str, str], ...]


class Histogram:
    """How long things took."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def samples(self) -> Iterable[tuple[str, Labels, float]]:
        """Suffix, label and value of each line."""
        total = 0
        for bound, count in zip((*BUCKETS, float("inf")), self._counts, strict=True):
            total += count
            yield "_bucket", (("le", "+Inf" if bound == float("inf") else f"{bound:g}"),), total
        yield "_sum", (), round(self._sum, 6)
        yield "_count", (), total


class Metrics:
    """What one worker has counted.

    Args:
        gauges: by name, what the value is now; asked when somebody looks.
    """

    def __init__(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        self._gauges = gauges
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._outcomes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._latency: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._queue = Histogram()
        self._disconnects = 0

    def answered(self, endpoint: str, code: int, seconds: float) -> None:
        """One request was answered with that HTTP status."""
        self._requests[endpoint, code] += 1
        self._latency[endpoint].observe(seconds)

    def ran(self, endpoint: str, outcome: str) -> None:
        """One program or cell ended that way."""
        self._outcomes[endpoint, outcome] += 1

    def queued(self, seconds: float) -> None:
        """One request got its place after that long."""
        self._queue.observe(seconds)

    def disconnected(self) -> None:
        """One client went away before its answer."""
        self._disconnects += 1

    def snapshot(self) -> dict[str, Any]:
        """Families of samples, as JSON: name -> `[type, help, [[suffix, labels, value], ...]]`."""
        requests = [["", [["endpoint", e], ["code", str(c)]], n] for (e, c), n in self._requests.items()]
        outcomes = [["", [["endpoint", e], ["status", s]], n] for (e, s), n in self._outcomes.items()]
        latency = [
            [suffix, [["endpoint", endpoint], *labels], value]
            for endpoint, histogram in self._latency.items()
            for suffix, labels, value in histogram.samples()
        ]
        queue = [[suffix, [*labels], value] for suffix, labels, value in self._queue.samples()]
        families: dict[str, Any] = {
            "requests_total": ["counter", "Requests answered, by endpoint and HTTP status.", requests],
            "executions_total": ["counter", "Programs and cells that ended, by endpoint and how.", outcomes],
            "disconnects_total": ["counter", "Clients that went away early.", [["", [], self._disconnects]]],
            "request_seconds": ["histogram", "Seconds from a request's head to the end of its answer.", latency],
            "queue_seconds": ["histogram", "Seconds that a request waited for a place.", queue],
        }
        for name, (text, value) in self._gauges.items():
            families[name] = ["gauge", text, [["", [], value()]]]
        return families


def render(snapshots: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """The text of all workers' snapshots, each sample with the number of its worker."""
    lines = []
    names = dict.fromkeys(name for _, snapshot in snapshots for name in snapshot)
    for name in names:
        head = next(snapshot[name] for _, snapshot in snapshots if name in snapshot)
        lines += [f"# HELP {PREFIX}_{name} {head[1]}", f"# TYPE {PREFIX}_{name} {head[0]}"]
        for worker, snapshot in snapshots:
            for suffix, labels, value in snapshot.get(name, (None, None, ()))[2]:
                text = ",".join(f'{key}="{_escaped(item)}"' for key, item in [["worker", str(worker)], *labels])
                lines.append(f"{PREFIX}_{name}{suffix}{{{text}}} {value:g}" if isinstance(value, float)
                             else f"{PREFIX}_{name}{suffix}{{{text}}} {value}")  # fmt: skip
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
