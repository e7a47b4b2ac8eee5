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

SGLang's `qwen25` wants the line breaks around the JSON and does not see a call without them; both of its parsers end
a call at the first closing tag, even inside a string, drop what they cannot read, accept `parameters` for `arguments`
and calls inside of thinking, and keep no text after the first call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.scan import TurnBuilder, region_end, scan, skip_space
from toolgym.tools.parsers.strict_json import add_object_call, read_json
from toolgym.tools.schema import CallProblem, ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = f'{OPEN}{{"name": "<tool>", "arguments": {{...}}}}{CLOSE}'


def parse_hermes(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn in the Hermes format. See the module for the decisions, and `Parser` for the arguments."""
    return scan(text, TurnBuilder(first_id), OPEN, _read, starts_open=starts_open)


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    start = mark.end()
    parsed = read_json(text, skip_space(text, start))
    if parsed.end == -1:
        end, closed = region_end(text, start, CLOSE, OPEN)
        if not closed:
            return _unclosed(text, start, end, turn)
        message = f"The tool call is not valid JSON: {parsed.problem}. Write it as {SHAPE}."
        turn.add_error(CallProblem.MALFORMED_JSON, message, text[start:end])
        return end + len(CLOSE)
    close = skip_space(text, parsed.end)
    if not text.startswith(CLOSE, close):
        end, closed = region_end(text, parsed.end, CLOSE, OPEN)
        if not closed:
            return _unclosed(text, start, end, turn)
        extra = text[parsed.end : end].strip()
        message = (
            f"The tool call is not valid JSON: unexpected text {extra[:40]!r} after the object. "
            f"Put exactly one JSON object between {OPEN} and {CLOSE}."
        )
        turn.add_error(CallProblem.MALFORMED_JSON, message, text[start:end])
        return end + len(CLOSE)
    raw = text[start:close]
    if parsed.problem:
        message = f"The tool call is not valid JSON: {parsed.problem}. Write it as {SHAPE}."
        turn.add_error(CallProblem.MALFORMED_JSON, message, raw)
    else:
        add_object_call(turn, parsed.value, raw, keys=("arguments",), shape=SHAPE)
    return close + len(CLOSE)


def _unclosed(text: str, start: int, end: int, turn: TurnBuilder) -> int:
    message = f"The tool call was not run: its closing {CLOSE} is missing. Send the whole call again."
    turn.add_error(CallProblem.UNCLOSED_TAG, message, text[start:end])
    return end
