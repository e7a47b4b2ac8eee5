"""The format of Kimi K2, K2 Thinking and K2.5.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.code_interpreter:0<|tool_call_argument_begin|>
    {"code": "print(1)"}<|tool_call_end|><|tool_calls_section_end|>

Decisions, each with a test:

* `functions.NAME:N` names the tool and is the call's id: the chat template writes it into the answer, so it is kept.
  A bare counter names no tool and is an error; no name is guessed from the arguments.
* A call counts with or without the markers of the section around it; a section that holds no call is an error.
* A marker inside a JSON string does not end the call. A call without its closing marker is an error.

SGLang's `kimi_k2` guesses the name behind a bare counter, drops a call that it cannot read, and needs the section.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.marked_json import read_marked_json
from toolgym.tools.parsers.turn import Turn, region_end, scan
from toolgym.tools.schema import CallProblem, ToolSchema

SECTION, END_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
OPEN, ARGUMENTS, CLOSE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
SHAPE = f"{SECTION}{OPEN}functions.tool:0{ARGUMENTS}{{...}}{CLOSE}{END_SECTION}"

_MARKS = "|".join(map(re.escape, (OPEN, SECTION, END_SECTION)))
_HEAD = re.compile(rf"\s*((?:functions\.)?([^\s<>:|]+):\d+)\s*{re.escape(ARGUMENTS)}")
_CLOSING = re.compile(rf"\s*{re.escape(CLOSE)}")


def parse_kimi(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn in this format. See the module for the decisions, and `Parser` for the arguments."""
    return scan(text, Turn(first_id), _MARKS, _read, starts_open=starts_open)


def _read(text: str, mark: re.Match[str], turn: Turn) -> int:
    at = mark.end()
    if mark.group() == END_SECTION:
        return at
    if mark.group() == SECTION:
        end, closed = region_end(text, at, END_SECTION, OPEN, SECTION)
        if text.startswith(OPEN, end):
            return at
        message = f"The tool call is not understood: got {text[at : at + 40]!r} behind {SECTION}. Write it as {SHAPE}."
        turn.error(CallProblem.MALFORMED_CALL, message, text[at:end])
        return end + len(END_SECTION) if closed else end
    head = _HEAD.match(text, at)
    if head is None:
        end, closed = region_end(text, at, CLOSE, OPEN)
        message = f"The tool call is not understood: got {text[at : at + 40]!r} behind {OPEN}. Write it as {SHAPE}."
        turn.error(CallProblem.MALFORMED_CALL, message, text[mark.start() : end])
        return end + len(CLOSE) if closed else end
    return read_marked_json(
        text,
        turn,
        start=mark.start(),
        at=head.end(),
        name=head[2],
        closing=_CLOSING,
        close=CLOSE,
        openers=(OPEN,),
        shape=SHAPE,
        call_id=head[1],
    )
