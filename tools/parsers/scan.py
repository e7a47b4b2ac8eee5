"""The walk over a turn's text without its thinking, and the collecting of its calls: shared by all parsers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError, ToolSchema

MAX_REQUESTS = 256
"""Calls and malformed calls that are read of one turn; what follows is one error. It keeps parsing linear."""

MAX_MISSES = 256
"""How many texts may look like the beginning of a request without being one. The rest of the turn is then content."""

THINKING = (("<think>", "</think>"),)

NULLS = ("null",)
"""What null is written as where nothing escapes values, so that a text could look the same."""

CallId = Callable[[int], str]
"""Makes an id of a number, for formats whose chat templates want ids of a certain form."""

COUNTED: CallId = "call_{}".format


class TurnBuilder:
    """Collects content, calls and errors in the order that a parser finds them.

    `nulls` are the texts that mean null for a parameter that may be null or a string, if the format writes both without
    quotes. `misses` counts texts that looked like the beginning of a request and were not. `open_thinking` becomes
    `ParsedTurn.open_thinking`.
    """

    def __init__(
        self,
        first_id: int,
        call_id: CallId = COUNTED,
        schemas: Mapping[str, ToolSchema] | None = None,
        nulls: Collection[str] = NULLS,
    ) -> None:
        self.calls: list[ToolCall] = []
        self.errors: list[ToolCallError] = []
        self.schemas = schemas
        self.nulls = nulls
        self.misses = 0
        self.open_thinking = False
        self._content: list[str] = []
        self._first_id = first_id
        self._call_id = call_id
        self._ids: set[str] = set()

    @property
    def requests(self) -> int:
        return len(self.calls) + len(self.errors)

    @property
    def full(self) -> bool:
        return self.requests >= MAX_REQUESTS

    def add_content(self, text: str) -> None:
        self._content.append(text)

    def add_call(self, name: str, arguments: dict[str, Any], call_id: str = "") -> None:
        """Add a well-formed call. `call_id` is the one that the model wrote, used unless the turn has it already."""
        self.calls.append(ToolCall(self._id(call_id), name, arguments, self.requests))

    def add_error(self, problem: CallProblem, message: str, raw: str, name: str = "", call_id: str = "") -> None:
        self.errors.append(ToolCallError(problem, message, raw, self._id(call_id), self.requests, name))

    def add_misread(
        self,
        why: str,
        hint: str,
        raw: str,
        name: str = "",
        problem: CallProblem = CallProblem.MALFORMED_CALL,
        call_id: str = "",
    ) -> None:
        self.add_error(problem, f"The tool call is not understood: {why}. {hint}", raw, name, call_id)

    def add_not_json(self, why: str, shape: str, raw: str, name: str = "") -> None:
        message = f"The tool call is not valid JSON: {why}. Write it as {shape}."
        self.add_error(CallProblem.MALFORMED_JSON, message, raw, name)

    def add_unclosed(self, close: str, raw: str, name: str = "", call_id: str = "") -> None:
        message = f"The tool call was not run: its closing {close} is missing. Send the whole call again."
        self.add_error(CallProblem.UNCLOSED_TAG, message, raw, name, call_id)

    def add_cut(self, raw: str) -> None:
        """Add an error for the beginning of a call at which the turn ended."""
        message = f"The turn ended inside of a tool call, at {raw[-40:]!r}. Send the whole call again."
        self.add_error(CallProblem.UNCLOSED_TAG, message, raw)

    def add_overflow_error(self, raw: str) -> None:
        message = f"Only the first {MAX_REQUESTS} tool calls of the turn were read. Send fewer in one turn."
        self.add_error(CallProblem.TOO_MANY_CALLS, message, raw)

    def reset_to_thinking(self, text: str) -> None:
        """Drop the calls so far: the text up to here was thinking, and stays as content."""
        self.calls.clear()
        self.errors.clear()
        self._ids.clear()
        self._content[:] = [text]

    def parsed(self, text: str, reasoning: str | None = None) -> ParsedTurn:
        content = "".join(self._content)
        return ParsedTurn(text, content, self.calls, self.errors, reasoning, self.open_thinking)

    def _id(self, wanted: str) -> str:
        id = wanted if wanted and wanted not in self._ids else self._call_id(self._first_id + self.requests)
        self._ids.add(id)
        return id


Read = Callable[[str, "re.Match[str]", TurnBuilder], int]


def scan(
    text: str,
    *,
    opener: str,
    read: Read,
    thinking: Sequence[tuple[str, str]] = THINKING,
    call_id: CallId = COUNTED,
    openings: Sequence[str] = (),
    nulls: Collection[str] = NULLS,
    first_id: int = 0,
    schemas: Mapping[str, ToolSchema] | None = None,
    starts_open: bool = False,
) -> ParsedTurn:
    """Walk over a turn: thinking and other text are content, and `read` is called at every match of `opener` outside of
    thinking.

    With the format's arguments bound it is a `Parser`; `thinking` has pairs of tags, of which `starts_open` means the
    first.

    * A closed block of thinking is content, and calls in it are none. If nothing but such calls is left of the turn,
      that is an error for the model to read, so that the turn does not end in silence.
    * A call inside of thinking that never closes is an error.
    * A turn that ends inside of one of the `openings`, the texts that open a call, is an error.
    * A closing tag before any opening one means that the text began inside of thinking: generation prompts of many
      models open it. Inside of a call that can be read it is data.
    """
    turn = TurnBuilder(first_id, call_id, schemas, nulls)
    opens, closes = dict(thinking), [close for _, close in thinking]
    marks, opened, closing = _patterns(opener, tuple(opens), tuple(closes))
    at = thoughts = 0  # `thoughts` is where the last block of thinking with a call in it ends
    outside = starts_open  # whether the text is known not to have begun inside of thinking that closed further on
    if starts_open:
        at = _past_thinking(text, 0, 0, thinking[0], turn, opened)
        thoughts = at if opened.search(text, 0, max(0, at - len(thinking[0][1]))) else 0
    while mark := marks.search(text, at):
        mark_text = mark.group()
        if mark_text in opens:
            outside = True
            turn.add_content(text[at : mark.start()])
            end = _past_thinking(text, mark.start(), mark.end(), (mark_text, opens[mark_text]), turn, opened)
            if opened.search(text, mark.end(), end):
                thoughts = end
            at = end
        elif mark_text in closes and outside:
            turn.add_content(text[at : mark.end()])
            at = mark.end()
        elif mark_text in closes:
            outside = True
            if turn.requests or opened.search(text, 0, mark.start()):
                thoughts = mark.end()
            turn.reset_to_thinking(text[: mark.end()])
            at = mark.end()
        elif turn.full:
            turn.add_content(text[at : mark.start()])
            turn.add_overflow_error(text[mark.start() :])
            return turn.parsed(text)
        else:
            turn.add_content(text[at : mark.start()])
            errors = len(turn.errors)
            at = read(text, mark, turn)
            # A thought may mention a call's marks: what looked like a malformed call then holds the thought's end.
            if not outside and len(turn.errors) > errors and (closed := closing.search(text, mark.end(), at)):
                outside = True
                at = thoughts = closed.end()
                turn.reset_to_thinking(text[:at])
    _add_end(turn, text, at, openings)
    if thoughts and not turn.requests and not text[thoughts:].strip():
        message = (
            "The tool call was not run: it stands inside your thinking, and nothing follows. "
            f"Close your thinking with {thinking[0][1]} first, then send the call."
        )
        turn.add_error(CallProblem.CALL_IN_THINKING, message, text)
    return turn.parsed(text)


MIN_OPENING = 5
"""How many signs of a call's opening text a turn must end with, so that the call counts as begun. After another call
a single sign suffices."""


def _add_end(turn: TurnBuilder, text: str, at: int, openings: Sequence[str]) -> None:
    """Add the text after the last call, and an error if it ends with the beginning of an opening text."""
    for opening in openings:
        for length in range(min(len(opening) - 1, len(text) - at), 0, -1):
            start = len(text) - length
            if not text.endswith(opening[:length]):
                continue
            if length >= MIN_OPENING or (turn.requests and not text[at:start].strip()):
                turn.add_content(text[at:start])
                turn.add_cut(text[start:])
                return
    turn.add_content(text[at:])


@functools.cache
def _patterns(
    opener: str, opens: tuple[str, ...], closes: tuple[str, ...]
) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    marks = re.compile(f"(?m:{opener})|" + "|".join(map(re.escape, (*opens, *closes))))
    return marks, re.compile(f"(?m:{opener})"), re.compile("|".join(map(re.escape, closes)))


def _past_thinking(
    text: str, start: int, inside: int, tags: tuple[str, str], turn: TurnBuilder, opened: re.Pattern[str]
) -> int:
    end = text.find(tags[1], inside)
    if end != -1:
        end += len(tags[1])
        turn.add_content(text[start:end])
        return end
    turn.add_content(text[start:])
    turn.open_thinking = True
    if call := opened.search(text, inside):
        message = (
            f"The tool call was not run: it stands inside {tags[0]}, which was never closed. "
            f"Close it with {tags[1]} first, then send the call."
        )
        turn.add_error(CallProblem.OPEN_THINKING, message, text[call.start() :])
    return len(text)


def skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # the pattern matches the empty string
    return match.end()


def region_end(text: str, at: int, close: str, *openers: str) -> tuple[int, bool]:
    """Return the end of a request that cannot be read, and whether its closing tag stands there."""
    end = text.find(close, at)
    nexts = [opening for opener in openers if (opening := text.find(opener, at, None if end == -1 else end)) != -1]
    if nexts:
        return min(nexts), False
    return (len(text), False) if end == -1 else (end, True)


def add_stray(turn: TurnBuilder, text: str, mark: re.Match[str], opening: str, close: str, shape: str) -> int:
    """Add an error for a tag of the format outside of any call: the call's opening tag may be missing or misspelt.

    After another error, such tags are content: they belong to the call that could not be read. So is a closing tag that
    is written twice.
    """
    if turn.errors or (mark.group() == close and _is_repeated(text, mark.start(), close)):
        turn.add_content(mark.group())
        return mark.end()
    end, closed = region_end(text, mark.start(), close, opening) if close else (mark.end(), False)
    end += len(close) if closed else 0
    turn.add_misread(f"{mark.group()!r} stands outside of a call", f"Write it as:\n{shape}", text[mark.start() : end])
    return end


def _is_repeated(text: str, at: int, close: str) -> bool:
    start = max(0, at - len(close) - 40)
    return text[start:at].rstrip().endswith(close)


def came(text: str, at: int, length: int = 30) -> str:
    return f"got {text[at : at + length]!r}" if at < len(text) else "but the text ended"


_SPACE = re.compile(r"\s*")
