"""The format of functionary 3.2: each message begins with its recipient on a line of its own.

    >>>all
    I look it up.>>>code_interpreter
    {"code": "print(1)"}

The generation prompt ends with `>>>`, so the text begins with a recipient. Decisions, each with a test:

* `all` is the user: its message is content, in which `>>>` is data unless a recipient and a line break follow.
* The message of any other recipient is a JSON object of arguments. Text after the object is an error, as is a bare
  program for the built-in `python`.
* A recipient is a call if an object follows its line, or if it is an offered tool. Else its line is content.
* An offered tool's name before an object without `>>>` or without the line break is an error. So is a turn that ends
  inside of a recipient's line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace

from toolgym.tools.message import visible_text
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.scan import TurnBuilder, came, scan, skip_space
from toolgym.tools.parsers.strict_json import add_named_call, read_json
from toolgym.tools.schema import ToolCallError, ToolSchema

MARK = ">>>"
SHAPE = f"{MARK}tool\n{{...}}"
HINT = f"Write it as:\n{SHAPE}"
EVERYBODY = "all"

_NAME = r"[^\s<>{}\[\]()\"',]++"
_LINE_END = r"[^\S\n]*+\n"
_OPENER = rf"{MARK}{_NAME}{_LINE_END}|\A\s*+(?:{EVERYBODY}{_LINE_END}|{_NAME}{_LINE_END}(?=\s*+\{{))"
_BEGUN = re.compile(rf"(?P<mark>{MARK})?(?P<name>{_NAME})?\s*+\Z")
MIN_NAME = 3
"""How many letters of a tool's name a turn must be, so that it counts as a cut call."""


def _read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    name = mark.group().strip().removeprefix(MARK)
    at = skip_space(text, mark.end())
    if name == EVERYBODY:
        return mark.end()
    if not text.startswith("{", at) and name not in (turn.schemas or ()):
        turn.add_content(mark.group())
        return mark.end()
    parsed = read_json(text, at)
    end = skip_space(text, parsed.end) if parsed.end != -1 else -1
    if end != -1 and (end == len(text) or text.startswith(MARK, end)):
        add_named_call(turn, name, parsed, text[mark.start() : end], SHAPE)
        return end
    stop = _next_mark(text, max(at, end))
    why = parsed.problem or f"expected {MARK} or the end of the turn, {came(text, end)}"
    turn.add_not_json(why, SHAPE, text[mark.start() : stop], name)
    return stop


def _next_mark(text: str, at: int) -> int:
    following = text.find(MARK, at)
    return len(text) if following == -1 else following


def parse_functionary(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn, and look for a damaged call in what is left of it."""
    turn = scan(text, opener=_OPENER, read=_read, first_id=first_id, schemas=schemas, starts_open=starts_open)
    if turn.errors or turn.open_thinking:
        return turn
    content = visible_text(turn.content)
    start, why = _find_damage(content, schemas or {}, after_call=bool(turn.calls))
    if start == -1:
        return turn
    raw = content[start:]
    errors = TurnBuilder(first_id + len(turn.calls))
    errors.add_misread(why, HINT, raw)
    error = errors.errors[0]
    return turn._replace(content=turn.content.removesuffix(raw), errors=[_at_end(error, len(turn.calls))])


def _at_end(error: ToolCallError, calls: int) -> ToolCallError:
    return replace(error, index=calls)


def _begins_name(text: str, schemas: Mapping[str, ToolSchema]) -> bool:
    return len(text) >= MIN_NAME and any(name.startswith(text) for name in schemas)


@functools.lru_cache(maxsize=64)
def _broken(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of a tool's name before an object that is not its message."""
    name = f"(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})"
    begins = r"\{[^\S\n]*+[\"}]"
    return re.compile(rf"(?:^|>)[^\S\n]*+\S?{name}\S?[^\S\n]*+\n?{begins}|{name}\S?\n{begins}", re.MULTILINE)


def _find_damage(content: str, schemas: Mapping[str, ToolSchema], *, after_call: bool) -> tuple[int, str]:
    """Return where a damaged call begins, and what is wrong with it; -1 if there is none."""
    if schemas and (broken := _broken(tuple(schemas)).search(content)):
        return broken.start(), f"{broken.group().strip()[-60:]!r} does not follow {MARK} and a line break"
    first = content.lstrip().partition("\n")[0].strip()
    if first in schemas and not after_call:
        return content.find(first), "a JSON object of arguments must follow the tool's name"
    last = content.rstrip()
    at = last.rfind(MARK)
    begun = _BEGUN.match(content, at if at != -1 else 0)
    if begun is None or (at == -1 and (after_call or not _begins_name(last, schemas))):
        return -1, ""
    return begun.start(), "the text ended before the arguments"
