"""From a turn's text to its thinking, its answer and its calls, whatever the model's tags of thinking are.

Parsers know the tags of the models that they were written for. A turn with other tags is shown to its parser with
`<think>` tags, and what the parser read is changed back. The thinking is then taken out of the content, unless its tags
are `<think>` and `</think>`, which every reader of a turn knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from toolgym.rollout.tokens.marked_turns import THINK, ThinkingTags
from toolgym.tools.message import THINKING_TAGS
from toolgym.tools.parsers import ParsedTurn, Parser
from toolgym.tools.schema import ToolSchema


class Split(NamedTuple):
    """A text in parts: its thinking, None if there is none; what it says besides; whether thinking is left open."""

    reasoning: str | None
    content: str
    is_open: bool


class TurnReader:
    """Reads turns with one parser and the thinking tags of one chat template.

    Args:
        parser: reads the calls.
        tags: the thinking tags, as the template writes them.
        rendered: whether the template does write them. If not, the parser's own tags are looked for as well.
    """

    def __init__(self, parser: Parser, tags: ThinkingTags, rendered: bool) -> None:
        self._parser = parser
        self.tags = tags
        schemas = {"tool": ToolSchema("tool", "", {"type": "object", "properties": {}})}

        def knows(opens: str) -> bool:
            try:
                turn = parser(f"{opens}x", schemas=schemas)
            except Exception:  # noqa: BLE001  a parser of others may not take a turn like this
                return False
            return turn.open_thinking or turn.reasoning == "x"

        self._is_plain = (tags.opens, tags.closes) == (THINK.opens, THINK.closes)
        self._translates = not self._is_plain and not knows(tags.opens)
        others = () if rendered else (pair for pair in THINKING_TAGS if pair != THINK[:2] and knows(pair[0]))
        self._others = tuple(ThinkingTags(*pair) for pair in others)

    def __call__(self, text: str, *, first_id: int, schemas: Mapping[str, ToolSchema], starts_open: bool) -> ParsedTurn:
        """Read a turn; the arguments are those of a `Parser`."""
        if self._translates:
            shown, restore = _with_think_tags(text, self.tags)
            turn = self._parser(shown, first_id=first_id, schemas=schemas, starts_open=starts_open)
            turn = _restored(turn, text, restore)
        else:
            turn = self._parser(text, first_id=first_id, schemas=schemas, starts_open=starts_open)
        if starts_open and not turn.requests and self.tags.closes not in text:  # a parser may not know the tags
            turn = turn._replace(open_thinking=True)
        if turn.reasoning is not None:
            thought = text.rpartition(self.tags.opens)[2]
            is_open = not self._is_plain and self.tags.opens in text and self.tags.closes not in thought
            return turn._replace(open_thinking=True) if is_open and not turn.requests else turn
        for tags in (self.tags, *self._others) if not self._is_plain else self._others:
            split = split_turn(turn.content, tags, starts_open=starts_open and tags is self.tags)
            if split.reasoning is not None:
                is_open = turn.open_thinking or split.is_open
                written = split_turn(text, tags, starts_open=starts_open and tags is self.tags).content
                turn = turn._replace(
                    reasoning=split.reasoning,
                    content=split.content,
                    open_thinking=is_open,
                    text_without_thinking=written,
                )
                break
        content = without_frame(turn.content, self.tags)
        return turn if content == turn.content else turn._replace(content=content)


def split_turn(text: str, tags: ThinkingTags, *, starts_open: bool = False) -> Split:
    """Take the thinking out of a turn's text.

    Args:
        text: the text, without its calls.
        tags: the model's tags.
        starts_open: the generation prompt opened the thinking.

    Returns:
        The parts, without white space around them. The thinking of several blocks is joined by line ends.
    """
    opens, closes = tags.opens, tags.closes
    rest = text.lstrip()
    if starts_open and not rest.startswith(opens):
        rest = opens + rest  # some models open it again although the prompt did
    elif not starts_open and tags.closes_thinking_only and closes in rest.partition(opens)[0]:
        rest = opens + rest
    thoughts: list[str] = []
    answers: list[str] = []
    is_open = False
    while True:
        before, opened, rest = rest.partition(opens)
        answers.append(before)
        if not opened:
            break
        thought, closed, rest = rest.partition(closes)
        thoughts.append(thought.strip())
        if not closed:
            is_open = True
            break
    if not thoughts:
        return Split(None, text, False)
    return Split("\n".join(thoughts), without_frame("".join(answers).strip(), tags), is_open)


def without_frame(text: str, tags: ThinkingTags) -> str:
    """Return an answer without the texts that open and close it."""
    for opens in tags.text_opens:
        bare = text.lstrip()
        if bare.startswith(opens):
            bare = bare.removeprefix(opens).strip()
            closes = next((text for text in tags.text_closes if bare.endswith(text)), "")
            return bare.removesuffix(closes).strip()
    return text


def _with_think_tags(text: str, tags: ThinkingTags) -> tuple[str, Callable[[str], str]]:
    """Return a text with `<think>` tags in the place of a model's own, and a function that changes such texts back.

    `<think>` tags that the text has are nothing to the model. They are hidden by a letter that the text has not.
    """
    letter = next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text)
    hidden = text.replace("think>", f"think{letter}>")
    if tags.closes_thinking_only:
        shown = hidden.replace(tags.opens.replace("think>", f"think{letter}>"), THINK.opens)
        shown = shown.replace(tags.closes.replace("think>", f"think{letter}>"), THINK.closes)
    else:
        block = re.compile(f"{re.escape(tags.opens)}(.*?)(?:{re.escape(tags.closes)}|\\Z)", re.DOTALL)
        shown = block.sub(_as_think_block(tags), hidden)

    def restore(part: str) -> str:
        part = part.replace(THINK.opens, tags.opens).replace(THINK.closes, tags.closes)
        return part.replace(f"think{letter}>", "think>")

    return shown, restore


def _as_think_block(tags: ThinkingTags) -> Callable[[re.Match[str]], str]:
    def block(match: re.Match[str]) -> str:
        closes = THINK.closes if match.group().endswith(tags.closes) else ""
        return f"{THINK.opens}{match[1]}{closes}"

    return block


def _restored(turn: ParsedTurn, text: str, restore: Callable[[str], str]) -> ParsedTurn:
    calls = [
        replace(call, id=restore(call.id), name=restore(call.name), arguments=_mapped(call.arguments, restore))
        for call in turn.calls
    ]
    errors = [
        replace(
            error,
            message=restore(error.message),
            raw=restore(error.raw),
            name=restore(error.name),
            id=restore(error.id),
        )
        for error in turn.errors
    ]
    reasoning = None if turn.reasoning is None else restore(turn.reasoning)
    return ParsedTurn(text, restore(turn.content), calls, errors, reasoning, turn.open_thinking)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    return value
