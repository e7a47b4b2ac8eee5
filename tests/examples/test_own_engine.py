"""The example of an engine of one's own runs, and stays as small as it says."""

from __future__ import annotations

import ast
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_engine.py"


def test_the_example_runs(as_program):
    printed = as_program(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE.parent)
    assert printed.split() == ["####", "42<|im_end|>", "stop"]


def test_it_needs_no_more_than_it_says():
    tree = ast.parse(EXAMPLE.read_text(encoding="utf-8"))
    names = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("toolgym")
        for alias in node.names
    }
    assert len(names - {"tiny_policy_path"}) <= 6  # where the tokenizer lies, of whatever model
