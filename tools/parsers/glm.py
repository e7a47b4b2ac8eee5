"""The format of GLM 4.5 and 4.6, and of 4.7, which leaves the line breaks out.

    <tool_call>code_interpreter
    <arg_key>code</arg_key>
    <arg_value>print(1)</arg_value>
    </tool_call>

Decisions, each with a test:

* White space between tags belongs to the format; all text between `<arg_value>` and `</arg_value>` is data.
* Values are text or JSON; the tool's schema tells which (`toolgym.tools.parsers.typed_text`).
* Nothing escapes a value. It ends at the first closing tag after which the call goes on, so that code may hold
  `</tool_call>`. A value that holds `<arg_key>` is an error where it may be a missing closing tag.
* A call may have no arguments: chat templates write such calls this way.

SGLang's `glm45` needs a line break after the name (`glm47` does not), ends a call at the first `</tool_call>` even
inside of a value, guesses types where there is no schema, takes quotes off strings, lets the last of two equal keys
win, and returns the whole turn as content where one call cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.scan import TurnBuilder, region_end, scan, skip_space
from toolgym.tools.parsers.tagged_values import holds_another, value_end
from toolgym.tools.parsers.typed_text import typed
from toolgym.tools.schema import CallProblem, ToolSchema


class Tags:
    """The tags of this format, and of those that write them with a suffix.

    Args:
        suffix: what stands behind the name in each tag, such as `:opensource`.
        separator: the tag that stands behind the tool's name, if any.
    """

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
        self.follows = re.compile(rf"\s*(?:{self.key}|{self.close})")


TAGS = Tags()


def parse_glm(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn in this format. See the module for the decisions, and `Parser` for the arguments."""

    def read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
        return read_call(text, mark.end(), turn, schemas, TAGS)

    return scan(text, TurnBuilder(first_id), TAGS.open, read, starts_open=starts_open)


def read_call(text: str, start: int, turn: TurnBuilder, schemas: Mapping[str, ToolSchema] | None, tags: Tags) -> int:
    """Read the call behind its opening tag into the turn; return where to go on."""
    named = tags.named.match(text, start)
    if not named:
        why = f"expected a tool's name, got {text[start : start + 30]!r}"
        return _malformed(text, start, start, turn, "", why, tags)
    name, at = named[1], named.end()
    texts: dict[str, str] = {}
    while key := tags.keyed.match(text, at):
        end = value_end(text, key.end(), tags.end_value, tags.follows)
        if end == -1:
            why = f"the value of {key[1]!r} has no closing {tags.end_value}"
            return _malformed(text, start, key.end(), turn, name, why, tags)
        value = text[key.end() : end]
        if holds_another(value, tags.key, tags.end_value):
            why = (
                f"the value of {key[1]!r} has no closing {tags.end_value}, or holds {tags.key!r} itself, which cannot "
                "be told apart"
            )
            return _malformed(text, start, end, turn, name, why, tags)
        if key[1].strip() in texts:
            return _malformed(text, start, end, turn, name, f"the key {key[1]!r} occurs twice", tags)
        texts[key[1].strip()] = value
        at = end + len(tags.end_value)
    close = skip_space(text, at)
    if not text.startswith(tags.close, close):
        came = f"got {text[close : close + 30]!r}" if close < len(text) else "but the text ended"
        why = f"expected {tags.argument} or {tags.close}, {came}"
        return _malformed(text, start, close, turn, name, why, tags)
    turn.add_call(name, typed(name, texts, schemas))
    return close + len(tags.close)


def _malformed(text: str, start: int, at: int, turn: TurnBuilder, name: str, why: str, tags: Tags) -> int:
    end, closed = region_end(text, at, tags.close, tags.open)
    if closed:
        message = f"The tool call is not understood: {why}. Write it as:\n{tags.shape}"
        turn.add_error(CallProblem.MALFORMED_CALL, message, text[start:end], name)
        return end + len(tags.close)
    message = f"The tool call was not run: its closing {tags.close} is missing. Send the whole call again."
    turn.add_error(CallProblem.UNCLOSED_TAG, message, text[start:end], name)
    return end
