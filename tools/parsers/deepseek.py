"""The formats of DeepSeek V3 and R1, and of V3.1 and V3.2-Exp.

V3 writes the kind, the name and a fenced block, V3.1 the name and the arguments:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>code_interpreter
    ```json
    {"code": "print(1)"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>code_interpreter<｜tool▁sep｜>{"code": "print(1)"}<｜tool▁call▁end｜>...

Decisions, each with a test:

* A call counts with or without the markers of the section around it; a section that holds no call is an error.
* A marker inside a JSON string does not end the call.
* A call without its closing marker is an error, even if its JSON is complete.

SGLang returns the whole turn as content where one call of it cannot be read, and needs the markers of the section.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.marked_json import read_marked_json
from toolgym.tools.parsers.turn import Read, Turn, region_end, scan
from toolgym.tools.schema import CallProblem, ToolSchema

SECTION, END_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OPEN, SEPARATOR, CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
SHAPE_V3 = f"{SECTION}{OPEN}function{SEPARATOR}tool\n```json\n{{...}}\n```{CLOSE}{END_SECTION}"
SHAPE_V31 = f"{SECTION}{OPEN}tool{SEPARATOR}{{...}}{CLOSE}{END_SECTION}"

_MARKS = f"{OPEN}|{SECTION}|{END_SECTION}"
_HEAD_V3 = re.compile(rf"\s*function\s*{SEPARATOR}\s*([^\s<>{{}}`]+)\s*```json\s*")
_HEAD_V31 = re.compile(rf"\s*([^\s<>{{}}`]+)\s*{SEPARATOR}")
_CLOSING_V3 = re.compile(rf"\s*```\s*{CLOSE}")
_CLOSING_V31 = re.compile(rf"\s*{CLOSE}")


def parse_deepseek_v3(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn in the format of V3. See the module for the decisions, and `Parser` for the arguments."""
    return scan(text, Turn(first_id), _MARKS, _reader(_HEAD_V3, _CLOSING_V3, SHAPE_V3), starts_open=starts_open)


def parse_deepseek_v31(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn in the format of V3.1. See the module for the decisions, and `Parser` for the arguments."""
    return scan(text, Turn(first_id), _MARKS, _reader(_HEAD_V31, _CLOSING_V31, SHAPE_V31), starts_open=starts_open)


def _reader(head: re.Pattern[str], closing: re.Pattern[str], shape: str) -> Read:
    def read(text: str, mark: re.Match[str], turn: Turn) -> int:
        at = mark.end()
        if mark.group() == END_SECTION:
            return at
        if mark.group() == SECTION:
            return _section(text, at, turn, shape)
        named = head.match(text, at)
        if named is None:
            end, closed = region_end(text, at, CLOSE, OPEN)
            message = f"The tool call is not understood: got {text[at : at + 40]!r} behind {OPEN}. Write it as {shape}."
            turn.error(CallProblem.MALFORMED_CALL, message, text[mark.start() : end])
            return end + len(CLOSE) if closed else end
        return read_marked_json(
            text,
            turn,
            start=mark.start(),
            at=named.end(),
            name=named[1],
            closing=closing,
            close=CLOSE,
            openers=(OPEN,),
            shape=shape,
        )

    return read


def _section(text: str, at: int, turn: Turn, shape: str) -> int:
    """Return where a section's first call begins; without one, the section is an error."""
    end, closed = region_end(text, at, END_SECTION, OPEN, SECTION)
    if text.startswith(OPEN, end):
        return at
    message = f"The tool call is not understood: got {text[at : at + 40]!r} behind {SECTION}. Write it as {shape}."
    turn.error(CallProblem.MALFORMED_CALL, message, text[at:end])
    return end + len(END_SECTION) if closed else end
