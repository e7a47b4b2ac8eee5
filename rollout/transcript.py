"""`Transcript`: the messages and the exact tokens of one episode, as they grow.

The tokens of a conversation are one sequence as long as each turn only adds to it. With `history="append"` that is
always so: what was generated stays, and the chat's delta is put behind it. With `history="template"` the chat template
renders the whole conversation before every turn, as an inference server would, with thinking and tool calls taken out
of the text. As long as that rendering begins with the ids that are there, the sequence goes on. Where it does not
(templates drop earlier thinking; what a policy spelled in odd tokens is encoded in the usual ones), the sequence is
over and a new one begins with that rendering as its prompt. A turn that the template refuses (some refuse two calls
at once) stays text. Where it refuses the whole (a result behind a call that could not be read), an inference server
could send nothing at all, and the sequence goes on by the delta.

Context policies change the messages and go the same way. A sequence that has begun is never changed, so each is exactly
what the engine was sent and produced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from toolgym.rollout.chat import Chat
from toolgym.rollout.engines.base import Generation
from toolgym.rollout.rules import History
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import Message, user
from toolgym.tools.parsers import split_reasoning


@dataclass(frozen=True)
class Step:
    """How a conversation would go on: messages and the tokens that they lead to.

    Attributes:
        messages: the conversation as the policy is to see it.
        added: ids to append to the present sequence; None where a new one begins.
        prompt: the new sequence's prompt; None where the present one goes on.
        cause: why a new sequence begins, see `TokenSequence`.
        tokens: tokens of the whole context after the step.
    """

    messages: list[Message]
    added: list[int] | None
    prompt: list[int] | None
    cause: str
    tokens: int

    @property
    def begins(self) -> bool:
        """Whether a new sequence begins."""
        return self.prompt is not None


class Transcript:
    """Messages and tokens of one episode.

    Args:
        chat: renders the messages.
        history: see `History`.
        messages: the conversation that the episode begins with.

    Attributes:
        messages: everything that was said.
        view: the conversation as the policy sees it: `messages`, unless a context policy changed it.
        context: the ids of the present sequence, prompt included; what the engine is sent.

    Raises:
        TemplateError: the template cannot render the messages.
    """

    def __init__(self, chat: Chat, history: History, messages: Sequence[Message]) -> None:
        self._chat, self._history = chat, history
        self.messages = list(messages)
        self.view = list(messages)
        self.context: list[int] = chat.prompt(messages)
        self._done: list[TokenSequence] = []
        self._prompt_ids = tuple(self.context)
        self._segments: list[Segment] = []
        self._turn: list[int] = []
        self._cause = "start"
        self.first_prompt_tokens = len(self.context)
        self._readings: dict[str, Message] = {}  # of turns that are kept as text
        # Some templates open the thinking themselves, at the end of the prompt.
        self._thinks = chat.decode(self.context[-16:]).rstrip().endswith("<think>")

    @property
    def number(self) -> int:
        """Number of the present sequence, counted from 0."""
        return len(self._done)

    @property
    def response_tokens(self) -> int:
        """Tokens of the present sequence behind its prompt."""
        return len(self.context) - len(self._prompt_ids)

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        """All sequences, the present one last."""
        return (*self._done, TokenSequence(self._prompt_ids, tuple(self._segments), self._cause))

    # ------------------------------------------------------------------ the policy's turn

    def sampled(self, generation: Generation) -> None:
        """Keep what the engine generated, as it is."""
        self._turn += generation.token_ids
        if generation.token_ids:
            self._segments.append(Segment(generation.token_ids, True, generation.logprobs, generation.weight_versions))
            self.context += generation.token_ids

    def closed(self, token_ids: Sequence[int]) -> None:
        """Put an end behind a turn that the policy did not end itself."""
        self._turn += token_ids
        self._append(token_ids)

    def _append(self, token_ids: Sequence[int]) -> None:
        if token_ids:
            self._segments.append(Segment(tuple(token_ids), is_policy=False))
            self.context += token_ids

    def said(self, message: Message) -> None:
        """Keep the policy's turn as a message. The tokens are there already."""
        self.messages.append(message)
        self.view.append(message)

    def read(self, text: str, message: Message) -> None:
        """Put the env's reading of the last turn in place of its text, as the history wants it.

        Args:
            text: the turn as generated.
            message: the env's reading of it.
        """
        if self._history is History.APPEND:
            self._readings[text] = part_reasoning(message, starts_open=self._thinks)
            message = self._chat.exact_message(text, message)
        else:
            message = self._renderable(text, part_reasoning(message, starts_open=self._thinks))
        self.messages[-1] = self.view[-1] = message

    def _renderable(self, text: str, message: Message) -> Message:
        """The env's reading, or the turn's text where the template refuses that: some take no two calls in a turn."""
        try:
            self._chat.render([user("x"), message], generation_prompt=False, tools=False)
        except TemplateError:
            return part_reasoning({"role": "assistant", "content": text}, starts_open=self._thinks)
        return message

    # ------------------------------------------------------------------ the env's answer

    def observed(self, observation: Sequence[Message]) -> Step:
        """How the conversation goes on with new messages. Nothing changes before `take`.

        Raises:
            TemplateError: the template cannot render them.
        """
        view = [*self.view, *observation]
        if self._history is History.TEMPLATE:
            with contextlib.suppress(TemplateError):  # what the policy wrote made it so: it may go on, see the module
                return self.rewritten(view, "template")
        added = self._chat.extend(observation, self._turn)
        return Step(view, added, None, "", len(self.context) + len(added))

    def rewritten(self, view: list[Message], cause: str) -> Step:
        """How the conversation goes on with messages of which any may have changed. Nothing changes before `take`.

        Turns that are kept as text are rendered as the env read them where the template refuses the text: some take no
        tool result without a structured call before it.

        Raises:
            TemplateError: the template cannot render them.
        """
        try:
            ids = self._chat.prompt(view)
        except TemplateError:
            structured = [
                self._readings.get(message["content"], message) if _is_text(message) else message for message in view
            ]
            ids = self._chat.prompt(structured)
        if ids[: len(self.context)] == self.context:
            return Step(view, ids[len(self.context) :], None, "", len(ids))
        return Step(view, None, ids, cause, len(ids))

    def renders(self, view: Sequence[Message]) -> bool:
        """Whether the template can render such messages as a new sequence."""
        try:
            self.rewritten(list(view), "")
        except TemplateError:
            return False
        return True

    def take(self, step: Step, observation: Sequence[Message]) -> None:
        """Go on as `step` says.

        Args:
            step: from `observed` or `rewritten`.
            observation: the new messages, for the record.
        """
        self.messages.extend(observation)
        self.view = step.messages
        self._turn = []
        if step.prompt is None:
            self._append(step.added or ())
            return
        self._done = list(self.sequences)
        self._prompt_ids, self._segments, self._cause = tuple(step.prompt), [], step.cause
        self.context = list(step.prompt)


def _is_text(message: Message) -> bool:
    return message["role"] == "assistant" and "tool_calls" not in message


def part_reasoning(message: Message, *, starts_open: bool) -> Message:
    """Move the thinking of an assistant message from its content to `reasoning_content`, as inference servers do.

    Args:
        message: the message; one that has `reasoning_content` stays as it is.
        starts_open: the prompt had opened the thinking already.
    """
    if "reasoning_content" in message:
        return message
    reasoning, content = split_reasoning(message["content"], starts_open=starts_open)
    if reasoning is None:
        return message
    return {**message, "content": content.strip(), "reasoning_content": reasoning.strip()}
