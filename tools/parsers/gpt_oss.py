"""The format of gpt-oss ("harmony"): a turn is several messages, each with a channel and optionally a recipient.

    <|channel|>analysis<|message|>I compute.<|end|><|start|>assistant<|channel|>commentary
    to=functions.code_interpreter <|constrain|>json<|message|>{"code": "print(1)"}<|call|>

The generation prompt ends with `<|start|>assistant`, so the text begins after it. Decisions, each with a test:

* A message with a recipient is a call, in any channel; `functions.` before the name is dropped.
* The recipient may stand before or after the channel, as chat templates and the model write it.
* `<|call|>` ends the turn, so it is absent where the engine took it for the end-of-turn token.
* Analysis is `ParsedTurn.reasoning`; final messages, and commentary without a recipient, are content.
* A message that ends with `<|call|>` or has `<|constrain|>`, but names no recipient, is an error.
* A call that begins while the analysis has no `<|end|>` yet is an error, as is one without its message, or a turn that
  ends inside of a message's head.
* Arguments are a JSON object; a bare program for the built-in `python` is an error, and so are empty arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.parsers.scan import TurnBuilder, skip_space
from toolgym.tools.parsers.strict_json import add_named_call, read_json
from toolgym.tools.schema import CallProblem, ToolSchema

SHAPE = "<|channel|>commentary to=functions.tool <|constrain|>json<|message|>{...}<|call|>"

_MESSAGE = "<|message|>"
_START = "<|start|>"
_MARK = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_AFTER_CALL = re.compile(r"\s*(?:<\|(?:call|end|return)\|>|(?=<\|start\|>)|\Z)")
_RECIPIENT = re.compile(r"(?:^|\s|\|>|assistant)to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_LAST_HEAD = re.compile(r"<\|channel\|>\s*+(\w*+)[^<]*+\Z")
"""The head of a message at which the text ends. It is a call's, unless the channel has no calls."""


def parse_gpt_oss(
    text: str, *, first_id: int = 0, schemas: Mapping[str, ToolSchema] | None = None, starts_open: bool = False
) -> ParsedTurn:
    """Read a turn; `starts_open` says that the generation prompt began the analysis already."""
    reader = _Reader(text, TurnBuilder(first_id))
    reader.read(starts_open)
    turn = reader.turn
    turn.add_content("\n".join(filter(None, reader.content)))
    return turn.parsed(text, "\n".join(filter(None, reader.reasoning)) or None)


class _Reader:
    def __init__(self, text: str, turn: TurnBuilder) -> None:
        self.turn = turn
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self._text = text

    def read(self, starts_open: bool) -> None:
        at = self._analysis(0) if starts_open else 0
        while at < len(self._text):
            body = self._text.find(_MESSAGE, at)
            if body == -1:
                self._unfinished(at)
                return
            head = self._text[at:body]
            if (start := head.rfind(_START)) > 0:
                self.content.append(head[:start])
                head = head[start:]
            channel, recipient = _CHANNEL.search(head), _RECIPIENT.search(head)
            if start == -1 and channel:
                before = head[: channel.start()]
                if before.strip() != "assistant" and not _RECIPIENT.search(before):
                    self.content.append(before)
            if recipient and self.turn.full:
                self.turn.add_overflow_error(self._text[at:])
                return
            start = at
            at = body + len(_MESSAGE)
            if recipient:
                at = self._call(recipient[1].removeprefix("functions."), start, at)
            elif channel and channel[1] == "analysis":
                at = self._analysis(at)
            elif "<|constrain|>" in head or self._text.startswith("<|call|>", self._end(at)[0]):
                at = self._end(at)[1]
                why = "it names no recipient"
                self.turn.add_misread(why, f"Write it as {SHAPE}.", self._text[body - len(head) : at])
            else:
                end, at = self._end(at)
                self.content.append(self._text[body + len(_MESSAGE) : end])

    def _call(self, name: str, start: int, at: int) -> int:
        parsed = read_json(self._text, skip_space(self._text, at))
        closed = _AFTER_CALL.match(self._text, parsed.end) if parsed.end != -1 else None
        problem = parsed.problem
        if closed is None:
            end, on = self._end(at)
            problem = problem or f"unexpected text {self._text[parsed.end :].lstrip()[:40]!r} after the arguments"
        else:
            end = on = closed.end()
        add_named_call(self.turn, name, parsed._replace(problem=problem), self._text[start:end], SHAPE)
        return on

    def _analysis(self, at: int) -> int:
        mark = _MARK.search(self._text, at)
        self.reasoning.append(self._text[at : mark.start() if mark else len(self._text)])
        if mark is None or mark.group() in _ENDS:
            return mark.end() if mark else len(self._text)
        body = self._text.find(_MESSAGE, mark.start())
        if _RECIPIENT.search(self._text[mark.start() : len(self._text) if body == -1 else body]):
            message = (
                "The tool call was not run: it stands inside your analysis, which was never ended. "
                "End it with <|end|> first, then send the call."
            )
            rest = self._text[mark.start() :]
            self.turn.add_error(CallProblem.OPEN_THINKING, message, rest)
            self.reasoning.append(rest)
            return len(self._text)
        return mark.start()

    def _unfinished(self, at: int) -> None:
        rest = self._text[at:]
        recipient = _RECIPIENT.search(rest)
        if recipient and _CHANNEL.search(rest):
            message = f"The tool call was not run: it has no {_MESSAGE} with arguments. Write it as {SHAPE}."
            name = recipient[1].removeprefix("functions.")
            self.turn.add_error(CallProblem.UNCLOSED_TAG, message, rest, name)
        elif (begun := _LAST_HEAD.search(rest)) and not _is_beginning(begun[1], "final", "analysis"):
            self.content.append(rest[: begun.start()])
            self.turn.add_cut(rest[begun.start() :])
        else:
            self.content.append(rest)

    def _end(self, at: int) -> tuple[int, int]:
        mark = _MARK.search(self._text, at)
        if mark is None:
            return len(self._text), len(self._text)
        return mark.start(), mark.end() if mark.group() in _ENDS else mark.start()


def _is_beginning(word: str, *words: str) -> bool:
    return bool(word) and any(known.startswith(word) for known in words)
