"""Counts and times of one worker, and the page for Prometheus with those of all workers, their numbers as labels.

(`prometheus_client`'s multi-process mode needs files that outlive a worker, and loses the label.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)  # seconds

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class ServerMetrics:
    """Counts of one worker, whose names begin with `prefix`. A server adds its own families to `registry`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # the worker's own: memory, processor time, descriptors
        self.restarts = Counter(f"{prefix}_worker_restarts", "Workers that were replaced.", registry=self.registry)
        self._requests = Counter(
            f"{prefix}_requests",
            "Requests answered, by endpoint and HTTP status.",
            ["endpoint", "code"],
            registry=self.registry,
        )
        self.disconnects = Counter(f"{prefix}_disconnects", "Clients that went away early.", registry=self.registry)
        self._latency = Histogram(
            f"{prefix}_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ["endpoint"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        # Prometheus looks for labels in a way that costs more than to count.
        self._counter, self._clock = functools.cache(self._requests.labels), functools.cache(self._latency.labels)
        self.queue_seconds = Histogram(
            f"{prefix}_queue_seconds",
            "Seconds that a request waited for a slot.",
            buckets=BUCKETS,
            registry=self.registry,
        )

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a figure that is computed for each page."""
        Gauge(f"{self._prefix}_{name}", text, registry=self.registry).set_function(value)

    def answered(self, endpoint: str, code: int, seconds: float) -> None:
        self._counter(endpoint, code).inc()
        if code != 101:  # a WebSocket lasts as long as its client wants
            self._clock(endpoint).observe(seconds)

    def snapshot(self) -> list[list[Any]]:
        """Return all families as JSON: `[name, text, type, [[sample name, labels, value], ...]]` each."""
        families = []
        for family in self.registry.collect():
            kept = [sample for sample in family.samples if not sample.name.endswith("_created")]
            samples = [[sample.name, sample.labels, sample.value] for sample in kept]
            families.append([family.name, family.documentation, family.type, samples])
        return families


def render(snapshots: Sequence[tuple[int, list[list[Any]]]]) -> bytes:
    """Make the page: the samples of all workers' snapshots, each with the number of its worker."""
    return generate_latest(_Snapshots(snapshots))


class _Snapshots(Collector):
    """Gives the families of several registries as those of one."""

    def __init__(self, snapshots: Sequence[tuple[int, list[list[Any]]]]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for worker, snapshot in self._snapshots:
            for name, text, kind, samples in snapshot:
                family = families.setdefault(name, Metric(name, text, kind))
                for sample, labels, value in samples:
                    family.add_sample(sample, {"worker": str(worker), **labels}, value)
        return families.values()
