"""Turns of marked values as a chat template writes them: the facts about a model's own writing are read off those.

A mark is a word that no author of a text can guess. A turn with a mark for its thought, its text and each argument is
rendered, and what stands around the marks are the tags, frames and ends that the model was trained to write.

    turns = MarkedTurns(template, encoder)
    turns.written(turns.message(thought=True, text=True, calls=1))
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

from toolgym.rollout.tokens.chat_template import ChatTemplate
from toolgym.rollout.tokens.end_of_turn import PROBE_IDS, EndOfTurn, called, shared_beginning
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import Message, assistant, tool, user

_TAG = re.compile(r"<[^<>\s][^<>]*>|\[[^\[\]\s]+\]|\u25c1[^\u25c1\u25b7]+\u25b7")
"""A tag in plain text, for tokenizers in which it is not a token."""


ThoughtForm = Literal["field", "parts", "blocks"]
"""Where templates look for a thought: in a field of the message, or in one part or block of its content."""

_FORMS: tuple[ThoughtForm, ...] = ("field", "parts", "blocks")
_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan")
_SHAPES = ((True, 0), (True, 1), (False, 1))
"""Turns with a thought: whether they have a text, and how many calls. Some templates show thoughts before calls."""


_SHOWN_PARTS = re.compile(r"""['"]type['"]""")
"""In the text of a template that writes a list of parts as it is, and knows no thinking."""


class ThinkingTags(NamedTuple):
    """The texts that a model writes around its thinking and around its answer.

    Attributes:
        opens: text before the thinking, without white space around it.
        closes: text after the thinking, without white space around it.
        text_opens: texts that open the answer, the longest first. Empty if the answer has no frame.
        text_closes: texts that close the answer, the longest first. Empty if the answer has no frame.
        closes_thinking_only: whether `closes` stands nowhere else in a turn, so that it marks the end of thinking even
            if the thinking was opened by the prompt.
    """

    opens: str
    closes: str
    text_opens: tuple[str, ...] = ()
    text_closes: tuple[str, ...] = ()
    closes_thinking_only: bool = True


THINK = ThinkingTags("<think>", "</think>")


class MarkedTurns:
    """Renders turns of marked values behind one prompt.

    Args:
        template: the chat template.
        encoder: the encoder of its tokenizer, which gives the marks' random letters and knows the control tokens.
        head: the messages before the turn. Defaults to a user's message of one letter.
        name: the name of the tool that is called.
        tools: the tools that the template shows. Defaults to as few as it takes.

    Attributes:
        thought: the mark of the thinking.
        text: the mark of the answer, or of the text before a call.
        argument: the mark of each call's argument, which is called `x`.
    """

    def __init__(
        self,
        template: ChatTemplate,
        encoder: SafeEncoder,
        *,
        head: Sequence[Message] | None = None,
        name: str = "tool",
        tools: Sequence[Any] | None = (),
    ) -> None:
        self.template, self.encoder = template, encoder
        self.head = list(head) if head is not None else [user("x")]
        self.name, self.tools = name, tools
        self.thought, self.text, self.argument = (f"{encoder.nonce}{letter}" for letter in "tsr")

    def message(
        self, *, thought: bool = False, text: bool = False, calls: int = 0, form: ThoughtForm = "field"
    ) -> Message:
        """Return an assistant message with marks in its parts.

        Args:
            thought: the turn has thinking. In the form "field", it has all names that templates use.
            text: the turn has a text.
            calls: number of calls.
            form: where the thought stands.
        """
        content = self.text if text else ""
        message: Any = called(self.argument, [self.name] * calls, content=content) if calls else assistant(content)
        if not thought:
            return cast(Message, message)
        if form == "field":
            return cast(Message, {**message, **dict.fromkeys(_FIELDS, self.thought)})
        if form == "parts":
            parts = [{"type": "thinking", "thinking": self.thought}, {"type": "text", "text": content}]
            return cast(Message, {**message, "content": parts})
        blocks = [{"type": "thoughts", "text": self.thought}, {"type": "response", "text": content}]
        return cast(Message, {**message, "content": {"blocks": blocks}})

    def answers(self, message: Message) -> list[Message]:
        """Return what may follow a turn: a result for each call, or a user's message."""
        calls = message.get("tool_calls", ())
        results = [tool("z", tool_call_id=PROBE_IDS[at], name=self.name) for at in range(len(calls))]
        return [*results] if results else [user("y")]

    @cached_property
    def before(self) -> str | None:
        """The rendered head without a generation prompt; None if the template refuses it."""
        return self.render(self.head, generation_prompt=False)

    def written(self, message: Message, *, followed: bool = False) -> str | None:
        """Return the turn as the template writes it, from the first letter of its header to the end of the text.

        Args:
            message: the turn.
            followed: add the messages that may follow it (`answers`), in front of which some templates drop thinking.

        Returns:
            The text; None if the template refuses the turn or changes what stands before it.
        """
        new = self.answers(message) if followed else []
        text = self.render([*self.head, message, *new], generation_prompt=followed)
        if text is None or self.before is None:
            return None
        shared = len(shared_beginning(self.before, text))
        if shared == len(self.before):
            return text[shared:]
        # A template that ignores `add_generation_prompt` writes the prompt behind the head, and not before the turn.
        start = next((tag.start() for tag in self.tags(text) if tag.start() <= shared < tag.end()), shared)
        rest = self.before[start:]
        return text[start:] if not _TAG.sub("", self.encoder.without_controls(rest)).strip() else None

    def render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str | None:
        try:
            return self.template.render(messages, generation_prompt=generation_prompt, tools=self.tools)
        except TemplateError:
            return None

    def readable(self, text: str) -> str:
        """Return a rendered text with words in the places of the marks."""
        for mark, word in ((self.thought, "thinking"), (self.text, "text"), (self.argument, "argument")):
            text = text.replace(mark, word)
        return text

    def tags(self, text: str, start: int = 0) -> list[re.Match[str]]:
        """Return the control tokens in a text, and what looks like a tag between them, in order."""
        controls = [match for match in self.encoder.all_controls(text) if match.start() >= start]
        covered = [range(*match.span()) for match in controls]
        plain = [
            match
            for match in _TAG.finditer(text, start)
            if not any(match.start() in span or match.end() - 1 in span for span in covered)
        ]
        return sorted([*controls, *plain], key=lambda match: match.start())


def stops_inside(turns: MarkedTurns, stops: Collection[str], prompt: str) -> dict[str, str]:
    """Find the stop tokens that the template writes inside a turn, where an engine would cut every turn.

    Args:
        turns: the template's turns.
        stops: the tokens that end a turn.
        prompt: the template's generation prompt.

    Returns:
        The tokens, and the text around each as a person would read it. Empty if every stop token only ends turns.
    """
    contexts: dict[str, str] = {}
    forms: tuple[ThoughtForm | None, ...] = (None, *_FORMS)
    for form, text, calls in itertools.product(forms, (True, False), (0, 1, 2)):
        if not text and not calls:
            continue
        message = turns.message(thought=form is not None, text=text, calls=calls, form=form or "field")
        written = turns.written(message) or ""
        marks = [turns.thought] * (form is not None) + [turns.text] * text + [turns.argument] * calls
        if _marks_in(turns, written) != marks:  # dropped, or in another order than the policy's
            continue
        start, end = len(shared_beginning(written, prompt)), written.rindex(marks[-1])
        for control in turns.encoder.all_controls(written[:end]):
            if control.start() >= start and control.group() in stops:
                around = written[max(start, control.start() - 30) : control.end() + 30]
                contexts.setdefault(control.group(), turns.readable(around))
    return contexts


def _marks_in(turns: MarkedTurns, text: str) -> list[str]:
    return re.findall("|".join((turns.thought, turns.text, turns.argument)), text)


def find_thinking_tags(turns: MarkedTurns, ends: EndOfTurn, prompt: str = "") -> ThinkingTags | None:
    """Find what a model writes around its thinking.

    Args:
        turns: the template's turns.
        ends: how they end.
        prompt: the template's generation prompt, which may open the thinking.

    Returns:
        The tags; None if the template writes no thinking, or no tags around it.
    """
    for form in _FORMS:
        for text, calls in _SHAPES:
            message = turns.message(thought=True, text=text, calls=calls, form=form)
            tags = _tags_around(turns, ends, prompt, message, turns.text if text else turns.argument)
            if tags is not None:
                return tags
    return None


def _tags_around(
    turns: MarkedTurns, ends: EndOfTurn, prompt: str, message: Message, next_mark: str
) -> ThinkingTags | None:
    whole = turns.written(message)
    if whole is None or not 0 <= whole.find(turns.thought) < whole.find(next_mark):
        return None
    before, _, behind = whole.partition(turns.thought)
    between, _, tail = behind.partition(next_mark)
    header = _header(turns, before, prompt)
    opens = before[len(header) :].strip()
    closes = _closes(turns, between, len(turns.tags(opens)))
    if not opens or not closes or _SHOWN_PARTS.search(opens + closes):
        return None
    others = (turns.message(text=True, calls=1), turns.message(calls=2))
    elsewhere = tail + between.replace(closes, "", 1) + "".join(turns.written(other) or "" for other in others)
    shown = between if next_mark == turns.text and turns.argument not in between else ""
    frames = _text_opens(turns, header, opens, closes, shown)
    return ThinkingTags(
        opens,
        closes,
        frames,
        _text_closes(turns, ends, frames),
        closes_thinking_only=not _closes_elsewhere(elsewhere, opens, closes),
    )


def _text_opens(turns: MarkedTurns, header: str, opens: str, closes: str, between: str) -> tuple[str, ...]:
    frames = [between.strip().removeprefix(closes).strip()]
    plain = turns.written(turns.message(text=True))
    if plain is not None and plain.startswith(header):
        start = plain[len(header) :].partition(turns.text)[0].strip()
        frames.append(start.removeprefix(opens).strip().removeprefix(closes).strip())
    return tuple(sorted({frame for frame in frames if frame}, key=len, reverse=True))


def _text_closes(turns: MarkedTurns, ends: EndOfTurn, frames: Sequence[str]) -> tuple[str, ...]:
    """Find what closes an answer's frame: as many tags as open it, or all text before the turn's end."""
    if not frames or not ends.answer:
        return ()
    behind = ends.answer[0].text.removesuffix(ends.answer[0].end).strip()
    tags = turns.tags(behind)
    count = min(len(turns.tags(frame)) for frame in frames)
    short = behind[: tags[min(count, len(tags)) - 1].end()] if tags and count else behind
    return tuple(dict.fromkeys(text for text in (behind, short) if text))


def _closes_elsewhere(text: str, opens: str, closes: str) -> bool:
    empty = re.compile(re.escape(opens) + r"\s*" + re.escape(closes))
    return closes in empty.sub("", text)


def _header(turns: MarkedTurns, before: str, prompt: str) -> str:
    """The part of the text before a thought that begins any turn of the assistant."""
    plain = [turns.written(turns.message(text=True), followed=followed) for followed in (False, True)]
    starts = [text.partition(turns.text)[0] for text in plain if text is not None]
    starts += [prompt] if prompt else []
    shared = min((shared_beginning(before, start) for start in starts), key=len, default=before)
    for tag in turns.tags(before):
        if tag.start() < len(shared) < tag.end():
            shared = before[: tag.start()]
    if before[len(shared) :].strip():
        return shared
    # Each turn begins with thinking, which may be empty. A user's message has a header of the same form.
    tags = turns.tags(before)
    count = min(_tags_of_a_user(turns), len(tags))
    opening = next((tag.start() for tag in tags[count:]), len(before))
    return before[:opening]


def _tags_of_a_user(turns: MarkedTurns) -> int:
    messages = [*turns.head, assistant("x")]
    closed = turns.render(messages, generation_prompt=False)
    whole = turns.render([*messages, user(turns.text)], generation_prompt=False)
    if closed is None or whole is None:
        return 1
    shared = len(shared_beginning(closed, whole))
    return len(turns.tags(whole[shared:].partition(turns.text)[0])) or 1


def _closes(turns: MarkedTurns, between: str, count: int) -> str:
    """Find the text that closes a thought: as many tags as open it, and the same ones whatever follows the thought."""
    called_at_once = turns.written(turns.message(thought=True, calls=1)) or ""
    after = called_at_once.partition(turns.thought)[2]
    shared = shared_beginning(between.lstrip(), after.lstrip()) if after else between.lstrip()
    tags = turns.tags(between.lstrip())
    complete = [tag.end() for tag in tags if tag.end() <= len(shared)]
    if complete:
        return between.lstrip()[: complete[min(max(count, 1), len(complete)) - 1]].strip()
    return shared.strip() if not tags else between.strip()
