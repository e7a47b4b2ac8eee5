"""The JSON format of Llama 3.1, 3.2 and 3.3.

    {"name": "code_interpreter", "parameters": {"code": "print(1)"}}
    <|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}

Decisions, each with a test:

* Without the tag, a call is an object that begins a line and has a `name` and `parameters` (or `arguments`). Other
  JSON is content: it may be the answer. An object that begins with `"name"` and is not JSON, or has nothing besides
  `name`, `type` and `id`, is a malformed call. After other words on its line, an object that begins with `"name"` is a
  call if the name is that of an offered tool, or, if the tools are not known, if it is well-formed.
* Behind the tag stands a call, or an error: the built-in `brave_search.call(...)` and bare programs, too, are errors.
* Several calls are separated by `;` or white space.
* Nothing closes a call but the end of its JSON; text after it is content.
"""

from __future__ import annotations

import functools
import re

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import MAX_MISSES, TurnBuilder, region_end, scan, skip_space
from toolgym.tools.parsers.strict_json import add_object_call, read_json
from toolgym.tools.schema import CallProblem

TAG = "<|python_tag|>"
KEYS = ("parameters", "arguments")
SHAPE = '{"name": "tool", "parameters": {...}}'

_OBJECT = r'^[^\S\n]*\{(?=\s*")'
_BEHIND_WORDS = r'\{(?=\s*"name"\s*:)'
_NAMED = re.compile(r'\{\s*"name"\s*:(?:\s*"([^"\\\n]*)")?')
_INSIDE = re.compile(r'(?:"\s*:|[\[{,])\s*\Z')
"""Text before an object that stands inside of other JSON."""

_NEXT = re.compile(r"\s*(;?)\s*(?=\{)")


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    sure = mark.group() == TAG
    at = skip_space(text, mark.end()) if sure else mark.end() - 1
    behind_words = not sure and mark.start() > 0 and text[mark.start() - 1] != "\n"
    if behind_words and _INSIDE.search(text, max(0, mark.start() - 20), mark.start()):
        turn.add_content(mark.group())
        return mark.end()
    if not sure:
        turn.add_content(text[mark.start() : at])
    elif not text.startswith("{", at):
        end, _ = region_end(text, at, TAG)
        why = f"got {text[at : at + 40]!r} after {TAG}"
        turn.add_misread(why, f"Write it as {SHAPE}.", text[mark.start() : end], problem=CallProblem.NOT_A_CALL)
        return end
    while True:
        before = turn.requests
        end = _object(text, at, turn, sure, behind_words)
        following = _NEXT.match(text, end)
        if turn.requests == before or turn.full or following is None or not (following[1] or sure):
            return end
        at, sure, behind_words = following.end(), True, False


def _object(text: str, at: int, turn: TurnBuilder, sure: bool, behind_words: bool) -> int:
    """Read an object that is a call for sure, or may be one; return where it ends."""
    named_so = _NAMED.match(text, at)
    offered = named_so is not None and named_so[1] is not None and named_so[1] in (turn.schemas or ())
    sure_if_broken = sure or (offered if behind_words else named_so is not None)
    if behind_words and turn.schemas and not offered:
        turn.add_content(text[at])
        return at + 1
    if not sure_if_broken and turn.misses >= MAX_MISSES:
        turn.add_content(text[at])
        return at + 1
    parsed = read_json(text, at)
    if parsed.problem and sure_if_broken:
        end = parsed.end if parsed.end != -1 else region_end(text, at, TAG)[0]
        turn.add_not_json(parsed.problem, SHAPE, text[at:end])
        return end
    if parsed.problem:
        turn.misses += 1
        turn.add_content(text[at])
        return at + 1
    raw, value = text[at : parsed.end], parsed.value
    named = isinstance(value, dict) and "name" in value
    if sure or (named and (any(key in value for key in KEYS) or value.keys() <= {"name", "type", "id"})):
        add_object_call(turn, value, raw, keys=KEYS, shape=SHAPE)
    else:
        turn.add_content(raw)
    return parsed.end


parse_llama3: Parser = functools.partial(
    scan, opener=f"{re.escape(TAG)}|{_OBJECT}|{_BEHIND_WORDS}", read=_read, openings=(TAG,)
)
