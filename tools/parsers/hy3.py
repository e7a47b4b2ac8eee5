"""The format of Hy3 (Tencent's Hunyuan 3), whose tags have a suffix; else it is as GLM's (`toolgym.tools.parsers.glm`).

    <tool_calls:opensource>
    <tool_call:opensource>code_interpreter<tool_sep:opensource>
    <arg_key:opensource>code</arg_key:opensource>
    <arg_value:opensource>print(1)</arg_value:opensource>
    </tool_call:opensource>
    </tool_calls:opensource>

Decisions, each with a test:

* The tags around all calls are no content, and may be missing. Around no call they are content.
* Thinking stands between `<think:opensource>` and `</think:opensource>`, or the plain tags.
* Values are as in the format of GLM: text or JSON by the tool's schema, and nothing escapes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.glm import Tags, read_call
from toolgym.tools.parsers.scan import THINKING, TurnBuilder, scan, skip_space
from toolgym.tools.schema import ToolSchema

SUFFIX = ":opensource"
TAGS = Tags(SUFFIX, f"<tool_sep{SUFFIX}>")
_THINKING = ((f"<think{SUFFIX}>", f"</think{SUFFIX}>"), *THINKING)
_OPENER = f"{TAGS.open}|</?tool_calls{SUFFIX}>"


def parse_hy3(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn in this format. See the module for the decisions, and `Parser` for the arguments."""

    def read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
        if mark.group() != TAGS.open:
            end = skip_space(text, mark.end())
            if not text.startswith(TAGS.open, end) and not turn.requests:  # it holds no call
                turn.add_content(text[mark.start() : end])
            return end
        return read_call(text, mark.end(), turn, schemas, TAGS)

    return scan(text, TurnBuilder(first_id), _OPENER, read, thinking=_THINKING, starts_open=starts_open)
