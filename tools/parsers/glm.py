"""The format of GLM 4.5 and 4.6, and of 4.7, which leaves the line breaks out.

    <tool_call>code_interpreter
    <arg_key>code</arg_key>
    <arg_value>print(1)</arg_value>
    </tool_call>

Decisions, each with a test:

* White space between tags belongs to the format; all text between `<arg_value>` and `</arg_value>` is data.
* Values are text or JSON; the tool's schema tells which (`toolgym.tools.parsers.typed_text`).
* Nothing escapes a value. It ends at the first closing tag after which the call goes on, so that code may hold
  `</tool_call>`. A value that holds `<arg_key>` is an error where it may be a missing closing tag.
* A call may have no arguments: chat templates write such calls this way.

SGLang's `glm45` needs a line break after the name (`glm47` does not), ends a call at the first `</tool_call>` even
inside of a value, guesses types where there is no schema, takes quotes off strings, lets the last of two equal keys
win, and returns the whole turn as content where one call cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.scan import TurnBuilder, region_end, scan, skip_space
from toolgym.tools.parsers.tagged_values import holds_another, value_end
from toolgym.tools.parsers.typed_text import typed
from toolgym.tools.schema import CallProblem, ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = f"{OPEN}tool\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n{CLOSE}"

_NAME = re.compile(r"\s*([^\s<>{}\"']+)\s*(?=<|$)")
_KEY = re.compile(r"\s*<arg_key>([^<>\n]+)</arg_key>\s*<arg_value>")
_END_VALUE = "</arg_value>"
_FOLLOWS = re.compile(rf"\s*(?:<arg_key>|{CLOSE})")


def parse_glm(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn in this format. See the module for the decisions, and `Parser` for the arguments."""

    def read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
        return _read(text, mark.end(), turn, schemas)

    return scan(text, TurnBuilder(first_id), OPEN, read, starts_open=starts_open)


def _read(text: str, start: int, turn: TurnBuilder, schemas: Mapping[str, ToolSchema] | None) -> int:
    named = _NAME.match(text, start)
    if not named:
        return _malformed(text, start, start, turn, "", f"expected a tool's name, got {text[start : start + 30]!r}")
    name, at = named[1], named.end()
    texts: dict[str, str] = {}
    while key := _KEY.match(text, at):
        end = value_end(text, key.end(), _END_VALUE, _FOLLOWS)
        if end == -1:
            why = f"the value of {key[1]!r} has no closing {_END_VALUE}"
            return _malformed(text, start, key.end(), turn, name, why)
        value = text[key.end() : end]
        if holds_another(value, "<arg_key>", _END_VALUE):
            why = (
                f"the value of {key[1]!r} has no closing {_END_VALUE}, or holds '<arg_key>' itself, which cannot be "
                "told apart"
            )
            return _malformed(text, start, end, turn, name, why)
        if key[1].strip() in texts:
            return _malformed(text, start, end, turn, name, f"the key {key[1]!r} occurs twice")
        texts[key[1].strip()] = value
        at = end + len(_END_VALUE)
    close = skip_space(text, at)
    if not text.startswith(CLOSE, close):
        came = f"got {text[close : close + 30]!r}" if close < len(text) else "but the text ended"
        why = f"expected <arg_key>key</arg_key><arg_value>value{_END_VALUE} or {CLOSE}, {came}"
        return _malformed(text, start, close, turn, name, why)
    turn.add_call(name, typed(name, texts, schemas))
    return close + len(CLOSE)


def _malformed(text: str, start: int, at: int, turn: TurnBuilder, name: str, why: str) -> int:
    end, closed = region_end(text, at, CLOSE, OPEN)
    if closed:
        message = f"The tool call is not understood: {why}. Write it as:\n{SHAPE}"
        turn.add_error(CallProblem.MALFORMED_CALL, message, text[start:end], name)
        return end + len(CLOSE)
    message = f"The tool call was not run: its closing {CLOSE} is missing. Send the whole call again."
    turn.add_error(CallProblem.UNCLOSED_TAG, message, text[start:end], name)
    return end
