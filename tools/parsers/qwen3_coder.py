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
* Nothing escapes a value. It ends at the first closing tag after which the call goes on, so that code may hold
  `</parameter>` or `</tool_call>`. A value that holds `<parameter=` at the beginning of a line, or after a
  `</parameter>`, is an error: it cannot be distinguished from a missing closing tag.
* A call may have no parameters: chat templates write such calls this way.
* A function without `<tool_call>` around it is an error, as is a parameter that occurs twice.
"""

from __future__ import annotations

import functools
import re

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import TurnBuilder, came, region_end, scan, skip_space
from toolgym.tools.parsers.tagged_values import MalformedError, add_malformed, read_value, typed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = f"{OPEN}\n<function=tool>\n<parameter=key>\nvalue\n</parameter>\n</function>\n{CLOSE}"

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_END_VALUE, _END_FUNCTION = "</parameter>", "</function>"
_FOLLOWS = re.compile(r"\s*(?:<parameter=|</function>)")


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    start = mark.start()
    if mark.group() != OPEN:
        end, closed = region_end(text, start, CLOSE, OPEN)
        why = f"a function must stand between {OPEN} and {CLOSE}"
        turn.add_misread(why, f"Write it as:\n{SHAPE}", text[start:end])
        return end + len(CLOSE) if closed else end
    try:
        calls, end = _calls(text, mark.end())
    except MalformedError as error:
        return add_malformed(turn, error, text, start, opening=OPEN, close=CLOSE, shape=SHAPE)
    for name, texts in calls:
        turn.add_call(name, typed(name, texts, turn.schemas))
    return end


def _calls(text: str, at: int) -> tuple[list[tuple[str, dict[str, str]]], int]:
    calls: list[tuple[str, dict[str, str]]] = []
    name = ""
    while opened := _FUNCTION.match(text, at):
        name, at = opened[1].strip(), opened.end()
        texts: dict[str, str] = {}
        while parameter := _PARAMETER.match(text, at):
            key = parameter[1].strip()
            value, at = read_value(
                text, parameter.end(), key, name, opening="<parameter=", close=_END_VALUE, follows=_FOLLOWS
            )
            if key in texts:
                raise MalformedError(f"the parameter {key!r} occurs twice", at, name)
            texts[key] = value.removeprefix("\n").removesuffix("\n")
        at = skip_space(text, at)
        if not text.startswith(_END_FUNCTION, at):
            raise MalformedError(f"expected <parameter=...> or {_END_FUNCTION}, {came(text, at)}", at, name)
        at += len(_END_FUNCTION)
        calls.append((name, texts))
    at = skip_space(text, at)
    if not calls or not text.startswith(CLOSE, at):
        expected = CLOSE if calls else "<function=...>"
        raise MalformedError(f"expected {expected}, {came(text, at)}", at, name)
    return calls, at + len(CLOSE)


parse_qwen3_coder: Parser = functools.partial(scan, opener=f"{OPEN}|<function=", read=_read)
