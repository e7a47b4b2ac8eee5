"""The format of GLM 4.5 and 4.6, and of 4.7, which leaves the line breaks out.

    <tool_call>code_interpreter
    <arg_key>code</arg_key>
    <arg_value>print(1)</arg_value>
    </tool_call>

Hy3 (Tencent's Hunyuan 3) writes the same tags with a suffix, and more of them:

    <tool_calls:opensource>
    <tool_call:opensource>code_interpreter<tool_sep:opensource>
    <arg_key:opensource>code</arg_key:opensource>
    <arg_value:opensource>print(1)</arg_value:opensource>
    </tool_call:opensource>
    </tool_calls:opensource>

Decisions, each with a test:

* White space between tags belongs to the format; all text between `<arg_value>` and `</arg_value>` is data.
* Values are text or JSON; the tool's schema tells which (`toolgym.tools.parsers.tagged_values`).
* Nothing escapes a value. It may hold `</tool_call>` and HTML. A value that holds tags of this format otherwise,
  misspelt ones included, is an error: it cannot be distinguished from two values with a damaged tag between them
  (`toolgym.tools.parsers.tagged_values.ValueTags`). So is a tag of an argument outside of any call.
* A call may have no arguments: chat templates write such calls this way.
* Hy3's tags around all calls are no content, and may be missing; around no call they are content. Its thinking stands
  between tags with the suffix, or the plain ones.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import Parser
from toolgym.tools.parsers.scan import THINKING, TurnBuilder, add_stray, came, scan, skip_space
from toolgym.tools.parsers.tagged_values import (
    MalformedError,
    ValueTags,
    add_malformed,
    parameters_of,
    read_value,
    require_whole,
    typed,
)
from toolgym.tools.schema import ToolSchema


class Tags:
    """The tags of this format, and of those that write them with a suffix such as `:opensource`, and a separator behind
    the tool's name."""

    def __init__(self, suffix: str = "", separator: str = "") -> None:
        self.open, self.close = f"<tool_call{suffix}>", f"</tool_call{suffix}>"
        self.key, self.value, self.end_value = f"<arg_key{suffix}>", f"<arg_value{suffix}>", f"</arg_value{suffix}>"
        end_key = f"</arg_key{suffix}>"
        self.argument = f"{self.key}key{end_key}{self.value}value{self.end_value}"
        self.shape = (
            f"{self.open}tool{separator}\n{self.key}key{end_key}\n{self.value}value{self.end_value}\n{self.close}"
        )
        behind_name = re.escape(separator) if separator else "(?=<|$)"
        self.named = re.compile(rf"\s*([^\s<>{{}}\"']+)\s*{behind_name}")
        self.keyed = re.compile(rf"\s*{self.key}([^<>\n]+){end_key}\s*{self.value}")
        self.stray = f"{self.key}|{end_key}|{self.value}|{self.end_value}|{self.close}"
        self.tags = ValueTags(
            self.end_value,
            opening=re.compile(f"{self.key}|{self.value}|{end_key}"),
            follows=re.compile(rf"\s*(?:{self.key}|{self.close})"),
            names=(f"arg_key{suffix}", f"arg_value{suffix}"),
            form=">",
        )


TAGS = Tags()
_SUFFIX = ":opensource"
_CALLS, _END_CALLS = f"<tool_calls{_SUFFIX}>", f"</tool_calls{_SUFFIX}>"
HY3_TAGS = Tags(_SUFFIX, f"<tool_sep{_SUFFIX}>")


def _read(text: str, mark: re.Match[str], turn: TurnBuilder, tags: Tags) -> int:
    if mark.group() != tags.open:
        return add_stray(turn, text, mark, tags.open, tags.close, tags.shape)
    start = mark.end()
    try:
        name, texts, end = _call(text, start, tags, turn.schemas)
    except MalformedError as error:
        return add_malformed(turn, error, text, start, opening=tags.open, close=tags.close, shape=tags.shape)
    turn.add_call(name, typed(name, texts, turn.schemas, turn.nulls))
    return end


def _call(
    text: str, start: int, tags: Tags, schemas: Mapping[str, ToolSchema] | None
) -> tuple[str, dict[str, str], int]:
    named = tags.named.match(text, start)
    if not named:
        raise MalformedError(f"expected a tool's name, got {text[start : start + 30]!r}", start)
    name, at = named[1], named.end()
    texts: dict[str, str] = {}
    known, doubts = parameters_of(name, schemas), []
    while key := tags.keyed.match(text, at):
        value, at, doubt = read_value(text, key.end(), key[1], name, tags.tags, known)
        doubts.append(doubt)
        if key[1].strip() in texts:
            raise MalformedError(f"the key {key[1]!r} occurs twice", at, name)
        texts[key[1].strip()] = value
    close = skip_space(text, at)
    if not text.startswith(tags.close, close):
        raise MalformedError(f"expected {tags.argument} or {tags.close}, {came(text, close)}", close, name)
    require_whole(doubts, texts, known)
    return name, texts, close + len(tags.close)


parse_glm: Parser = functools.partial(
    scan, opener=f"{TAGS.open}|{TAGS.stray}", read=functools.partial(_read, tags=TAGS), openings=(TAGS.open,)
)


def _read_hy3(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
    if mark.group() not in (_CALLS, _END_CALLS):
        return _read(text, mark, turn, HY3_TAGS)
    end = skip_space(text, mark.end())
    if not text.startswith(HY3_TAGS.open, end) and not turn.requests:  # it holds no call
        turn.add_content(text[mark.start() : end])
    return end


parse_hy3: Parser = functools.partial(
    scan,
    opener=f"{HY3_TAGS.open}|{_CALLS}|{_END_CALLS}|{HY3_TAGS.stray}",
    read=_read_hy3,
    openings=(_CALLS, HY3_TAGS.open),
    thinking=((f"<think{_SUFFIX}>", f"</think{_SUFFIX}>"), *THINKING),
)
