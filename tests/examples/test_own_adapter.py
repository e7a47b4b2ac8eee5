"""The example of an adapter of one's own runs, and gives rows only of what may be trained on."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_adapter.py"


def test_the_example_runs(as_program):
    printed = as_program(EXAMPLE.read_text(encoding="utf-8"), EXAMPLE.parent)
    right, wrong, reasons = printed.splitlines()
    assert right.endswith("advantage +0.71")
    assert wrong.endswith("advantage -0.71")
    assert reasons == "['answered', 'answered', 'engine_failed']"
