"""Fully asynchronous training: the example's few steps learn, and the page's programs run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_policy_learns_while_its_rollout_goes_on():
    arguments = ["--steps", "4", "--groups", "6", "--max-staleness", "1", "--tasks", "16", "--samples", "1"]
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "learn_async.py", *arguments],
        capture_output=True, text=True, timeout=540, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"mean reward (\S+), staleness at most (\d+), (\d+) of 48 episodes", done.stdout)
    rewards, ages, mixed = ([float(step[part]) for step in steps] for part in range(3))
    assert len(steps) == 4
    assert sum(rewards[2:]) / 2 > rewards[0] + 0.15  # 0.4 more on most machines
    assert max(ages) <= 1
    assert sum(mixed) > 0  # episodes with tokens of two versions
    assert done.stdout.splitlines()[-1].startswith("after:")


PROGRAMS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "async_training.md").read_text(), re.M | re.S)


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS, ids=["queue", "checkpoints", "vector env"])
def test_a_program_of_the_page_runs(program):
    exec(compile(program, "docs/async_training.md", "exec"), {"__name__": "page"})
