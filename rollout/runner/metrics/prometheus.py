"""The figures of a run as a page for Prometheus. Nothing is computed before a page is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Self, TypeVar

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from toolgym.rollout.runner.metrics import table
from toolgym.rollout.runner.metrics.counts import EventCounts
from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
from toolgym.tools.errors import ConfigError

PREFIX = "toolgym_rollout"

C = TypeVar("C")


class RunCollector(Collector):
    """The families of a `RunMetrics`, for a registry of your own: `registry.register(RunCollector(metrics))`. The
    counts fall back to 0 at `RunMetrics.reset`; Prometheus's `rate` takes that for a restart."""

    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        counts = self._metrics.counts
        yield from _run(counts)
        yield from _process(self._metrics)
        yield from _tools(counts)
        yield from _envs(counts)


class MetricsServer:
    """Serves the figures of a `RunMetrics` at `/metrics`, from a thread of its own, until `close`; at any free port if
    `port` is 0. `url` is the page's. Raises `ConfigError` if the address cannot be had."""

    def __init__(self, metrics: RunMetrics, port: int = 9464, host: str = "127.0.0.1") -> None:
        registry = CollectorRegistry()
        registry.register(RunCollector(metrics))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot serve metrics at {host}:{port}: {error}") from error
        address = f"[{host}]" if ":" in host else host
        self.url = f"http://{address}:{self._server.server_port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _run(counts: EventCounts) -> Iterator[Metric]:
    reasons = [((reason,), count) for reason, count in list(counts.stop_reasons.items())]
    yield _counter("episodes", "Episodes that are over, by why.", ["stop_reason"], reasons)
    yield from _histograms(table.RUN_DISTRIBUTIONS, [((), counts)])
    for count in (*table.RUN, *table.REQUESTS):
        if count.family is not None:
            yield CounterMetricFamily(f"{PREFIX}_{count.family}", count.meaning, value=count.value(counts))
    problems = [((problem,), count) for problem, count in list(counts.bad_calls.items())]
    yield _counter("calls_not_run", "Malformed tool calls, by problem.", ["problem"], problems)
    yield GaugeMetricFamily(f"{PREFIX}_reward_mean", "Mean reward of the episodes that count.", counts.rewards.mean)


def _process(metrics: RunMetrics) -> Iterator[Metric]:
    wall, cpu = metrics.clock.read()
    yield CounterMetricFamily(f"{PREFIX}_seconds", "Wall seconds that runs went on.", value=wall)
    yield CounterMetricFamily(f"{PREFIX}_cpu_seconds", "CPU seconds of this process in that time.", value=cpu)
    lag = metrics.lag
    if lag is not None:
        yield GaugeMetricFamily(
            f"{PREFIX}_loop_lag_p99_seconds", "How late the event loop is: 99 of 100 times.", lag.p99
        )
    waiting = GaugeMetricFamily(f"{PREFIX}_waiting", "Episodes that run, by what they wait for.", labels=["phase"])
    for phase, count in metrics.running.items():
        waiting.add_metric([phase.value], count)
    yield waiting


def _tools(counts: EventCounts) -> Iterator[Metric]:
    tools = [((name,), tool) for name, tool in sorted(counts.tools.items())]
    calls = [((*name, status), count) for name, tool in tools for status, count in list(tool.statuses.items())]
    yield _counter("tool_calls", "Calls, by tool and status.", ["tool", "status"], calls)
    yield from _counters(table.TOOL, tools, "tool")
    yield from _histograms(table.TOOL_DISTRIBUTIONS, tools, "tool")


def _envs(counts: EventCounts) -> Iterator[Metric]:
    envs = [((name,), env) for name, env in sorted(counts.envs.items())]
    failures = [((*name, reason), count) for name, env in envs for reason, count in list(env.failures.items())]
    yield _counter("env_failures", "Episodes that failed, by env and why.", ["env", "stop_reason"], failures)
    yield from _counters(table.ENV, envs, "env")
    yield from _histograms(table.ENV_DISTRIBUTIONS, envs, "env")


def _counter(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
    for values, count in samples:
        family.add_metric(values, count)
    return family


def _counters(
    rows: Iterable[table.Count[C]], labelled: Sequence[tuple[tuple[str, ...], C]], label: str
) -> Iterator[Metric]:
    for row in rows:
        if row.family is not None:
            samples = [(labels, row.value(counts)) for labels, counts in labelled]
            yield _counter(row.family, row.meaning, [label], samples)


def _histograms(
    rows: Iterable[table.Distribution[C]], labelled: Sequence[tuple[tuple[str, ...], C]], *labels: str
) -> Iterator[Metric]:
    for row in rows:
        family = HistogramMetricFamily(f"{PREFIX}_{row.family}", row.meaning, labels=labels)
        for values, counts in labelled:
            sketch, below, count = row.sketch(counts), dict.fromkeys(row.bounds, 0), 0
            for least, count in sketch.cumulated():
                below |= {bound: count for bound in row.bounds if least <= bound}
            buckets = [(str(bound), float(known)) for bound, known in below.items()]
            family.add_metric(values, [*buckets, ("+Inf", float(count))], sum_value=sketch.total)
        yield family
