"""The figures of a run as a flat dict, as trainers' loggers take them. `docs/metrics.md` says what each name means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from toolgym.rollout.runner.metrics.counts import EnvCounts, EventCounts, ToolCounts
from toolgym.rollout.runner.metrics.sketch import Sketch
from toolgym.tools.concurrency.loop_watch import Lag

if TYPE_CHECKING:
    from toolgym.rollout.runner.metrics.clock import RunClock
    from toolgym.rollout.runner.metrics.waiting import Waiting

PERCENTILES = (50, 90, 99)

_HOURS_PER_MILLION = 1e6 / 3600
"""From seconds of one action to hours of a million."""


def figures(
    counts: EventCounts, clock: RunClock, waiting: Waiting, *, running: int | None, lag: Lag | None, prefix: str
) -> dict[str, float]:
    """Return the figures by name.

    Args:
        counts: what was counted.
        clock: how long it took.
        waiting: what the episodes that run now wait for.
        running: how many there are; None where that is not known.
        lag: how late the event loop was; None where it was not watched.
        prefix: beginning of every name.
    """
    found = [*_episodes(counts), *_turns(counts), *_engine(counts), *_process(counts, clock)]
    if lag is not None:
        found += [
            ("process/loop_lag/p50", lag.p50),
            ("process/loop_lag/p99", lag.p99),
            ("process/loop_lag/max", lag.most),
        ]
    if running is not None:
        found += [
            ("episodes/running", running),
            *((f"episodes/waiting/{one}", n) for one, n in waiting.phases().items()),
        ]
    for status, count in list(counts.bad_calls.items()):
        found.append((f"tool_calls/not_run/{_name(status)}", count))
    for name, tool in list(counts.tools.items()):
        found += [(f"tools/{_name(name)}/{figure}", value) for figure, value in _tool(tool)]
    for name, env in list(counts.envs.items()):
        found += [(f"envs/{_name(name)}/{figure}", value) for figure, value in _env(env)]
    return {prefix + name: float(value) for name, value in found}


Figures = Iterator[tuple[str, float]]


def _episodes(counts: EventCounts) -> Figures:
    yield "episodes/finished", counts.episodes
    yield "episodes/failed", counts.failed
    yield from _percentiles("episodes/seconds", counts.episode_seconds)
    for reason, count in list(counts.stop_reasons.items()):
        yield f"stop_reason/{reason.value}", count
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


def _turns(counts: EventCounts) -> Figures:
    yield "turns/count", counts.turns
    yield "turns/truncated", counts.truncated_turns
    yield "turns/resumes", counts.resumes
    yield "env_steps/count", counts.steps
    yield "tokens/prompt", counts.prompt_tokens
    yield "tokens/cached", counts.cached_tokens
    yield "tokens/generated", counts.generated_tokens
    yield "tokens/observations", counts.observation_tokens


def _engine(counts: EventCounts) -> Figures:
    yield from _percentiles("engine/seconds", counts.engine_seconds)
    yield from _percentiles("engine/queue_seconds", counts.queue_seconds)
    if counts.prompt_tokens:
        yield "engine/prefix_cache_hit_rate", counts.cached_tokens / counts.prompt_tokens
    if counts.requests:  # where none was heard of, nothing was compared
        yield "engine/requests", counts.requests
        yield "engine/prefix_drift", counts.drifted
        yield "context/rewritten", counts.rewritten


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


def _tool(tool: ToolCounts) -> Figures:
    yield "calls", tool.seconds.count
    yield "errors", tool.errors
    yield "timeouts", tool.statuses.get("timeout", 0)
    yield "retries", tool.retries
    yield "infra_failures", tool.infra_failures
    yield from _percentiles("seconds", tool.seconds)
    yield from _percentiles("characters", tool.characters)
    for status, count in list(tool.statuses.items()):
        yield f"status/{_name(status)}", count


def _env(env: EnvCounts) -> Figures:
    yield "episodes", env.episodes
    yield "steps", env.seconds.count
    yield "failures", sum(env.failures.values())
    yield "timeouts", env.timeouts
    yield "retries", env.retries
    yield from _percentiles("seconds", env.seconds)
    yield from _percentiles("observation_tokens", env.observation_tokens)
    for reason, count in list(env.failures.items()):
        yield f"failure/{reason.value}", count


def _percentiles(name: str, sketch: Sketch) -> Figures:
    if sketch.count:
        for percent in PERCENTILES:
            yield f"{name}/p{percent}", sketch.percentile(percent / 100)


def _name(text: str) -> str:
    """A tool's, an env's or a status's name as every logger takes it: MLflow refuses the most characters."""
    return re.sub(r"[^\w./ -]", "_", text, flags=re.ASCII) or "unnamed"
