"""The format of Qwen 3 Coder, Qwen 3.5 and later, and Nemotron 3: one pair of tags per argument.

    <tool_call>
    <function=code_interpreter>
    <parameter=code>
    print(1)
    </parameter>
    </function>
    </tool_call>

Decisions, each with a test:

* One line break after the opening and one before the closing tag of a value belong to the format; the rest is data.
* Values are text; the tool's schema types them (`toolgym.tools.parsers.typed_text`).
* Nothing escapes a value. It ends at the first closing tag after which the call goes on, so that code may hold
  `</parameter>` or `</tool_call>`. A value that holds `<parameter=` at the beginning of a line, or after a
  `</parameter>`, is an error: it cannot be distinguished from a missing closing tag.
* A call may have no parameters: chat templates write such calls this way.
* A function without `<tool_call>` around it is an error, as is a parameter that occurs twice.

SGLang's `qwen3_coder` ends a value at the next opening tag and a call at the first `</tool_call>` even inside of a
value, reads calls and values that were cut, drops text between tags, lets the last of two equal keys win, makes a lone
`null` of any text "null", and makes false of every boolean that it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.scan import TurnBuilder, region_end, scan, skip_space
from toolgym.tools.parsers.tagged_values import holds_another, value_end
from toolgym.tools.parsers.typed_text import typed
from toolgym.tools.schema import CallProblem, ToolSchema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = f"{OPEN}\n<function=tool>\n<parameter=key>\nvalue\n</parameter>\n</function>\n{CLOSE}"

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
_END_VALUE, _END_FUNCTION = "</parameter>", "</function>"
_FOLLOWS = re.compile(r"\s*(?:<parameter=|</function>)")


def parse_qwen3_coder(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn in this format. See the module for the decisions, and `Parser` for the arguments."""

    def read(text: str, mark: re.Match[str], turn: TurnBuilder) -> int:
        return _Call(text, mark, turn, schemas).read()

    return scan(text, TurnBuilder(first_id), f"{OPEN}|<function=", read, starts_open=starts_open)


class _Call:
    """One `<tool_call>`: reads its functions into the turn."""

    def __init__(
        self, text: str, mark: re.Match[str], turn: TurnBuilder, schemas: Mapping[str, ToolSchema] | None
    ) -> None:
        self._text, self._turn, self._schemas = text, turn, schemas
        self._start = mark.start()
        self._wrapped = mark.group() == OPEN
        self._inside = mark.end() if self._wrapped else mark.start()
        self._name = ""

    def read(self) -> int:
        """Return where to go on."""
        if not self._wrapped:
            return self._malformed(f"a function must stand between {OPEN} and {CLOSE}", self._inside)
        calls: list[tuple[str, dict[str, str]]] = []
        at = self._inside
        while opened := _FUNCTION.match(self._text, at):
            self._name = opened[1].strip()
            texts: dict[str, str] = {}
            at = opened.end()
            while parameter := _PARAMETER.match(self._text, at):
                key, at = parameter[1].strip(), parameter.end()
                end = value_end(self._text, at, _END_VALUE, _FOLLOWS)
                if end == -1:
                    return self._malformed(f"the value of {key!r} has no closing {_END_VALUE}", at)
                value = self._text[at:end]
                if holds_another(value, "<parameter=", _END_VALUE):
                    return self._malformed(
                        f"the value of {key!r} has no closing {_END_VALUE}, or holds '<parameter=' itself, which "
                        "cannot be told apart",
                        end,
                    )
                if key in texts:
                    return self._malformed(f"the parameter {key!r} occurs twice", end)
                texts[key] = value.removeprefix("\n").removesuffix("\n")
                at = end + len(_END_VALUE)
            at = skip_space(self._text, at)
            if not self._text.startswith(_END_FUNCTION, at):
                return self._malformed(f"expected <parameter=...> or {_END_FUNCTION}, {self._came(at)}", at)
            at += len(_END_FUNCTION)
            calls.append((self._name, texts))
        at = skip_space(self._text, at)
        if not calls:
            return self._malformed(f"expected <function=...>, {self._came(at)}", at)
        if not self._text.startswith(CLOSE, at):
            return self._malformed(f"expected {CLOSE}, {self._came(at)}", at)
        for name, texts in calls:
            self._turn.add_call(name, typed(name, texts, self._schemas))
        return at + len(CLOSE)

    def _came(self, at: int) -> str:
        return f"got {self._text[at : at + 30]!r}" if at < len(self._text) else "but the text ended"

    def _malformed(self, why: str, at: int) -> int:
        end, closed = region_end(self._text, at, CLOSE, OPEN)
        raw = self._text[self._start : end]
        if closed or not self._wrapped:
            message = f"The tool call is not understood: {why}. Write it as:\n{SHAPE}"
            self._turn.add_error(CallProblem.MALFORMED_CALL, message, raw, self._name)
        else:
            message = f"The tool call was not run: its closing {CLOSE} is missing. Send the whole call again."
            self._turn.add_error(CallProblem.UNCLOSED_TAG, message, raw, self._name)
        return end + len(CLOSE) if closed else end
