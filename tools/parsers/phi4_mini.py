"""The formats of Phi-4-mini: a JSON list behind a word or between tags, and objects as its template writes them.

    functools[{"name": "code_interpreter", "arguments": {"code": "print(1)"}}]
    <|tool_call|>[{"name": "code_interpreter", "arguments": {"code": "print(1)"}}]<|/tool_call|>
    {"name": "code_interpreter", "arguments": {'code': 'print(1)'}},{"name": "search", "arguments": {}}

The first is what the usual chat template asks for, the second what the model was trained on, the third how that chat
template writes earlier calls. Decisions, each with a test:

* Arguments are a JSON object, or a dict as Python writes it. `parameters` is read as `arguments`.
* Objects without a word or tags before them must begin a line. After other words, and in a list without `functools`,
  the object of an offered tool is an error.
* A tag without the other one is an error, as is an empty list.
* Nothing but the end of its list closes a call behind `functools`; text after it is content.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.python_literals import LiteralError, read_literal
from toolgym.tools.parsers.scan import TurnBuilder, add_stray, came, region_end, scan, skip_space
from toolgym.tools.parsers.strict_json import add_object_call, read_json
from toolgym.tools.parsers.tagged_values import MalformedError

WORD, OPEN, CLOSE = "functools", "<|tool_call|>", "<|/tool_call|>"
KEYS = ("arguments", "parameters")
SHAPE = f'{WORD}[{{"name": "tool", "arguments": {{...}}}}]'

_OBJECT = r'\{(?=\s*"name"\s*:)'
_OPENER = rf"{WORD}\s*+(?=[\[{{])|{re.escape(OPEN)}|{re.escape(CLOSE)}|{_OBJECT}"
_HEAD = re.compile(r'\{\s*+"name"\s*+:\s*+"(?P<name>[^"\\\n]*+)"\s*+,\s*+"(?:arguments|parameters)"\s*+:\s*+')
_NAMED = re.compile(r'\{\s*+"name"\s*+:\s*+"([^"\\\n]*+)"')
_INSIDE = re.compile(r'(?:"\s*:|[{,])\s*\Z')
_LIST = re.compile(r"\[\s*\Z")
"""Text before an object in other JSON, and before the first object of a list."""


Calls = list[tuple[dict[str, Any], str]]
"""Objects with a name and arguments, and their texts."""


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    opening, start = mark.group(), mark.start()
    if opening == CLOSE:
        return add_stray(turn, text, mark, OPEN, CLOSE, SHAPE)
    if opening == "{":
        return _read_objects(text, start, turn)
    try:
        at = skip_space(text, mark.end())
        if opening == OPEN and text.startswith(WORD, at):
            at = skip_space(text, at + len(WORD))
        calls, end = _list(text, at)
        if opening == OPEN:
            end = skip_space(text, end)
            if not text.startswith(CLOSE, end):
                raise MalformedError(f"expected {CLOSE}, {came(text, end)}", end)
            end += len(CLOSE)
    except MalformedError as error:
        return _malformed(text, start, error, turn, CLOSE if opening == OPEN else "")
    _add(calls, turn)
    return end


def _read_objects(text: str, start: int, turn: TurnBuilder) -> int:
    """Read objects that no word or tag opens."""
    before = text[max(0, start - 40) : start]
    named = _NAMED.match(text, start)
    offered = named is not None and named[1] in (turn.schemas or ())
    line = text.rfind("\n", 0, start) + 1
    begins_line = not text[line:start].strip() if start - line < 40 else False
    if not begins_line:
        if offered and not _INSIDE.search(before):
            why = f"the list of calls does not follow {WORD}" if _LIST.search(before) else "it does not begin a line"
            return _malformed(text, start, MalformedError(why, start + 1, named[1] if named else ""), turn, "")
        turn.add_content(text[start])
        return start + 1
    if turn.schemas and not offered and _HEAD.match(text, start) is None:
        turn.add_content(text[start])
        return start + 1
    calls: Calls = []
    at = end = start
    try:
        while True:
            value, end = _object(text, at)
            calls.append((value, text[at:end]))
            at = skip_space(text, end)
            if not text.startswith(",", at):
                break
            at = skip_space(text, at + 1)
    except MalformedError as error:
        return _malformed(text, start, error, turn, "")
    _add(calls, turn)
    return end


def _list(text: str, at: int) -> tuple[Calls, int]:
    calls: Calls = []
    if not text.startswith("[", at):
        raise MalformedError(f"expected a list of calls, {came(text, at)}", at)
    at = skip_space(text, at + 1)
    while not text.startswith("]", at):
        value, end = _object(text, at)
        calls.append((value, text[at:end]))
        at = skip_space(text, end)
        if text.startswith(",", at):
            at = skip_space(text, at + 1)
        elif not text.startswith("]", at):
            raise MalformedError(f"expected ',' or ']', {came(text, at)}", at, str(value.get("name", "")))
    if not calls:
        raise MalformedError("the list of calls is empty", at)
    return calls, at + 1


def _object(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Read a call's object, whose arguments Python may have written; return it and where it ends."""
    head = _HEAD.match(text, at)
    parsed = read_json(text, head.end() if head else at)
    name = head["name"] if head else ""
    if head is None:
        if parsed.problem or not isinstance(parsed.value, dict):
            raise MalformedError(parsed.problem or f"expected an object, {came(text, at)}", at)
        return parsed.value, parsed.end
    value, end = parsed.value, parsed.end
    if parsed.problem:
        try:
            value, end = read_literal(text, head.end())
        except LiteralError:
            raise MalformedError(f"the arguments are not valid JSON: {parsed.problem}", head.end(), name) from None
    closing = skip_space(text, end)
    if not text.startswith("}", closing):
        raise MalformedError(f"expected '}}' after the arguments, {came(text, closing)}", closing, name)
    return {"name": name, "arguments": value}, closing + 1


def _add(calls: Calls, turn: TurnBuilder) -> None:
    for value, raw in calls:
        if turn.full:
            turn.add_overflow_error(raw)
            return
        add_object_call(turn, value, raw, keys=KEYS, shape=SHAPE)


def _malformed(text: str, start: int, error: MalformedError, turn: TurnBuilder, close: str) -> int:
    end, closed = region_end(text, error.at, close, OPEN, f"{WORD}[") if close else (len(text), False)
    if not close:
        end, _ = region_end(text, error.at, OPEN, f"{WORD}[")
    elif not closed:
        turn.add_unclosed(close, text[start:end], error.name)
        return end
    end += len(close) if closed else 0
    turn.add_misread(str(error), f"Write it as {SHAPE}.", text[start:end], error.name)
    return end


parse_phi4_mini: Parser = functools.partial(scan, opener=_OPENER, read=_read, openings=(f"{WORD}[", OPEN))
