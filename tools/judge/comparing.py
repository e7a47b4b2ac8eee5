"""Compares a program's output or result with the expected one."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Any

TOLERANCE = 1e-5
"""Tolerance of data sets whose own judge has one, as those of APPS, TACO and SandboxFusion."""


def same_output(actual: str, expected: str, *, tolerance: float | None = None, ignore_case: bool = False) -> bool:
    """Compare two outputs line by line and word by word; white space and empty lines around them do not count.

    Without a tolerance, a line that has only numbers may write them in another way, `0.5` for `0.50` or `1e3` for
    `1000`, as in LiveCodeBench. With a tolerance (see `StdioTest`), each word that is a number may differ by it, but
    two whole numbers must be the same: 10000001 is not 10000000.
    """
    left, right = actual.strip(), expected.strip()
    if ignore_case:
        left, right = left.lower(), right.lower()
    if left == right:
        return True
    lines, wanted = left.split("\n"), right.split("\n")
    return len(lines) == len(wanted) and all(
        _same_line(line, other, tolerance) for line, other in zip(lines, wanted, strict=True)
    )


def same_value(actual: Any, expected: Any, *, tolerance: float | None = None) -> bool:
    """Compare two values; tuples count as lists, and numbers may differ as for `same_output`."""
    if isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(
            same_value(left, other, tolerance=tolerance) for left, other in zip(actual, expected, strict=True)
        )
    if isinstance(actual, dict) and isinstance(expected, dict):
        values = {_key(key): value for key, value in actual.items()}
        wanted = {_key(key): value for key, value in expected.items()}
        return values.keys() == wanted.keys() and all(
            same_value(values[key], wanted[key], tolerance=tolerance) for key in wanted
        )
    if tolerance is not None and _is_number(actual) and _is_number(expected):
        return _close(actual, expected, tolerance)
    return bool(actual == expected)


def _same_line(actual: str, expected: str, tolerance: float | None) -> bool:
    words, wanted = actual.split(), expected.split()
    if words == wanted:
        return True
    if len(words) != len(wanted):
        return False
    if tolerance is not None:
        return all(
            word == want or _close_words(word, want, tolerance) for word, want in zip(words, wanted, strict=True)
        )
    try:
        return list(map(Decimal, words)) == list(map(Decimal, wanted))
    except InvalidOperation:  # a word is no number
        return False


def _close_words(actual: str, expected: str, tolerance: float) -> bool:
    try:
        numbers = [Decimal(word) if word.lstrip("+-").isdecimal() else float(word) for word in (actual, expected)]
    except (ValueError, InvalidOperation):
        return False
    return _close(numbers[0], numbers[1], tolerance)


def _close(actual: Any, expected: Any, tolerance: float) -> bool:
    if not (isinstance(actual, float) or isinstance(expected, float)):  # whole numbers
        return bool(actual == expected)
    try:
        actual, expected = float(actual), float(expected)
    except OverflowError:
        return False
    if not (math.isfinite(actual) and math.isfinite(expected)):
        return bool(actual == expected)
    return bool(abs(actual - expected) <= tolerance * max(1.0, abs(expected)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(key: Any) -> Any:
    """Write a key as JSON has it: `json.loads` gives texts for the numbers that a program uses."""
    return str(key) if isinstance(key, int | float) else key
