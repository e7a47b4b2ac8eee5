"""The figures of a run as a flat dict, as trainers' loggers take them. `docs/metrics.md` says what each name means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from toolgym.rollout.runner.metrics import table
from toolgym.rollout.runner.metrics.counts import EnvCounts, EventCounts, ToolCounts
from toolgym.rollout.runner.metrics.table import Count, Distribution
from toolgym.tools.concurrency.loop_watch import Lag

if TYPE_CHECKING:
    from toolgym.rollout.episode.observer import Phase
    from toolgym.rollout.runner.metrics.counts import RunClock

PERCENTILES = (50, 90, 99)

C = TypeVar("C")

_HOURS_PER_MILLION = 1e6 / 3600
"""From seconds of one action to hours of a million."""


def figures(
    counts: EventCounts,
    clock: RunClock,
    phases: Mapping[Phase, int],
    *,
    running: int | None,
    lag: Lag | None,
    prefix: str,
) -> dict[str, float]:
    """Return the figures by name, each with `prefix`; `running` is None if that is not known, `lag` if nothing watched
    it."""
    values = [*_run(counts), *_rewards(counts), *_process(counts, clock)]
    if lag is not None:
        values += [
            ("process/loop_lag/p50", lag.p50),
            ("process/loop_lag/p99", lag.p99),
            ("process/loop_lag/max", lag.most),
        ]
    if running is not None:
        values.append(("episodes/running", running))
        values += [(f"episodes/waiting/{phase}", count) for phase, count in phases.items()]
    for status, count in list(counts.bad_calls.items()):
        values.append((f"tool_calls/not_run/{_name(status)}", count))
    for name, tool in list(counts.tools.items()):
        values += [(f"tools/{_name(name)}/{figure}", value) for figure, value in tool_figures(tool)]
    for name, env in list(counts.envs.items()):
        values += [(f"envs/{_name(name)}/{figure}", value) for figure, value in _env(env)]
    for name, rewards in list(counts.sources.items()):
        values += [(f"sources/{_name(name)}/episodes", rewards.count), (f"sources/{_name(name)}/reward", rewards.mean)]
    return {prefix + name: float(value) for name, value in values}


Figures = Iterator[tuple[str, float]]


def _from_table(counts: C, rows: Iterable[Count[C]], distributions: Iterable[Distribution[C]] = ()) -> Figures:
    for count in rows:
        if count.figure is not None:
            yield count.figure, count.value(counts)
    for distribution in distributions:
        sketch = distribution.sketch(counts)
        if sketch.count:
            for percent in PERCENTILES:
                yield f"{distribution.figure}/p{percent}", sketch.percentile(percent / 100)


def _run(counts: EventCounts) -> Figures:
    yield from _from_table(counts, table.RUN, table.RUN_DISTRIBUTIONS)
    if counts.requests:
        yield from _from_table(counts, table.REQUESTS)
    if counts.prompt_tokens:
        yield "engine/prefix_cache_hit_rate", counts.cached_tokens / counts.prompt_tokens
    for reason, count in list(counts.stop_reasons.items()):
        yield f"stop_reason/{reason.value}", count


def _rewards(counts: EventCounts) -> Figures:
    rewards = counts.rewards
    if rewards.count:
        yield "reward/mean", rewards.mean
        yield "reward/std", rewards.std
        yield "reward/min", rewards.least
        yield "reward/max", rewards.most
    groups, equal, deviation = counts.groups.figures()
    if groups:
        yield "groups/count", groups
        yield "groups/equal_rewards", equal / groups
        yield "groups/reward_std", deviation


def _process(counts: EventCounts, clock: RunClock) -> Figures:
    wall, cpu = clock.read()
    if wall:
        yield "process/seconds", wall
        yield "engine/tokens_per_second", counts.generated_tokens / wall
        if counts.turns:
            yield "process/cpu_seconds_per_turn", cpu / counts.turns
    if counts.finished_steps:
        outside = counts.outside_seconds / counts.finished_steps
        yield "process/worker_hours_per_million_actions", outside * _HOURS_PER_MILLION


def tool_figures(tool: ToolCounts) -> Figures:
    yield from _from_table(tool, table.TOOL, table.TOOL_DISTRIBUTIONS)
    for status, count in list(tool.statuses.items()):
        yield f"status/{_name(status)}", count


def _env(env: EnvCounts) -> Figures:
    yield from _from_table(env, table.ENV, table.ENV_DISTRIBUTIONS)
    if env.rewards.count:
        yield "reward", env.rewards.mean
    for reason, count in list(env.failures.items()):
        yield f"failure/{reason.value}", count


def _name(text: str) -> str:
    """A tool's, an env's or a status's name as every logger takes it: MLflow refuses most characters."""
    return re.sub(r"[^\w./ -]", "_", text, flags=re.ASCII) or "unnamed"
