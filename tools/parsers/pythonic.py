"""Calls as Python writes them: Llama 4, Llama 3.2 with such a prompt, LFM2.

    [code_interpreter(code="print(1)"), search(query="x", limit=3)]

Llama 4 may put `<|python_start|>` and `<|python_end|>` around the list, LFM2 puts `<|tool_call_start|>` and
`<|tool_call_end|>`. Decisions, each with a test:

* Arguments are named, and literals: strings, numbers, True, False, None, lists, and dicts with strings for keys. What
  JSON cannot hold (tuples, sets, bytes, infinity) is an error, as is any expression. Nothing is evaluated.
* Without markers, the list begins a line and continues with a name and `(` and then `)`, `name=` or a string; other
  brackets are content. After other words on its line, the name must be that of an offered tool, or, if the tools are
  not known, the list must be well-formed and end its line.
* If the tools are known, a list of their calls that lacks a sign, such as its `[`, and one at which the text ends, are
  errors (`toolgym.tools.parsers.pythonic_damage`). So is a turn of nothing but calls without brackets around them.
* Behind an opening marker stands a list of calls, or an error.
* A closing marker outside of a call is an error, since the opening marker may be misspelt.
* Raw line breaks inside strings are accepted: models write programs that way, and nothing is guessed.
* A name or argument that occurs twice, and true, false, null for True, False, None, are errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.message import visible_text
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.python_literals import NAME, LiteralError, read_calls
from toolgym.tools.parsers.pythonic_damage import find_damage
from toolgym.tools.parsers.scan import MAX_MISSES, TurnBuilder, add_stray, scan, skip_space
from toolgym.tools.schema import ToolSchema

MARKERS = {"<|python_start|>": "<|python_end|>", "<|tool_call_start|>": "<|tool_call_end|>"}
SHAPE = '[tool(key="value", number=1)]'
HINT = f"Write it as {SHAPE}, with Python literals for values."

_BEGINS = rf"(?=\s*{NAME}\s*\(\s*(?:\)|['\"]|{NAME}\s*=))"
_AT_LINE = "|".join(map(re.escape, MARKERS)) + rf"|^[^\S\n]*\[{_BEGINS}"
_CLOSERS = "|".join(map(re.escape, MARKERS.values()))
_OPENER = rf"{_AT_LINE}|{_CLOSERS}|\[{_BEGINS}"
_OPENED = re.compile(rf"(?m:{_AT_LINE})")
_FIRST_NAME = re.compile(rf"\[\s*({NAME})")
_LINE_END = re.compile(r"[^\S\n]*(?:\n|\Z)")


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    if mark.group() in MARKERS.values():
        return add_stray(turn, text, mark, "[", "", SHAPE)
    close = MARKERS.get(mark.group())
    if close is None:
        turn.add_content(text[mark.start() : mark.end() - 1])
    at = skip_space(text, mark.end()) if close else mark.end() - 1
    if not close and not _begins_line(text, mark.start()) and not _is_call(text, at, turn):
        turn.add_content(text[at])
        return at + 1
    try:
        calls, end = read_calls(text, at)
        if not calls:
            raise LiteralError("the list is empty")
        if close:
            end = skip_space(text, end)
            if end < len(text) and not text.startswith(close, end):
                raise LiteralError(f"expected {close} after the list, got {text[end : end + 30]!r}")
            end += len(close) if end < len(text) else 0
    except LiteralError as error:
        end = _region_end(text, mark.end(), close)
        turn.add_misread(str(error), HINT, text[mark.start() : end], error.name)
        return end
    for name, arguments in calls:
        if turn.full:
            turn.add_overflow_error(text[at:end])
            break
        turn.add_call(name, arguments)
    return end


def _begins_line(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"


def _is_call(text: str, at: int, turn: TurnBuilder) -> bool:
    """Whether brackets after other words on their line are a call."""
    if turn.schemas:
        first = _FIRST_NAME.match(text, at)
        return first is not None and first[1] in turn.schemas
    if turn.misses >= MAX_MISSES:
        return False
    try:
        _, end = read_calls(text, at)
    except LiteralError:
        turn.misses += 1
        return False
    turn.misses += 1
    return _LINE_END.match(text, end) is not None


def _region_end(text: str, at: int, close: str | None) -> int:
    """After its closing marker, or before the next list."""
    following = _OPENED.search(text, at)
    end = following.start() if following else len(text)
    closing = text.find(close, at, end) if close else -1
    return end if closing == -1 or close is None else closing + len(close)


def parse_pythonic(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn. If it has no call, the content is searched for a damaged one (`pythonic_damage`)."""
    turn = scan(
        text,
        opener=_OPENER,
        read=_read,
        openings=tuple(MARKERS),
        first_id=first_id,
        schemas=schemas,
        starts_open=starts_open,
    )
    if turn.calls or turn.errors or turn.open_thinking or not schemas:
        return turn
    content = visible_text(turn.content)
    damage = find_damage(content, schemas)
    if damage is None:
        return turn
    raw = content[damage.start :]
    errors = TurnBuilder(first_id)
    if damage.cut:
        errors.add_cut(raw)
    else:
        errors.add_misread(damage.why, HINT, raw)
    return turn._replace(content=turn.content.removesuffix(raw), errors=errors.errors)
