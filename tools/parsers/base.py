"""The contract of a tool-call parser: from a turn's text to a `ParsedTurn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from toolgym.tools.message import Message, assistant, visible_text
from toolgym.tools.schema import ToolCall, ToolCallError, ToolSchema


class ParsedTurn(NamedTuple):
    """One assistant turn as a parser read it. An env takes it as an action.

    Attributes:
        text: the turn as generated, without its end-of-turn token.
        content: the text outside of calls, as written. Thinking between tags is part of it; `visible_content` is the
            content without thinking.
        errors: the malformed calls. `index` orders calls and errors together.
        reasoning: the thinking, if it is not part of the content: the format has no tags for it (`gpt_oss`), or the
            renderer took it out because the model's tags are not `<think>`.
        open_thinking: whether the turn ended inside of thinking that its tags, or the generation prompt, had opened.
            Nothing after the opening is an answer then.
        text_without_thinking: the text with its calls and without its thinking, if only the renderer knows the
            thinking's tags.
    """

    text: str
    content: str
    calls: list[ToolCall]
    errors: list[ToolCallError]
    reasoning: str | None = None
    open_thinking: bool = False
    text_without_thinking: str | None = None

    @property
    def visible_content(self) -> str:
        """The content without its thinking: what another model, another role or a simulated user may read.

        A turn that ended inside of its thinking has none. Calls that could not be read are part of it.
        """
        return self.without_thinking().content.strip()

    def without_thinking(self) -> ParsedTurn:
        """Return the turn for other readers: its text and content without thinking, and no `reasoning`."""
        if self.open_thinking:
            return self._replace(text="", content="", reasoning=None, open_thinking=False)
        written = self.text if self.text_without_thinking is None else self.text_without_thinking
        content = visible_text(written if self.errors else self.content)
        has_no_tags = self.reasoning is not None and self.text_without_thinking is None
        text = content if has_no_tags else visible_text(written)
        return self._replace(text=text, content=content, reasoning=None, text_without_thinking=None)

    @property
    def requests(self) -> list[ToolCall | ToolCallError]:
        return sorted([*self.calls, *self.errors], key=lambda request: request.index)

    @property
    def message(self) -> Message:
        """The turn as an assistant message: with `tool_calls`, or as its text if a call could not be read."""
        if self.errors:
            return assistant(self.text)
        message = assistant(self.content)
        if self.calls:
            message["content"] = self.content.strip()
            message["tool_calls"] = [call.to_message() for call in self.calls]
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        return message


class Parser(Protocol):
    """A pure function from a turn's text, without its end-of-turn token, to a `ParsedTurn`. toolgym's parsers keep
    these rules:

    * No text makes them raise. The time is linear in the text.
    * Arguments are never invented or repaired. A call that cannot be read is an error that says what was expected and
      what was written; it keeps its place among the others.
    * Calls inside of thinking do not count (see `toolgym.tools.parsers.scan.scan`).
    * The text must still hold its special tokens, as `tokenizer.decode(ids, skip_special_tokens=False)` gives it: most
      formats mark calls with them.
    """

    def __call__(
        self,
        text: str,
        *,
        first_id: int = 0,
        schemas: Mapping[str, ToolSchema] | None = None,
        starts_open: bool = False,
    ) -> ParsedTurn:
        """Read a turn.

        Ids are `call_N`, counted from `first_id` over the episode. Formats whose chat templates want ids of another
        form (mistral, kimi) have that form, and keep the ids that the model wrote. Formats that write every value as
        text (qwen3_coder, glm) need the `schemas` by name to tell the number 5 from the text "5"; without them all
        values stay text. With `starts_open`, the generation prompt ended with `<think>`, so that the text begins inside
        of thinking. If that is not known, a closing tag tells it, but thinking that never closes looks like content.
        """
        ...


def read_plain_turn(text: str, *, starts_open: bool = False, **_: object) -> ParsedTurn:
    """Read a turn that has no calls: all of the text is content. A `Parser` for policies without tools."""
    opened = max(text.rfind("<think>"), 0 if starts_open else -1)
    return ParsedTurn(text, text, [], [], open_thinking=opened > text.rfind("</think>"))


def split_reasoning(
    text: str, *, open_tag: str = "<think>", close_tag: str = "</think>", starts_open: bool = False
) -> tuple[str | None, str]:
    """Return the thinking that a turn begins with (None if it has none), and the rest.

    Nothing is stripped or joined, so that `open_tag + reasoning + close_tag + content` is the text, but for white space
    before the opening tag. The first closing tag counts; without one, the rest is empty. With `starts_open` the
    generation prompt ended with `open_tag`, so that the text begins inside of it.
    """
    if not starts_open:
        stripped = text.lstrip()
        if not stripped.startswith(open_tag):
            return None, text
        text = stripped[len(open_tag) :]
    elif text.lstrip().startswith(open_tag):  # some models open it again although the prompt did
        text = text.lstrip()[len(open_tag) :]
    reasoning, _, content = text.partition(close_tag)
    return reasoning, content
