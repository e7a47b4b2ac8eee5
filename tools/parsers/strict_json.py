"""Reading JSON out of a turn: strictly where a value could be meant in two ways, leniently where nothing is guessed.

Raw line breaks and tabs inside strings are accepted: models write programs that way. A key that occurs twice, `NaN`,
`Infinity` and numbers that overflow are problems that the model reads: any value for them would be invented.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from toolgym.tools.parsers.scan import TurnBuilder
from toolgym.tools.schema import CallProblem

MAX_DEPTH = 100
"""Deepest nesting of a call's JSON. What is deeper could be read here and still be too deep for its reader."""


class Json(NamedTuple):
    """A JSON value in a text.

    Attributes:
        value: the value; None where it could not be read.
        end: where it ends; -1 where that is not known.
        problem: what is wrong with it; empty when nothing is.
    """

    value: Any
    end: int
    problem: str


class _OddError(Exception):
    """The value needs a closer look."""


def _plain_pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(items)
    if len(plain) != len(items):
        raise _OddError
    return plain


def _plain_decimal(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _OddError
    return number


def _no_constant(_: str) -> None:
    raise _OddError


# Not strict: raw control characters may stand in strings.
_PLAIN = json.JSONDecoder(
    strict=False, object_pairs_hook=_plain_pairs, parse_constant=_no_constant, parse_float=_plain_decimal
)


def read_json(text: str, at: int) -> Json:
    """Read the JSON value that begins at `at`. Never raises."""
    try:
        value, end = _PLAIN.raw_decode(text, at)
    except (_OddError, ValueError, RecursionError):
        return _looked_at(text, at)
    if text.count("{", at, end) + text.count("[", at, end) >= MAX_DEPTH and is_deep(value):
        return Json(None, end, f"nested more than {MAX_DEPTH} levels deep")
    return Json(value, end, "")


def _looked_at(text: str, at: int) -> Json:
    """As `read_json`, in three times the time: it says what is wrong."""
    problems: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        plain = dict(items)
        if len(plain) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            problems.append(f"the key {twice!r} occurs twice in one object")
        return plain

    def constant(name: str) -> None:
        problems.append(f"{name} is not JSON")

    def decimal(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            problems.append(f"the number {digits[:40]} is too large")
        return number

    decoder = json.JSONDecoder(strict=False, object_pairs_hook=pairs, parse_constant=constant, parse_float=decimal)
    try:
        value, end = decoder.raw_decode(text, at)
    except json.JSONDecodeError as error:
        near = text[max(at, error.pos - 20) : error.pos + 20]
        return Json(None, -1, f"{error.msg} near {near!r}" if near else error.msg)
    except RecursionError:
        return Json(None, -1, "nested too deeply")
    except ValueError:  # Python's limit against slow conversions
        return Json(None, -1, "a number has too many digits")
    if problems:
        return Json(None, end, problems[0])
    if is_deep(value):
        return Json(None, end, f"nested more than {MAX_DEPTH} levels deep")
    return Json(value, end, "")


def read_whole_json(text: str) -> Json:
    """Read a text that is one JSON value and nothing else but white space."""
    text = text.strip()
    parsed = read_json(text, 0)
    if not parsed.problem and parsed.end != len(text):
        return Json(None, -1, f"unexpected text {text[parsed.end :][:40]!r} after the value")
    return parsed


def add_object_call(
    turn: TurnBuilder, value: object, raw: str, *, keys: tuple[str, ...], shape: str, call_id: str = ""
) -> None:
    """Add the call that a JSON object with a name and arguments stands for, or the error that says why it is none.

    Args:
        turn: collects.
        value: the decoded JSON.
        raw: the text that the model wrote.
        keys: under which the arguments may stand. A string that holds an object is read, as the OpenAI API sends them.
        shape: how a call is written, for the error.
        call_id: the id that the model wrote.
    """
    name: Any = ""
    arguments: Any = None
    problem = ""
    if not isinstance(value, dict):
        problem = f"expected a JSON object, got {type(value).__name__}"
    else:
        name = value.get("name")
        key = next((key for key in keys if key in value), None)
        if not isinstance(name, str) or not name:
            problem = "'name' is missing or not a string"
        elif key is None:
            problem = f"'{keys[0]}' is missing"
        else:
            arguments = value[key]
            if isinstance(arguments, str):
                arguments, _, why = read_whole_json(arguments)
                problem = f"'{key}' is a string that holds no JSON object: {why}" if why else ""
            if not problem and not isinstance(arguments, dict):
                problem = f"'{key}' must be an object, got {type(arguments).__name__}"
    if problem:
        message = f"The tool call is not understood: {problem}. Write it as {shape}."
        known = name if isinstance(name, str) else ""
        turn.add_error(CallProblem.NOT_A_CALL, message, raw, known, call_id)
    else:
        turn.add_call(name, arguments, call_id)


def is_deep(value: object) -> bool:
    """Whether lists and objects are nested more than `MAX_DEPTH` levels."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True
