"""The example of a rollout, as a user runs it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "rollout.py"


@pytest.mark.long
def test_it_runs_and_shows_trajectories_and_a_batch():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True, text=True, timeout=540, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^32 trajectories, mean reward \d\.\d\d$", done.stdout, re.MULTILINE)
    assert "response_mask [32, " in done.stdout


def test_it_takes_no_more_than_the_five_concepts_that_it_counts():
    tree = ast.parse(EXAMPLE.read_text())
    names = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module.startswith("toolgym")
        for alias in node.names
    }
    counted = re.findall(r"^\d\. (?:`(\w+)`)?", ast.get_docstring(tree), re.MULTILINE)
    assert len(counted) == 5
    assert names == {name for name in counted if name}  # the env id is no import
