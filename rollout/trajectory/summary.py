"""`summarize`: the figures of many trajectories, for any logger of metrics."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from toolgym.envs.types import Blame, StopReason
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.schema import CallProblem

_MOST = sys.float_info.max

_MALFORMED = {problem.value for problem in CallProblem}


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the scorer gave full marks (if an env reports no score, whether the reward reached 1)."""
    return not trajectory.failed and has_full_marks(trajectory.metrics, trajectory.reward)


def has_full_marks(metrics: Mapping[str, Any], reward: float) -> bool:
    score = metrics.get("score", reward)
    return score is not None and float(score) >= 1.0  # a score of NaN is null in a file


def summarize(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return figures of trajectories by name, as loggers of metrics take them. docs/metrics.md lists them. Raises
    ConfigError for values that are no trajectories.

    Example:
        >>> summarize([])
        {'episodes': 0.0, 'groups': 0.0}
    """
    every = require_trajectories(trajectories)
    figures: dict[str, float] = {
        "episodes": float(len(every)),
        "groups": float(len({(trajectory.group_id, trajectory.role) for trajectory in every})),
    }
    if not every:
        return figures
    counted = [trajectory for trajectory in every if trajectory.in_group_statistics]
    if counted:
        rewards = [trajectory.reward for trajectory in counted]
        figures |= _spread("reward", rewards)
        figures |= {"reward/min": min(rewards), "reward/max": max(rewards)}
        figures |= _spread("success", [float(succeeded(trajectory)) for trajectory in counted])
        figures |= _metrics(counted)
        figures |= _by_part("envs", counted, attrgetter("env_id")) | _by_part("sources", counted, attrgetter("source"))

    count = len(every)
    reasons = Counter(trajectory.stop_reason for trajectory in every)
    failures = Counter(trajectory.stop_reason.blame for trajectory in every if trajectory.failed)
    figures |= {f"stop_reason/{reason.value}": reasons[reason] / count for reason in StopReason}
    figures["truncated/rate"] = (
        sum(trajectory.stop_reason.truncated and not trajectory.stop_reason.failed for trajectory in every) / count
    )
    figures["failed/rate"] = sum(trajectory.failed for trajectory in every) / count
    figures |= {f"failed/{blame.value}": failures[blame] / count for blame in Blame if blame is not Blame.POLICY}

    turns = [len(trajectory.turns) for trajectory in every]
    cut = sum(turn.truncated for trajectory in every for turn in trajectory.turns)
    figures |= {"turns/mean": statistics.fmean(turns), "turns/max": float(max(turns))}
    figures["turns/truncated"] = cut / max(sum(turns), 1)

    calls = [record for trajectory in every for record in trajectory.tool_calls]
    figures["tool_calls/mean"] = len(calls) / count
    figures |= {
        f"tool_calls/status/{status}": float(n) for status, n in Counter(record.status for record in calls).items()
    }
    figures["tool_calls/bad"] = float(sum(record.status in _MALFORMED for record in calls))
    figures["tool_calls/infra_failures"] = float(sum(record.infra_failure for record in calls))

    responses = [trajectory.policy_tokens for trajectory in every]
    prompts = [len(trajectory.sequences[0].prompt_ids) for trajectory in every if trajectory.sequences]
    figures["tokens/policy"] = float(sum(responses))
    for name, lengths in (("response_length", responses), ("prompt_length", prompts)):
        if lengths:
            figures |= {f"{name}/mean": statistics.fmean(lengths), f"{name}/max": float(max(lengths))}

    figures["seconds/mean"] = statistics.fmean(trajectory.seconds for trajectory in every)
    figures["engine_seconds/mean"] = statistics.fmean(trajectory.engine_seconds for trajectory in every)
    figures["env_seconds/mean"] = statistics.fmean(trajectory.env_seconds for trajectory in every)
    return figures


def _by_part(kind: str, trajectories: Sequence[Trajectory], part: Callable[[Trajectory], str]) -> dict[str, float]:
    """Episodes, mean reward and success of each env or source, where there are several."""
    parts: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        parts.setdefault(part(trajectory) or "unnamed", []).append(trajectory)
    figures: dict[str, float] = {}
    for name, members in sorted(parts.items()) if len(parts) > 1 else ():
        figures[f"{kind}/{name}/episodes"] = float(len(members))
        figures[f"{kind}/{name}/reward"] = statistics.fmean(member.reward for member in members)
        figures[f"{kind}/{name}/success"] = statistics.fmean(map(succeeded, members))
    return figures


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"{name}/mean": statistics.fmean(values),
        f"{name}/std": statistics.stdev(values) if len(values) > 1 else 0.0,
    }


def _metrics(trajectories: list[Trajectory]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.metrics.items():
            if isinstance(value, int | float | np.integer | np.floating) and -_MOST <= value <= _MOST:
                values.setdefault(name, []).append(float(value))
    return {f"metrics/{name}/mean": statistics.fmean(numbers) for name, numbers in values.items()}
