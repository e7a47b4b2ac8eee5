"""JSON in a turn, read strictly if a value could be meant in two ways, leniently if nothing is guessed.

Raw line breaks and tabs inside strings are accepted: models write programs that way. A key that occurs twice, `NaN`,
`Infinity` and numbers that overflow are problems that the model reads: any value for them would be invented.
"""

from __future__ import annotations

import json
import math
import threading
from typing import Any, NamedTuple

from toolgym.tools.parsers.scan import TurnBuilder
from toolgym.tools.schema import CallProblem

MAX_DEPTH = 100
"""Deepest nesting of a call's JSON. What is deeper could be read here and still be too deep for its reader."""


class Json(NamedTuple):
    """`value` is None if it could not be read, `end` is -1 if that is not known, `problem` is empty if nothing is
    wrong."""

    value: Any
    end: int
    problem: str


class _Decoder(threading.local):
    """One for each thread: to make a decoder takes longer than to read a call."""

    def __init__(self) -> None:
        self._problems: list[str] = []
        self._json = json.JSONDecoder(
            strict=False,  # raw control characters may stand in strings
            object_pairs_hook=self._pairs,
            parse_constant=lambda name: self._problems.append(f"{name} is not JSON"),
            parse_float=self._decimal,
        )

    def read(self, text: str, at: int) -> Json:
        self._problems.clear()
        try:
            value, end = self._json.raw_decode(text, at)
        except json.JSONDecodeError as error:
            near = text[max(at, error.pos - 20) : error.pos + 20]
            return Json(None, -1, f"{error.msg} near {near!r}" if near else error.msg)
        except RecursionError:
            return Json(None, -1, "nested too deeply")
        except ValueError:  # Python's limit against slow conversions
            return Json(None, -1, "a number has too many digits")
        if self._problems:
            return Json(None, end, self._problems[0])
        if text.count("{", at, end) + text.count("[", at, end) >= MAX_DEPTH and is_deep(value):
            return Json(None, end, f"nested more than {MAX_DEPTH} levels deep")
        return Json(value, end, "")

    def _pairs(self, items: list[tuple[str, Any]]) -> dict[str, Any]:
        plain = dict(items)
        if len(plain) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self._problems.append(f"the key {twice!r} occurs twice in one object")
        return plain

    def _decimal(self, digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            self._problems.append(f"the number {digits[:40]} is too large")
        return number


read_json = _Decoder().read


def read_whole_json(text: str) -> Json:
    text = text.strip()
    parsed = read_json(text, 0)
    if not parsed.problem and parsed.end != len(text):
        return Json(None, -1, f"unexpected text {text[parsed.end :][:40]!r} after the value")
    return parsed


def add_object_call(
    turn: TurnBuilder, value: object, raw: str, *, keys: tuple[str, ...], shape: str, call_id: str = ""
) -> None:
    """Add the call that a JSON object with a name and arguments stands for, or the error that says why it is none.

    The arguments stand under one of the `keys`. A string that holds an object is read, as the OpenAI API sends them.
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
        known = name if isinstance(name, str) else ""
        turn.add_misread(problem, f"Write it as {shape}.", raw, known, CallProblem.NOT_A_CALL, call_id)
    else:
        turn.add_call(name, arguments, call_id)


def add_named_call(turn: TurnBuilder, name: str, parsed: Json, raw: str, shape: str, call_id: str = "") -> None:
    if parsed.problem:
        message = f"The arguments of the tool call are not valid JSON: {parsed.problem}. Write the call as {shape}."
        turn.add_error(CallProblem.MALFORMED_JSON, message, raw, name, call_id)
    elif not isinstance(parsed.value, dict):
        why = f"its arguments must be a JSON object, got {type(parsed.value).__name__}"
        turn.add_misread(why, f"Write it as {shape}.", raw, name, CallProblem.NOT_A_CALL, call_id)
    else:
        turn.add_call(name, parsed.value, call_id)


def is_deep(value: object) -> bool:
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
