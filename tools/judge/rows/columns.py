"""The columns of a row: read by a format, known to be harmless, or refused by name.

A column that holds tests, a checker or a limit changes what a right program is. A reader that overlooks it pays for
wrong programs, or refuses right ones, without a word. So every format names the columns that it reads and the columns
that it knows to be labels, and any other column whose name or content is that of a test is an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.judge.cases import Problem
from toolgym.tools.judge.extraction import language_of


class UnusableRowError(ConfigError):
    """A row that its data set is known to have and that is not a task, for example because it has no tests."""


def names(text: str) -> frozenset[str]:
    """Return the names in a text that separates them by commas."""
    return frozenset(text.split(", "))


@dataclass(frozen=True)
class RowFormat:
    """A format of rows.

    Attributes:
        name: name of the data set, which becomes `Problem.source`.
        marks: columns that tell the format. A row has it if all of them have a value.
        uses: columns that `read` reads, the marks among them.
        labels: columns that are known not to change what is right.
        read: reads a row, for programs in a language. A column that is missing may be a KeyError.
        matches: whether a row with these marks has this format. Default: always.
        any_language: whether the row itself may say the language of its programs.
    """

    name: str
    marks: tuple[str, ...]
    uses: frozenset[str]
    labels: frozenset[str]
    read: Callable[[Mapping[str, Any], str], Problem]
    matches: Callable[[Mapping[str, Any]], bool] = lambda row: True
    any_language: bool = False

    def fits(self, row: Mapping[str, Any]) -> bool:
        return all(row.get(mark) is not None for mark in self.marks) and self.matches(row)


_TESTS = names(
    "assert, assertion, assertions, cases, check, checker, checks, eval, evaluator, expected, examples, "
    "generator, grader, graders, harness, input, inputs, interactor, io, judge, oracle, output, outputs, "
    "scorer, stdin, stdout, test, testcase, testcases, tests, unittest, unittests, validator, verifier, "
    "verify, verification, setup, prelude, grading"
)
"""Words in the name of a column that holds tests."""

_LIMITS = names(
    "atol, eps, epsilon, limit, limits, memory, precision, rtol, seconds, timeout, timelimit, memorylimit, tolerance"
)
"""Words in the name of a column that holds a limit or a rule of comparison."""

_CASE_KEYS = (
    {"input", "output"}, {"inputs", "outputs"}, {"stdin", "stdout"}, {"input", "expected_output"},
    {"stdin", "expected"}, {"args", "expected"}, {"test_cases"}, {"testcases"}, {"input", "expected"},
)  # fmt: skip
"""Keys of an object that is a test, or that holds tests."""

_TEST_SOURCE = re.compile(r"^(?:assert\b.|def check\(|def test_\w*\(|class \w+\((?:unittest\.)?TestCase\))", re.M)
_LANGUAGE_COLUMNS = ("language", "lang", "programming_language")


def check_columns(row: Mapping[str, Any], row_format: RowFormat, ignore: Collection[str] = ()) -> None:
    """Raise ConfigError for a column that may hold tests or limits and that the format does not read."""
    what = f"a row of {row_format.name}"
    check_names(row, row_format.uses | row_format.labels | frozenset(ignore), what)
    if row_format.any_language:
        return
    for name in _LANGUAGE_COLUMNS:
        value = row.get(name)
        if name in ignore or not isinstance(value, str) or is_python(value):
            continue
        raise ConfigError(
            f"the column {name!r} of {what} asks for programs in {value!r}, and its tests are read as tests of Python "
            "programs; leave the row out, or name the column among those to ignore if it means something else"
        )


def check_names(
    fields: Mapping[str, Any],
    known: Collection[str],
    what: str,
    words: Collection[str] = (),
    *,
    way_out: str = "Remove the column, or name it among those to ignore if it does not matter",
) -> None:
    """Raise ConfigError for a field that is not known and that has the name or the content of a test or a limit.

    Args:
        fields: the fields.
        known: fields that are read, and fields that are known not to matter.
        what: the fields' owner, for the error.
        words: further words in the name of a field that matters.
        way_out: the end of the error, which says what a caller can do.
    """
    for name, value in fields.items():
        if name in known:
            continue
        reason = _suspicion(str(name), value, words)
        if reason:
            raise ConfigError(
                f"the column {name!r} of {what} is not read, and {reason}: {shorten(repr(value), 80)}. Rows are read "
                f"whole or refused, because such a column changes what is right if it is overlooked. {way_out}"
            )


def is_python(tag: str) -> bool:
    return language_of(tag.strip().lower()) == "python" or bool(re.fullmatch(r"(?i)python ?3?[\d.]*", tag.strip()))


def _suspicion(name: str, value: Any, more: Collection[str]) -> str:
    """Return why a column may hold tests or limits; empty if it does not look like that."""
    if is_empty(value):
        return ""
    words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))
    if words & _LIMITS:
        return "its name is that of a limit"
    if isinstance(value, bool | int | float):
        return ""
    if words & _TESTS:
        return "its name is that of tests"
    if not words.isdisjoint(more):
        return "its name is that of a part of the question or of the answer"
    if _holds_tests(value):
        return "its content looks like tests"
    return ""


def _holds_tests(value: Any) -> bool:
    if isinstance(value, str):
        if value[:1] in ("[", "{") and len(value) < 1 << 24:
            try:
                return _holds_tests(json.loads(value))
            except (ValueError, RecursionError):
                return bool(_TEST_SOURCE.search(value))
        return bool(_TEST_SOURCE.search(value)) and "```" not in value
    if isinstance(value, Mapping):
        keys = {str(key).lower() for key in value}
        return any(case <= keys for case in _CASE_KEYS)
    if isinstance(value, list | tuple):
        return any(_holds_tests(item) for item in value[:3])
    return False


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: None, an empty text or container, or an object that Arrow has filled with None."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    if isinstance(value, Mapping):
        return all(is_empty(item) for item in value.values())
    if isinstance(value, list | tuple):
        return not value
    return isinstance(value, float) and math.isnan(value)


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it: arrays of NumPy, as pandas reads Parquet with, become lists, and NaN is None."""
    return {str(name): None if isinstance(value, float) and math.isnan(value) else plain(value)
            for name, value in row.items()}  # fmt: skip


def plain(value: Any) -> Any:
    """Return a value with lists for NumPy's arrays, and Python's numbers for NumPy's."""
    if (isinstance(value, str | bool | int | float | bytes) and type(value).__module__ == "builtins") or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return value


def read_json(what: str, value: Any) -> Any:
    """Return the value of a JSON text; any other value as it is. Raises ConfigError if a text is not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} must be JSON, got {shorten(value, 80)!r}: {error}") from error


def row_id(row: Mapping[str, Any], *columns: str) -> str:
    """Return the first of these columns that has a value, as text; empty if none has.

    A whole number stays one, although pandas reads it as a float where other rows lack it.
    """
    value = next((row[column] for column in columns if not is_empty(row.get(column))), "")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def other_columns(row: Mapping[str, Any], used: Iterable[str]) -> dict[str, Any]:
    """Return the columns of a row that are not among those used."""
    return {name: value for name, value in row.items() if name not in set(used)}


_UNITS = {
    "": 1.0, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "millisecond": 1e-3,
    "milliseconds": 1e-3, "min": 60.0, "minute": 60.0, "minutes": 60.0,
}  # fmt: skip
_SIZES = {
    "": 1.0, "mb": 1.0, "mib": 1.0, "m": 1.0, "megabyte": 1.0, "megabytes": 1.0, "kb": 2**-10, "kib": 2**-10,
    "kilobyte": 2**-10, "kilobytes": 2**-10, "gb": 2.0**10, "gib": 2.0**10, "gigabyte": 2.0**10, "gigabytes": 2.0**10,
    "bytes": 2.0**-20, "byte": 2.0**-20, "b": 2.0**-20,
}  # fmt: skip


def seconds(what: str, value: Any) -> float | None:
    """Read a limit of time: a number of seconds, a text such as `2.0 seconds`, or `{"seconds", "nanos"}`."""
    if isinstance(value, Mapping):
        if is_empty(value):
            return None
        if not set(value) <= {"seconds", "nanos"}:
            raise ConfigError(f"{what} must have seconds and nanos, got {shorten(repr(value), 80)}")
        whole, nanos = value.get("seconds") or 0, value.get("nanos") or 0
        return _limit(what, whole + nanos / 1e9 if isinstance(whole, int | float) else None, value)
    return _measure(what, value, _UNITS)


def megabytes(what: str, value: Any, *, unit: str = "") -> int | None:
    """Read a limit of memory in MiB: a number of the unit, or a text such as `256.0 megabytes`."""
    size = _measure(what, value, _SIZES)
    if size is None:
        return None
    return max(1, math.ceil(size * _SIZES[unit]))


def _measure(what: str, value: Any, units: Mapping[str, float]) -> float | None:
    """Read a number with a unit. Of a range, such as `1 - 2 seconds`, the larger end is taken."""
    if is_empty(value):
        return None
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("none", "null", "nan", "unlimited", "-"):
            return None
        match = re.fullmatch(r"(?:([\d.]+)\s*(?:-|to)\s*)?([\d.]+)\s*\(?([a-z]*)\)?\.?", text)
        try:
            number = max(float(part) for part in match.groups()[:2] if part) if match else None
        except ValueError:
            number = None
        factor = units.get(match[3]) if match else None
        return _limit(what, None if number is None or factor is None else number * factor, value)
    return _limit(what, value, value)


def _limit(what: str, number: Any, value: Any) -> float | None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number) or number < 0:
        raise ConfigError(f"{what} must be a limit, as a number or as text with a unit; got {shorten(repr(value), 80)}")
    return float(number) or None
