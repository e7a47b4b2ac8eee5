"""Runs on disk, made of the demo's lines."""

from __future__ import annotations

import json
from pathlib import Path

from toolgym.report.report import Report
from toolgym.viewer.run_index import RunIndex

DEMO = Path(__file__).parents[3] / "front/viewer/demo"
LINE = json.loads((DEMO / "0.jsonl").read_text().splitlines()[2])
"""An answered episode of two turns and one call of a tool."""


def line(**changes):
    return {**LINE, "sequences": [], **changes}


def episodes(outcomes, **changes):
    """Lines of tasks, each with the rewards of its episodes."""
    return [
        line(
            id=f"{task}-{number}-{changes}", task_id=str(task), score=float(reward), metrics={},
            group_id=f"{task}-{changes}", sample_index=number, **changes,
        )
        for task, rewards in outcomes.items()
        for number, reward in enumerate(rewards)
    ]  # fmt: skip


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def report(path, lines=None, **options):
    if lines is not None:
        write(path, lines)
    return Report.of(RunIndex(path).read_all(), **options)
