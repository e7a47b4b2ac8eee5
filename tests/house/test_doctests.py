"""The examples of the docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import toolgym.envs
import toolgym.rollout
import toolgym.tools
import toolgym.wrappers

LAYERS = (toolgym, toolgym.tools, toolgym.envs, toolgym.wrappers, toolgym.rollout)


def examples_in(module_name: str) -> int:
    """How many examples a module's source has, wherever they stand. Does not import the module."""
    source = Path(importlib.util.find_spec(module_name).origin).read_text(encoding="utf-8")
    return len(re.findall(r"^ *>>> ", source, re.MULTILINE))


MODULES = sorted(
    {
        module.name
        for layer in LAYERS
        for module in pkgutil.walk_packages(layer.__path__, f"{layer.__name__}.")
        if examples_in(module.name)
    }
)


def ran(module) -> tuple[int, str]:
    """Run a module's examples. Returns how many did, and a report of those that are wrong."""
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=report.append)
    return runner.tries, "".join(report)


def test_there_are_examples():
    assert len(MODULES) >= 14


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name, registry):
    """All of them run: one that is skipped, or stands where doctest does not look, is missing from the count."""
    count, report = ran(importlib.import_module(name))
    assert report == ""
    assert count == examples_in(name)


def test_a_wrong_example_is_reported():
    module = ModuleType("wrong", ">>> 1 + 1\n3\n")
    count, report = ran(module)
    assert count == 1
    assert "Expected:\n    3\nGot:\n    2" in report
