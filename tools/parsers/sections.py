"""Calls between markers, in a section between markers, the name before the JSON arguments: DeepSeek and Kimi."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import TurnBuilder, add_stray, region_end, scan, skip_space
from toolgym.tools.parsers.strict_json import Json, add_named_call, read_json


class SectionFormat(NamedTuple):
    """The marks that open and close a section and a call. `head` stands before the arguments; its groups are `name` and
    maybe `id`. `closing` stands behind them and ends with the marker that closes a call. Errors show `shape`."""

    section: str
    end_section: str
    open: str
    close: str
    head: re.Pattern[str]
    closing: re.Pattern[str]
    shape: str


def section_parser(form: SectionFormat) -> Parser:
    opener = "|".join(map(re.escape, (form.open, form.section, form.end_section, form.close)))
    read = functools.partial(_read, form=form)
    return functools.partial(scan, opener=opener, read=read, openings=(form.section, form.open))


def _read(text: str, mark: re.Match[str], turn: TurnBuilder, form: SectionFormat) -> int:
    at = mark.end()
    if mark.group() == form.close or (mark.group() == form.end_section and not turn.requests):
        return add_stray(turn, text, mark, form.open, form.close, form.shape)
    if mark.group() == form.end_section:
        return at
    if mark.group() == form.section:
        end, closed = region_end(text, at, form.end_section, form.open, form.section)
        if text.startswith(form.open, end):
            return at
        _add_misread(text, at, text[at:end], form.section, turn, form)
        return end + len(form.end_section) if closed else end
    head = form.head.match(text, at)
    if head is not None:
        return _arguments(text, mark.start(), head, turn, form)
    end, closed = region_end(text, at, form.close, form.open)
    _add_misread(text, at, text[mark.start() : end], form.open, turn, form)
    return end + len(form.close) if closed else end


def _add_misread(text: str, at: int, raw: str, after: str, turn: TurnBuilder, form: SectionFormat) -> None:
    turn.add_misread(f"got {text[at : at + 40]!r} after {after}", f"Write it as {form.shape}.", raw)


def _arguments(text: str, start: int, head: re.Match[str], turn: TurnBuilder, form: SectionFormat) -> int:
    name, call_id = head["name"], head.groupdict().get("id", "")
    parsed = read_json(text, skip_space(text, head.end()))
    closed = form.closing.match(text, parsed.end) if parsed.end != -1 else None
    if closed is not None:
        add_named_call(turn, name, parsed, text[start : closed.end()], form.shape, call_id)
        return closed.end()
    problem = parsed.problem
    if parsed.end != -1:
        extra = text[parsed.end :].lstrip()[:40]
        problem = f"unexpected text {extra!r} after the arguments" if extra else "the text ended after the arguments"
    end, has_close = region_end(text, head.end(), form.close, form.open)
    if not has_close:
        turn.add_unclosed(form.close, text[start:end], name, call_id)
        return end
    add_named_call(turn, name, Json(None, -1, problem), text[start:end], form.shape, call_id)
    return end + len(form.close)
