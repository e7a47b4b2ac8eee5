"""The Hermes format, which Qwen 2.5 and Qwen 3 models write too.

    <tool_call>
    {"name": "code_interpreter", "arguments": {"code": "print(1)"}}
    </tool_call>

Decisions, each with a test:

* Several calls keep their order; malformed ones keep their place among them.
* A closing tag inside a JSON string does not end the call.
* Raw line breaks and tabs inside JSON strings are accepted: models write programs that way, and nothing is guessed.
* `arguments` may be a JSON string that holds an object, as the OpenAI API sends them. Arguments are never invented.
* Text inside `<think>…</think>` is thought: calls there are not calls. A call inside a `<think>` that never closes
  is an error that the model reads, so that the turn does not end in silence.
* A call without its closing tag is an error, even if its JSON is complete: the turn may have been cut.
"""

from __future__ import annotations

import json
import re

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"

_DECODER = json.JSONDecoder(strict=False)  # not strict: raw control characters may stand in strings
_SPACE = re.compile(r"\s*")

MAX_DEPTH = 100
"""Deepest nesting of a call's JSON. What is deeper could be read here and still be too deep for whoever gets it."""


def parse_hermes(text: str, *, first_id: int = 0) -> ParsedTurn:
    """Read a turn in the Hermes format. See the module for the decisions, and `Parser` for the arguments."""
    calls: list[ToolCall] = []
    errors: list[ToolCallError] = []
    content: list[str] = []
    at = 0
    while at < len(text):
        call_at, think_at = text.find(OPEN, at), text.find(THINK, at)
        if think_at != -1 and (call_at == -1 or think_at < call_at):
            end = text.find(END_THINK, think_at)
            if end == -1:
                content.append(text[at:])
                if OPEN in text[think_at:]:
                    index = len(calls) + len(errors)
                    errors.append(_thinking_error(text[text.find(OPEN, think_at) :], index, first_id))
                break
            content.append(text[at : end + len(END_THINK)])
            at = end + len(END_THINK)
            continue
        if call_at == -1:
            content.append(text[at:])
            break
        content.append(text[at:call_at])
        index = len(calls) + len(errors)
        found, at = _read_call(text, call_at + len(OPEN), index, f"call_{first_id + index}")
        if isinstance(found, ToolCall):
            calls.append(found)
        else:
            errors.append(found)
    return ParsedTurn("".join(content), calls, errors)


def _read_call(text: str, start: int, index: int, call_id: str) -> tuple[ToolCall | ToolCallError, int]:
    """Read the call whose opening tag ends at `start`; return it and where to go on."""
    json_at = _match_end(text, start)
    try:
        value, json_end = _DECODER.raw_decode(text, json_at)
    except (ValueError, RecursionError) as error:
        return _malformed(text, start, index, call_id, error)
    close_at = _match_end(text, json_end)
    if not text.startswith(CLOSE, close_at):
        end = text.find(CLOSE, json_end)
        next_open = text.find(OPEN, json_end)
        if end == -1 or (next_open != -1 and next_open < end):
            stop = len(text) if next_open == -1 else next_open
            return _unclosed(text[start:stop], index, call_id), stop
        extra = text[json_end:end].strip()
        message = (
            f"The tool call is not valid JSON: unexpected text {extra[:40]!r} after the object. "
            f"Put exactly one JSON object between {OPEN} and {CLOSE}."
        )
        raw = text[start:end]
        return ToolCallError(CallProblem.MALFORMED_JSON, message, raw, call_id, index), end + len(CLOSE)
    raw = text[start:close_at]
    return _to_call(value, raw, index, call_id), close_at + len(CLOSE)


def _malformed(
    text: str, start: int, index: int, call_id: str, error: ValueError | RecursionError
) -> tuple[ToolCallError, int]:
    end = text.find(CLOSE, start)
    next_open = text.find(OPEN, start)
    if end == -1 or (next_open != -1 and next_open < end):
        stop = len(text) if next_open == -1 else next_open
        return _unclosed(text[start:stop], index, call_id), stop
    raw = text[start:end]
    why = "nested too deeply"
    if isinstance(error, ValueError):
        why = "a number has too many digits"  # Python's limit against slow conversions
    if isinstance(error, json.JSONDecodeError):
        near = text[max(start, error.pos - 20) : min(end, error.pos + 20)]
        why = f"{error.msg} near {near!r}" if near else error.msg
    message = (
        f'The tool call is not valid JSON: {why}. Write it as {OPEN}{{"name": "<tool>", "arguments": {{...}}}}{CLOSE}.'
    )
    return ToolCallError(CallProblem.MALFORMED_JSON, message, raw, call_id, index), end + len(CLOSE)


def _unclosed(raw: str, index: int, call_id: str) -> ToolCallError:
    message = f"The tool call was not run: its closing {CLOSE} is missing. Send the whole call again."
    return ToolCallError(CallProblem.UNCLOSED_TAG, message, raw, call_id, index)


def _thinking_error(raw: str, index: int, first_id: int) -> ToolCallError:
    message = (
        f"The tool call was not run: it stands inside {THINK}, which was never closed. "
        f"Close it with {END_THINK} first, then send the call."
    )
    return ToolCallError(CallProblem.OPEN_THINKING, message, raw, f"call_{first_id + index}", index)


def _to_call(value: object, raw: str, index: int, call_id: str) -> ToolCall | ToolCallError:
    problem = ""
    name: object = ""
    arguments: object = None
    if not isinstance(value, dict):
        problem = f"expected a JSON object, got {type(value).__name__}"
    else:
        name, arguments = value.get("name"), value.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = _DECODER.decode(arguments)
            except (ValueError, RecursionError):
                problem = "'arguments' is a string that holds no JSON"
        if not isinstance(name, str) or not name:
            problem = "'name' is missing or not a string"
        elif "arguments" not in value:
            problem = "'arguments' is missing"
        elif not problem and not isinstance(arguments, dict):
            problem = f"'arguments' must be an object, got {type(arguments).__name__}"
        elif not problem and _is_deep(arguments):
            problem = f"'arguments' are nested more than {MAX_DEPTH} levels deep"
    if problem:
        message = f'The tool call is not understood: {problem}. Write it as {{"name": "<tool>", "arguments": {{...}}}}.'
        known_name = name if isinstance(name, str) else ""
        return ToolCallError(CallProblem.NOT_A_CALL, message, raw, call_id, index, known_name)
    assert isinstance(name, str)
    assert isinstance(arguments, dict)
    return ToolCall(call_id, name, arguments, index)


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _match_end(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    assert match is not None  # the pattern matches the empty string
    return match.end()
