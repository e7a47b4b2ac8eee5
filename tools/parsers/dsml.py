"""The formats of DeepSeek V3.2 and V4: "DSML" tags, one pair per argument.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="code_interpreter">
    <｜DSML｜parameter name="code" string="true">print(1)</｜DSML｜parameter>
    <｜DSML｜parameter name="times" string="false">2</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 says `tool_calls` for `function_calls`. Decisions, each with a test:

* `string="true"` means the text as it stands, white space included; `string="false"` means JSON.
* Instead of parameters, an invocation may hold one JSON object; without either it has no arguments, which
  `<｜DSML｜invoke name="tool"/>` says too.
* A call counts with or without the block's tags around it; a block without a call is an error.
* A closing tag or a parameter outside of any invocation is an error.
* A text ends at the first closing tag; one that holds another DSML tag is an error. Strings in JSON may hold any.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import TurnBuilder, add_stray, came, region_end, scan, skip_space
from toolgym.tools.parsers.strict_json import read_json

MARK = "｜DSML｜"
OPEN, CLOSE = f"<{MARK}invoke", f"</{MARK}invoke>"

_HEAD = re.compile(r'\s+name="([^"<>]+)"\s*(/?)>')
_PARAMETER = re.compile(rf'\s*<{MARK}parameter\s+name="([^"<>]+)"\s+string="(true|false)"\s*>')
_END_VALUE = f"</{MARK}parameter>"
_TAG = re.compile(f"</?{MARK}")


def _read(text: str, mark: re.Match[str], turn: TurnBuilder, block: str) -> int:
    section, end_section = f"<{MARK}{block}>", f"</{MARK}{block}>"
    hint = (
        f'Write it as:\n{section}\n{OPEN} name="tool">\n<{MARK}parameter name="key" string="true">value{_END_VALUE}\n'
        f"{CLOSE}\n{end_section}"
    )
    at = mark.end()
    if mark.group() == end_section:
        return at
    if mark.group() not in (OPEN, section):
        return add_stray(turn, text, mark, OPEN, CLOSE, hint.removeprefix("Write it as:\n"))
    if mark.group() == section:
        end, closed = region_end(text, at, end_section, OPEN, section)
        if text.startswith(OPEN, end):
            return at
        turn.add_misread(f"no {OPEN}...> after {section}", hint, text[at:end])
        return end + len(end_section) if closed else end
    try:
        name, arguments, end = _invocation(text, at)
    except _MalformedError as error:
        end, closed = region_end(text, at, CLOSE, OPEN)
        raw = text[mark.start() : end]
        if not closed and error.unclosed:
            turn.add_unclosed(CLOSE, raw, error.name)
        else:
            turn.add_misread(str(error), hint, raw, error.name)
        return end + len(CLOSE) if closed else end
    turn.add_call(name, arguments)
    return end


class _MalformedError(ValueError):
    def __init__(self, why: str, name: str = "", *, unclosed: bool = False) -> None:
        super().__init__(why)
        self.name, self.unclosed = name, unclosed


def _invocation(text: str, at: int) -> tuple[str, dict[str, Any], int]:
    head = _HEAD.match(text, at)
    if head is None:
        raise _MalformedError(f'expected name="tool"> after {OPEN}, got {text[at : at + 40]!r}')
    name, at = head[1], head.end()
    if head[2]:
        return name, {}, at
    arguments: dict[str, Any] = {}
    inside = skip_space(text, at)
    if text.startswith("{", inside):
        parsed = read_json(text, inside)
        if parsed.problem:
            raise _MalformedError(f"the arguments are not valid JSON: {parsed.problem}", name)
        arguments, at = parsed.value, parsed.end
    else:
        while parameter := _PARAMETER.match(text, at):
            key, start = parameter[1], parameter.end()
            if key in arguments:
                raise _MalformedError(f"the parameter {key!r} occurs twice", name)
            if parameter[2] == "true":
                end = text.find(_END_VALUE, start)
                arguments[key] = text[start:end]
                if _TAG.search(text, start, max(start, end)):
                    raise _MalformedError(f"the value of {key!r} holds another {MARK} tag", name)
            else:
                parsed = read_json(text, skip_space(text, start))
                if parsed.problem:
                    why = f'the value of {key!r} has string="false" but is not JSON: {parsed.problem}'
                    raise _MalformedError(why, name)
                arguments[key], end = parsed.value, skip_space(text, parsed.end)
            if not text.startswith(_END_VALUE, end if end != -1 else len(text)):
                raise _MalformedError(f"the value of {key!r} has no closing {_END_VALUE}", name, unclosed=True)
            at = end + len(_END_VALUE)
    close = skip_space(text, at)
    if not text.startswith(CLOSE, close):
        raise _MalformedError(f"expected a parameter or {CLOSE}, {came(text, close, 40)}", name, unclosed=True)
    return name, arguments, close + len(CLOSE)


def _parser(block: str) -> Parser:
    opener = f"{OPEN}|<{MARK}{block}>|</{MARK}{block}>|{CLOSE}|</?{MARK}parameter"
    openings = (f"<{MARK}{block}>", OPEN)
    return functools.partial(scan, opener=opener, read=functools.partial(_read, block=block), openings=openings)


parse_deepseek_v32 = _parser("function_calls")
parse_deepseek_v4 = _parser("tool_calls")
