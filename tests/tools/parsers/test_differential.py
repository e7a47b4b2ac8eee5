"""A seeded slice of `benchmarks/tool_call_parsers.py`: outputs whose calls are known, well-formed and damaged."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.parameters import first

FOLDER = Path(__file__).parents[3] / "benchmarks"


def load(name):
    """Load a program of the folder, which finds the others by their names."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


load("derived_formats")
OUTPUTS, BENCH = load("tool_call_outputs"), load("tool_call_parsers")


@pytest.mark.parametrize("name", OUTPUTS.FORMATS)
@first("outputs", [40, 2000], short=1)
def test_every_whole_call_is_read_and_no_damaged_one_runs_otherwise(name, outputs):
    counts = Counter()
    source = OUTPUTS.random.Random(f"test {name}")
    read = BENCH.own_reader(OUTPUTS.FORMATS[name])
    for _ in range(outputs):
        output = OUTPUTS.draw_output(source, name)
        BENCH.count_output(counts, output, read(output.text))
    assert counts["well-formed"] > outputs / 4
    assert counts["damaged"] > outputs / (20 if name == "xlam (derived)" else 4)  # it has no tags to damage
    assert counts["read right"] == counts["well-formed"]
    assert counts["run wrong"] == 0


def test_the_bench_counts_a_call_that_was_not_meant():
    output = OUTPUTS.Output("", [("get_time", {})], "tag")
    counts = Counter()
    BENCH.count_output(counts, output, BENCH.Reading([("run_code", {"code": "x"})], False))
    BENCH.count_output(counts, output, BENCH.Reading([], False))
    assert (counts["run wrong"], counts["silent"]) == (1, 1)
