from __future__ import annotations

import pytest

from toolgym.tools.judge import same_output, same_value


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
        ("1.0", "1", {}, False),
        ("1.0", "1", {"tolerance": 0.0}, True),
        ("0.3333", "0.33333", {"tolerance": 1e-4}, True),
        ("0.333", "0.33333", {"tolerance": 1e-4}, False),
        ("1000100", "1000000", {"tolerance": 1e-3}, True),
        ("x 1.00001", "x 1", {"tolerance": 1e-4}, True),
        ("y 1", "x 1", {"tolerance": 1e-4}, False),
        ("nan", "1", {"tolerance": 0.9}, False),
        ("inf", "1e400", {"tolerance": 0.9}, True),
        ("1 2 3", "1 2", {"tolerance": 0.9}, False),
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
    ],
)
def test_values(actual, expected, tolerance, same):
    assert same_value(actual, expected, tolerance=tolerance) is same
