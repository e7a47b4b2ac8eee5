"""The format of Kimi K2, K2 Thinking and K2.5.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.code_interpreter:0<|tool_call_argument_begin|>
    {"code": "print(1)"}<|tool_call_end|><|tool_calls_section_end|>

Decisions, each with a test:

* `functions.NAME:N` names the tool and is the call's id: the chat template writes it into the answer, so it is kept.
  A bare counter names no tool and is an error; no name is guessed from the arguments.
* A call counts with or without the markers of the section around it; a section that holds no call is an error.
* A marker inside a JSON string does not end the call. A call without its closing marker is an error.
"""

from __future__ import annotations

import re

from toolgym.tools.parsers.sections import SectionFormat, section_parser

SECTION, END_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
OPEN, ARGUMENTS, CLOSE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
SHAPE = f"{SECTION}{OPEN}functions.tool:0{ARGUMENTS}{{...}}{CLOSE}{END_SECTION}"

_HEAD = re.compile(rf"\s*(?P<id>(?:functions\.)?(?P<name>[^\s<>:|]+):\d+)\s*{re.escape(ARGUMENTS)}")
_CLOSING = re.compile(rf"\s*{re.escape(CLOSE)}")

parse_kimi = section_parser(SectionFormat(SECTION, END_SECTION, OPEN, CLOSE, _HEAD, _CLOSING, SHAPE))
