"""Programs that tell the runs of hidden and of altered tests apart, or read what a test expects: none is paid."""

from __future__ import annotations

import dataclasses

import pytest

from tests.envs.families.swe.conftest import PYTEST
from tests.envs.families.swe.forgeries import tries
from tests.envs.families.swe.test_forged_reports import report_with

CHANCE = ("the clock", "an even number", "an even length", "a coin", "a small number", "small numbers")
"""Tries that guess: each of them is paid once in a while."""

SHORT = (
    "reports of unittest, if no assertion was added, by the names in its code",
    "runs of unittest, if it asserts equality",
    "assertions of unittest, if always",
    "the line of the caller (unittest)",
    "equal to everything (unittest)",
)
TRIES = {name: (runner, program) for name, runner, program in tries()}
CERTAIN = [name for name in TRIES if not any(word in name for word in CHANCE)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.abuse) for name in CERTAIN]
)
async def test_a_program_that_does_not_know_the_answer_is_not_paid(name, task, sandbox):
    runner, program = TRIES[name]
    if runner == "pytest":
        add, double = ("tests/test_calc.py::test_add",), ("tests/test_calc.py::test_double",)
        tests = {"test_files": {"tests/test_calc.py": PYTEST}, "test_command": "pytest"}
        task = dataclasses.replace(task, **tests, fail_to_pass=add, pass_to_pass=double)
    report = await report_with(task, sandbox, program)
    assert (report.infra_error, report.worth(strict=False)) == (None, 0.0), report.outcomes


@pytest.mark.abuse
async def test_guesses_are_paid_rarely(task, sandbox):
    guesses = [TRIES[name][1] for name in TRIES if "unittest" in name and any(word in name for word in CHANCE)]
    paid = [bool((await report_with(task, sandbox, program)).worth(strict=False)) for program in guesses]
    assert sum(paid) <= len(paid) / 5


def test_the_tries_are_many():
    assert set(SHORT) < set(CERTAIN)
    assert len(CERTAIN) >= 50
