"""The format of Qwen 3 Coder, Qwen 3.5 and later, and Nemotron 3: one pair of tags per argument.

    <tool_call>
    <function=code_interpreter>
    <parameter=code>
    print(1)
    </parameter>
    </function>
    </tool_call>

Decisions, each with a test:

* One line break after the opening and one before the closing tag of a value belong to the format; the rest is data.
* Values are text; the tool's schema types them (`toolgym.tools.parsers.tagged_values`).
* For a string that may be null, `None` and `null` are null. A run with a chat template reads only what the template
  writes for null, which is `None` in those of Qwen (`toolgym.rollout.tokens.parser_choice`).
* Nothing escapes a value. It may hold `</tool_call>`, HTML, and pairs such as `<parameter>x</parameter>`. A value that
  holds tags of this format otherwise, misspelt ones included, is an error: it cannot be distinguished from two values
  with a damaged tag between them (`toolgym.tools.parsers.tagged_values.ValueTags`).
* A call may have no parameters: chat templates write such calls this way.
* A function without `<tool_call>` around it is an error, as is a parameter that occurs twice, and a closing tag or a
  parameter outside of any call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import NULLS, TurnBuilder, add_stray, came, region_end, scan, skip_space
from toolgym.tools.parsers.tagged_values import (
    MalformedError,
    ValueTags,
    add_malformed,
    parameters_of,
    read_value,
    require_whole,
    typed,
)
from toolgym.tools.schema import ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = f"{OPEN}\n<function=tool>\n<parameter=key>\nvalue\n</parameter>\n</function>\n{CLOSE}"

_FUNCTION_TAG = "<function="
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_END_FUNCTION = "</function>"
_TAGS = ValueTags(
    "</parameter>",
    opening=re.compile(r"<parameter=(?P<key>[^<>\n]*)>?"),
    follows=re.compile(r"\s*(?:<parameter=|</function>)"),
    names=("parameter",),
    form="=",
)
_STRAY = "<parameter=|</parameter>|</function>|</tool_call>"


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    start = mark.start()
    if mark.group() not in (OPEN, _FUNCTION_TAG):
        return add_stray(turn, text, mark, OPEN, CLOSE, SHAPE)
    if mark.group() != OPEN:
        end, closed = region_end(text, start, CLOSE, OPEN)
        why = f"a function must stand between {OPEN} and {CLOSE}"
        turn.add_misread(why, f"Write it as:\n{SHAPE}", text[start:end])
        return end + len(CLOSE) if closed else end
    try:
        calls, end = _calls(text, mark.end(), turn.schemas)
    except MalformedError as error:
        return add_malformed(turn, error, text, start, opening=OPEN, close=CLOSE, shape=SHAPE)
    for name, texts in calls:
        turn.add_call(name, typed(name, texts, turn.schemas, turn.nulls))
    return end


def _calls(
    text: str, at: int, schemas: Mapping[str, ToolSchema] | None
) -> tuple[list[tuple[str, dict[str, str]]], int]:
    calls: list[tuple[str, dict[str, str]]] = []
    name = ""
    while opened := _FUNCTION.match(text, at):
        name, at = opened[1].strip(), opened.end()
        known, doubts = parameters_of(name, schemas), []
        texts: dict[str, str] = {}
        while parameter := _PARAMETER.match(text, at):
            key = parameter[1].strip()
            value, at, doubt = read_value(text, parameter.end(), key, name, _TAGS, known)
            doubts.append(doubt)
            if key in texts:
                raise MalformedError(f"the parameter {key!r} occurs twice", at, name)
            texts[key] = value.removeprefix("\n").removesuffix("\n")
        at = skip_space(text, at)
        if not text.startswith(_END_FUNCTION, at):
            raise MalformedError(f"expected <parameter=...> or {_END_FUNCTION}, {came(text, at)}", at, name)
        require_whole(doubts, texts, known)
        at += len(_END_FUNCTION)
        calls.append((name, texts))
    at = skip_space(text, at)
    if not calls or not text.startswith(CLOSE, at):
        expected = CLOSE if calls else "<function=...>"
        raise MalformedError(f"expected {expected}, {came(text, at)}", at, name)
    return calls, at + len(CLOSE)


parse_qwen3_coder: Parser = functools.partial(
    scan,
    opener=f"{OPEN}|{_FUNCTION_TAG}|{_STRAY}",
    read=_read,
    openings=(OPEN, _FUNCTION_TAG),
    nulls=(*NULLS, "None"),
)
