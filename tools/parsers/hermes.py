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
* A call without its closing tag is an error, even if its JSON is complete: the turn may have been cut. A closing tag
  without a call is an error, since the opening tag may be misspelt.
"""

from __future__ import annotations

import functools
import re

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import TurnBuilder, add_stray, region_end, scan, skip_space
from toolgym.tools.parsers.strict_json import add_object_call, read_json
from toolgym.tools.schema import CallProblem

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = f'{OPEN}{{"name": "<tool>", "arguments": {{...}}}}{CLOSE}'


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    if mark.group() == CLOSE:
        return add_stray(turn, text, mark, OPEN, CLOSE, SHAPE)
    start = mark.end()
    parsed = read_json(text, skip_space(text, start))
    close = skip_space(text, parsed.end) if parsed.end != -1 else -1
    if close != -1 and text.startswith(CLOSE, close):
        raw = text[start:close]
        if parsed.problem:
            turn.add_not_json(parsed.problem, SHAPE, raw)
        else:
            add_object_call(turn, parsed.value, raw, keys=("arguments",), shape=SHAPE)
        return close + len(CLOSE)
    end, closed = region_end(text, start if parsed.end == -1 else parsed.end, CLOSE, OPEN)
    raw = text[start:end]
    if not closed:
        turn.add_unclosed(CLOSE, raw)
        return end
    if parsed.end == -1:
        turn.add_not_json(parsed.problem, SHAPE, raw)
    else:
        message = (
            f"The tool call is not valid JSON: unexpected text {text[parsed.end : end].strip()[:40]!r} after the "
            f"object. Put exactly one JSON object between {OPEN} and {CLOSE}."
        )
        turn.add_error(CallProblem.MALFORMED_JSON, message, raw)
    return end + len(CLOSE)


parse_hermes: Parser = functools.partial(scan, opener=f"{OPEN}|{CLOSE}", read=_read, openings=(OPEN,))
