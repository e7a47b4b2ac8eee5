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

import functools
import re

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.glm import Tags, read_call
from toolgym.tools.parsers.scan import THINKING, TurnBuilder, scan, skip_space

SUFFIX = ":opensource"
TAGS = Tags(SUFFIX, f"<tool_sep{SUFFIX}>")


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    if mark.group() == TAGS.open:
        return read_call(text, mark.end(), turn, TAGS)
    end = skip_space(text, mark.end())
    if not text.startswith(TAGS.open, end) and not turn.requests:  # it holds no call
        turn.add_content(text[mark.start() : end])
    return end


parse_hy3: Parser = functools.partial(
    scan,
    opener=f"{TAGS.open}|</?tool_calls{SUFFIX}>",
    read=_read,
    thinking=((f"<think{SUFFIX}>", f"</think{SUFFIX}>"), *THINKING),
)
