"""The example of a rollout, as a user runs it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "rollout.py"


@pytest.mark.long
def test_it_runs_and_shows_trajectories_and_a_batch(as_program, tmp_path):
    printed = as_program(EXAMPLE.read_text(encoding="utf-8"), tmp_path)
    assert re.search(r"^32 trajectories, mean reward \d\.\d\d$", printed, re.MULTILINE)
    assert "response_mask [32, " in printed


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
