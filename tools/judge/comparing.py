"""Compares a program's output or result with the expected one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

TOLERANCE = 1e-5
"""Tolerance of data sets of SandboxFusion."""

ALLCLOSE_ABSOLUTE, ALLCLOSE_RELATIVE = 1e-8, 1e-5
"""The defaults of `numpy.allclose`, by which the judges of APPS, TACO and verl compare printed numbers."""


def same_output(
    actual: str,
    expected: str,
    *,
    tolerance: float | None = None,
    close: bool = False,
    ignore_case: bool = False,
    any_lines: bool = False,
) -> bool:
    """Compare two outputs line by line and word by word.

    White space around lines and empty lines at both ends do not count. Without a rule for numbers, a line that has only
    numbers may write them in another way, `0.5` for `0.50` or `1e3` for `1000`, as in LiveCodeBench. With a rule, each
    word that is a number may differ by it, but two whole numbers must be the same: 10000001 is not 10000000. The time
    grows linearly with the length of the outputs.

    Args:
        actual: output of the program.
        expected: the right output.
        tolerance: largest difference of two numbers. See `StdioTest`.
        close: compare numbers as `numpy.allclose` does. See `StdioTest`.
        ignore_case: whether letters may differ in case.
        any_lines: whether line breaks count as blanks.
    """
    left, right = actual.strip(), expected.strip()
    if ignore_case:
        left, right = left.lower(), right.lower()
    if left == right:
        return True
    rule = _rule(tolerance, close)
    if any_lines:
        return _same_line(left, right, rule)
    lines, wanted = left.split("\n"), right.split("\n")
    return len(lines) == len(wanted) and all(
        line == other or _same_line(line, other, rule) for line, other in zip(lines, wanted, strict=True)
    )


def same_value(actual: Any, expected: Any, *, tolerance: float | None = None, close: bool = False) -> bool:
    """Compare two values. Tuples count as lists, and numbers may differ as for `same_output`."""
    return _same_value(actual, expected, _rule(tolerance, close))


Rule: TypeAlias = tuple[float, float, float]
"""Two numbers may differ by `absolute + relative * max(floor, abs(expected))`."""


def _rule(tolerance: float | None, close: bool) -> Rule | None:
    if close:
        return (ALLCLOSE_ABSOLUTE, ALLCLOSE_RELATIVE, 0.0)
    return None if tolerance is None else (0.0, tolerance, 1.0)


def _same_value(actual: Any, expected: Any, rule: Rule | None) -> bool:
    if isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(
            _same_value(left, other, rule) for left, other in zip(actual, expected, strict=True)
        )
    if isinstance(actual, dict) and isinstance(expected, dict):
        values = {_key(key): value for key, value in actual.items()}
        wanted = {_key(key): value for key, value in expected.items()}
        if len(values) != len(actual) or values.keys() != wanted.keys():  # 1 and "1" are not one key
            return False
        return all(_same_value(values[key], wanted[key], rule) for key in wanted)
    if rule is not None and _is_number(actual) and _is_number(expected):
        return _close(actual, expected, rule)
    return bool(actual == expected)


def _same_line(actual: str, expected: str, rule: Rule | None) -> bool:
    words, wanted = actual.split(), expected.split()
    if words == wanted:
        return True
    if len(words) != len(wanted):
        return False
    if rule is not None:
        return all(word == want or _close_words(word, want, rule) for word, want in zip(words, wanted, strict=True))
    try:
        return list(map(Decimal, words)) == list(map(Decimal, wanted))
    except InvalidOperation:  # a word is not a number
        return False


def _close_words(actual: str, expected: str, rule: Rule) -> bool:
    try:
        numbers = [Decimal(word) if word.lstrip("+-").isdecimal() else float(word) for word in (actual, expected)]
    except (ValueError, InvalidOperation):
        return False
    return _close(numbers[0], numbers[1], rule)


def _close(actual: Any, expected: Any, rule: Rule) -> bool:
    if not (isinstance(actual, float) or isinstance(expected, float)):  # whole numbers
        return bool(actual == expected)
    try:
        actual, expected = float(actual), float(expected)
    except OverflowError:
        return False
    if not (math.isfinite(actual) and math.isfinite(expected)):
        return bool(actual == expected)
    absolute, relative, floor = rule
    return bool(abs(actual - expected) <= absolute + relative * max(floor, abs(expected)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _key(key: Any) -> Any:
    """Write a key as JSON does: `json.loads` returns texts for the numbers that a program uses as keys."""
    return str(key) if isinstance(key, int | float) else key


# ---------------------------------------------------------------------- values of functions


class Other:
    """A value that JSON lacks, so that no test expects it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def read_value(encoded: Any) -> Any:
    """Read a value that `inside.values.plain` has written."""
    if isinstance(encoded, list):
        return [read_value(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if "dict" in encoded:
        pairs = [(_hashable(read_value(key)), read_value(item)) for key, item in encoded["dict"]]
        value = dict(pairs)
        return value if len(value) == len(pairs) else Other("a dictionary with equal keys")
    if "int" in encoded:
        return int(encoded["int"], 16)
    return Other(encoded["other"])


def _hashable(key: Any) -> Any:
    """Return a key that a dictionary takes. Only a forged value has a dictionary as a key."""
    if isinstance(key, dict):
        return Other("a dictionary")
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def is_right(what: str, actual: Any, wanted: Sequence[Any], rules: Mapping[str, Any]) -> bool:
    """Return whether an output (`what` is `output`) or an encoded value is one of those that are wanted."""
    if what == "output":
        return any(same_output(actual, expected, **rules) for expected in wanted)
    value = read_value(actual)
    return any(same_value(value, read_value(expected), **rules) for expected in wanted)
