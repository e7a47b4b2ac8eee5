from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.judge import (
    AssertTest,
    CheckerTest,
    FunctionTest,
    InteractiveTest,
    StdioTest,
    read_tests,
    same_output,
    same_value,
)
from toolgym.tools.judge.comparing import TOLERANCE


@pytest.mark.parametrize(
    ("actual", "expected", "options", "same"),
    [
        ("1 2\n3\n", "1 2\n3", {}, True),
        (" 1  2 \n3  \n\n", "1 2\n3", {}, True),
        ("1 2 3", "1 2\n3", {}, False),
        ("1\n\n2", "1\n2", {}, False),
        ("", "\n", {}, True),
        ("", "0", {}, False),
        ("YES", "Yes", {}, False),
        ("YES", "Yes", {"ignore_case": True}, True),
        ("1.0", "1", {}, True),  # as LiveCodeBench has it: a line of numbers alone
        ("0.25 1e3", "0.250 1000", {}, True),
        ("0.25\n-.5", "0.250\n-0.5", {}, True),
        ("50000000000000001", "50000000000000000", {}, False),
        ("x 1.0", "x 1", {}, False),
        ("sNaN", "1", {}, False),
        ("sNaN", "1", {"tolerance": 0.1}, False),
        ("--1", "1", {"tolerance": 0.1}, False),
        ("0.33333333", "0.3333333333", {}, False),
        ("0.33333333", "0.3333333333", {"tolerance": TOLERANCE}, True),
        ("10000001", "10000000", {"tolerance": TOLERANCE}, False),  # whole numbers are the same, or are not
        ("10000000.1", "10000000", {"tolerance": TOLERANCE}, True),
        ("9" * 5000, "9.5", {"tolerance": TOLERANCE}, False),
        ("1.0", "1", {"tolerance": 0.0}, True),
        ("0.3333", "0.33333", {"tolerance": 1e-4}, True),
        ("0.333", "0.33333", {"tolerance": 1e-4}, False),
        ("1000100.5", "1000000", {"tolerance": 1e-3}, True),
        ("x 1.00001", "x 1", {"tolerance": 1e-4}, True),
        ("y 1", "x 1", {"tolerance": 1e-4}, False),
        ("nan", "1", {"tolerance": 0.9}, False),
        ("inf", "1e400", {"tolerance": 0.9}, True),
        ("1 2 3", "1 2", {"tolerance": 0.9}, False),
        ("0.0", "0.000004", {"close": True}, False),
        ("0.001009", "0.001", {"close": True}, False),
        ("0.00100000999", "0.001", {"close": True}, True),
        ("0.000000005", "0.0", {"close": True}, True),
        ("1000.009", "1000.0", {"close": True}, True),
        ("1000.011", "1000.0", {"close": True}, False),
        ("3", "3.0", {"close": True}, True),
        ("10000001", "10000000", {"close": True}, False),
        ("-inf", "inf", {"close": True}, False),
    ],
)
def test_output(actual, expected, options, same):
    assert same_output(actual, expected, **options) is same


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance", "same"),
    [
        ((1, (2,)), [1, [2]], None, True),
        ([1, 2], [1], None, False),
        ({1: "a", "b": [2]}, {"1": "a", "b": (2,)}, None, True),
        ({1: "a"}, {"2": "a"}, None, False),
        (True, 1, None, True),
        (True, 1.0001, 0.1, False),
        (1.0001, 1, 0.1, True),
        ([0.1 + 0.2, "x"], [0.3, "x"], 1e-9, True),
        ("1", 1, 0.5, False),
        (None, 0, None, False),
        (10**400, 0.5, 0.1, False),  # no float holds it
        (10**7 + 1, 10**7, TOLERANCE, False),
        (10.0**7 + 1, 10**7, TOLERANCE, True),
        ({1: 2, "1": 3}, {"1": 3}, None, False),  # two keys are not one
        ({"1": 3}, {1: 3}, None, True),
        ({1, 2}, [1, 2], TOLERANCE, False),  # as APPS and LiveCodeBench have it
    ],
)
def test_values(actual, expected, tolerance, same):
    assert same_value(actual, expected, tolerance=tolerance) is same


def test_values_close_as_numpy_has_it():
    assert same_value([0.001], [0.001 + 1e-8], close=True)
    assert not same_value([0.0], [9e-6], close=True)


@pytest.mark.parametrize(
    "kind", [lambda **rule: StdioTest("", "", **rule), lambda **rule: FunctionTest("f", [], 0, **rule)]
)
def test_a_test_has_one_rule_for_numbers(kind):
    with pytest.raises(ConfigError, match="not by both"):
        kind(tolerance=0.1, close=True)


def test_limits_and_protocols_of_tests_are_checked():
    for limits in ({"cpu_seconds": 0}, {"memory_mb": 0}, {"memory_mb": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(limits))):
            AssertTest("", **limits)
    with pytest.raises(ConfigError, match="protocol must be 'printed' or 'testlib', got 'kattis'"):
        CheckerTest("", "", protocol="kattis")


def test_tests_survive_json():
    tests = [
        StdioTest("1", "2", close=True, cpu_seconds=1.5),
        FunctionTest("f", [1], 2, memory_mb=64),
        AssertTest("assert f(1) == 2"),
        CheckerTest("1", "print(1)", "2", checker_files={"a": "b"}),
        InteractiveTest("1", "print(1)", interactor_language="cpp"),
    ]
    written = [
        {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(test).items()}
        for test in tests
    ]
    assert read_tests(json.dumps(written[:1])) == (tests[0],)
    for test, row in zip(tests, written, strict=True):
        (again,) = read_tests([row])
        assert type(again) is type(test)
        assert json.loads(json.dumps(asdict(again))) == json.loads(json.dumps(row))


@pytest.mark.parametrize(
    ("actual", "expected", "rule", "right"),
    [
        ("1 2\n3", "1\n2 3\n", {}, True),
        ("1 2\n4", "1\n2 3\n", {}, False),
        ("1 2 3", "1\n2", {}, False),
        ("1.000001\n2", "1 2.0", {"tolerance": 1e-5}, True),
        ("yes no", "YES\nNO", {"ignore_case": True}, True),
    ],
)
def test_words_may_stand_in_other_lines_if_the_data_set_says_so(actual, expected, rule, right):
    assert same_output(actual, expected, any_lines=True, **rule) is right
    assert not same_output(actual, expected, **rule)
