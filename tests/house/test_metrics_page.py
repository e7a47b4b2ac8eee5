"""docs/metrics.md names the figures that there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from toolgym.envs import Task
from toolgym.envs.types import StopReason, ToolCallRecord
from toolgym.rollout.engines.base import SamplingParams
from toolgym.rollout.episode.observer import Phase
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.models.token_ids import TokenIds
from toolgym.rollout.runner.metrics.prometheus import RunCollector
from toolgym.rollout.runner.metrics.run_metrics import RunMetrics
from toolgym.rollout.trajectory.trajectory import Failure, Trajectory, Turn

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
VALUES = {"PERCENT": r"p50|p90|p99", "PHASE": "|".join(Phase), "REASON": "|".join(StopReason)}


def everything() -> RunMetrics:
    """Metrics in which every figure has a value."""
    metrics = RunMetrics()
    metrics.run_began()
    job = Job(Task(({"role": "user", "content": "x"},)), EpisodeKey(0, 0), "g")
    metrics.began(job)
    metrics.asked(job, TokenIds([1]), SamplingParams(max_new_tokens=1))
    for phase in Phase:
        metrics.waits(job, phase)
    calls = (
        ToolCallRecord("1", "f", {}, "ok", "text"),
        ToolCallRecord("2", "g", None, "malformed_json", ""),
    )
    turn = Turn("", "stop", 3, 2, observation_tokens=4, tool_calls=calls, reward=0.0)
    for error, reason in ((None, StopReason.ANSWERED), (Failure("x", 0), StopReason.ENV_FAILED)):
        for sample in range(2):
            metrics.ended(
                Job(job.task, EpisodeKey(0, sample), "g"),
                Trajectory("i", "E-v0", "t", "s", "g", 0, sample, (), (), (), 1.0, reason, turns=(turn,), error=error),
            )
    return metrics


def names(section: str) -> list[str]:
    [found] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return [name for row in re.findall(r"^\| (`.*?) \|", found, re.M) for name in re.findall(r"`([^`]+)`", row)]


async def test_the_table_names_every_figure_and_no_other():
    value = lambda match: f"({VALUES.get(match[0], '[^/]+')})"  # noqa: E731
    patterns = {name: re.sub(r"[A-Z]+", value, name) for name in names("The figures")}
    metrics = everything()
    found = metrics.metrics("")
    metrics.run_ended()
    assert len(patterns) > 40
    for name in found:
        assert sum(re.fullmatch(pattern, name) is not None for pattern in patterns.values()) == 1, name
    for name, pattern in patterns.items():
        assert any(re.fullmatch(pattern, one) for one in found), f"{name} does not exist"


async def test_the_table_of_prometheus_names_every_family():
    metrics = everything()
    families = {one.name + ("_total" if one.type == "counter" else "") for one in RunCollector(metrics).collect()}
    metrics.run_ended()
    assert set(names("The page for Prometheus")) == families
