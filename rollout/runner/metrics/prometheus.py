"""The figures of a run as a page for Prometheus. Nothing is computed before a page is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from toolgym.rollout.runner.metrics.counts import EventCounts
from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
from toolgym.rollout.runner.metrics.sketch import Sketch
from toolgym.tools.errors import ConfigError
from toolgym.tools.serving.metrics import BUCKETS

PREFIX = "toolgym_rollout"

SIZES = tuple(float(4**power) for power in range(2, 11))
"""Upper bounds of the buckets of sizes: 16 to about a million."""


class RunCollector(Collector):
    """The families of a `RunMetrics`, for a registry of your own: `registry.register(RunCollector(metrics))`.

    The counts fall back to 0 at `RunMetrics.reset`; Prometheus's `rate` takes that for a restart.

    Args:
        metrics: whose figures they are.
    """

    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return every family, with the samples of this moment."""
        counts = self._metrics.counts
        yield from _run(counts)
        yield from _process(self._metrics)
        yield from _tools(counts)
        yield from _envs(counts)


class MetricsServer:
    """Serves the figures of a `RunMetrics` at `/metrics`, from a thread of its own, until `close`.

    Args:
        metrics: whose figures they are.
        port: 0 for any that is free.
        host: address to listen on.

    Attributes:
        url: of the page.

    Raises:
        ConfigError: the address cannot be had.
    """

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
        """End it. Closing twice is fine."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _run(counts: EventCounts) -> Iterator[Metric]:
    episodes = CounterMetricFamily(f"{PREFIX}_episodes", "Episodes that are over, by why.", labels=["stop_reason"])
    for reason, count in list(counts.stop_reasons.items()):
        episodes.add_metric([reason.value], count)
    yield episodes
    yield _histogram("episode_seconds", "Wall seconds of an episode.", [((), counts.episode_seconds)], BUCKETS)
    yield _histogram(
        "queue_seconds", "Seconds that a turn waited for its place.", [((), counts.queue_seconds)], BUCKETS
    )
    yield _histogram("engine_seconds", "Wall seconds of a turn of the engine.", [((), counts.engine_seconds)], BUCKETS)
    for name, text, value in (
        ("turns", "Turns of the policy.", counts.turns),
        ("env_steps", "Steps of the env.", counts.steps),
        ("requests", "Requests to the engine.", counts.requests),
        ("prefix_drift", "Requests that did not begin with what the episode had before. Must be 0.", counts.drifted),
        ("context_rewritten", "Times that an episode's context began anew.", counts.rewritten),
        ("prompt_tokens", "Tokens of the contexts that were sent.", counts.prompt_tokens),
        ("cached_tokens", "Those of them that were in the engine's prefix cache.", counts.cached_tokens),
        ("generated_tokens", "Tokens that the policy sampled.", counts.generated_tokens),
        ("outside_seconds", "Wall seconds of finished episodes outside of the engine.", counts.outside_seconds),
    ):
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, value=value)
    calls = CounterMetricFamily(f"{PREFIX}_calls_not_run", "Malformed tool calls, by problem.", labels=["problem"])
    for problem, count in list(counts.bad_calls.items()):
        calls.add_metric([problem], count)
    yield calls
    yield GaugeMetricFamily(f"{PREFIX}_reward_mean", "Mean reward of the episodes that count.", counts.rewards.mean)


def _process(metrics: RunMetrics) -> Iterator[Metric]:
    wall, cpu = metrics.clock.read()
    yield CounterMetricFamily(f"{PREFIX}_seconds", "Wall seconds that runs went on.", value=wall)
    yield CounterMetricFamily(f"{PREFIX}_cpu_seconds", "CPU seconds of this process meanwhile.", value=cpu)
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
    tools = sorted(counts.tools.items())
    calls = CounterMetricFamily(f"{PREFIX}_tool_calls", "Calls, by tool and status.", labels=["tool", "status"])
    retries = CounterMetricFamily(f"{PREFIX}_tool_retries", "Requests of a tool that were sent again.", labels=["tool"])
    failures = CounterMetricFamily(
        f"{PREFIX}_tool_infra_failures", "Calls that the tool's infrastructure failed.", labels=["tool"]
    )
    for name, tool in tools:
        for status, count in list(tool.statuses.items()):
            calls.add_metric([name, status], count)
        retries.add_metric([name], tool.retries)
        failures.add_metric([name], tool.infra_failures)
    yield from (calls, retries, failures)
    seconds = [((name,), tool.seconds) for name, tool in tools]
    characters = [((name,), tool.characters) for name, tool in tools]
    yield _histogram("tool_seconds", "Wall seconds of a call.", seconds, BUCKETS, ["tool"])
    yield _histogram("tool_characters", "Characters of a call's result.", characters, SIZES, ["tool"])


def _envs(counts: EventCounts) -> Iterator[Metric]:
    envs = sorted(counts.envs.items())
    failures = CounterMetricFamily(
        f"{PREFIX}_env_failures", "Episodes that failed, by env and why.", labels=["env", "stop_reason"]
    )
    for name, env in envs:
        for reason, count in list(env.failures.items()):
            failures.add_metric([name, reason.value], count)
    yield failures
    for family, text, values in (
        ("env_episodes", "Episodes that are over.", [env.episodes for _, env in envs]),
        ("env_timeouts", "Steps, scorers and tool calls over their deadline.", [env.timeouts for _, env in envs]),
        ("env_retries", "Requests of its tools that were sent again.", [env.retries for _, env in envs]),
    ):
        found = CounterMetricFamily(f"{PREFIX}_{family}", text, labels=["env"])
        for (name, _), value in zip(envs, values, strict=True):
            found.add_metric([name], value)
        yield found
    seconds = [((name,), env.seconds) for name, env in envs]
    tokens = [((name,), env.observation_tokens) for name, env in envs]
    yield _histogram("env_seconds", "Wall seconds of a step.", seconds, BUCKETS, ["env"])
    yield _histogram("env_observation_tokens", "Tokens of an observation.", tokens, SIZES, ["env"])


def _histogram(
    name: str,
    text: str,
    sketches: Iterable[tuple[tuple[str, ...], Sketch]],
    bounds: tuple[float, ...],
    labels: list[str] | None = None,
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"{PREFIX}_{name}", text, labels=labels or [])
    for values, sketch in sketches:
        counts = dict.fromkeys(bounds, 0)
        count = 0
        for least, count in sketch.cumulated():
            for bound in bounds:
                if least <= bound:
                    counts[bound] = count
        buckets = [(str(bound), float(counts[bound])) for bound in bounds]
        family.add_metric(list(values), [*buckets, ("+Inf", float(count))], sum_value=sketch.total)
    return family
