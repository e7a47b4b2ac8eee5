"""`Conversation`: the messages and the exact tokens of one episode, as they grow.

With `history="append"` all tokens are one sequence: what was generated stays, and the renderer's delta is put after it.
With `history="template"` the chat template renders the whole conversation before every turn, as an inference server
would, with thinking and tool calls taken out of the text. As long as that rendering begins with the ids that are there,
the sequence goes on. If it does not (templates drop earlier thinking; what a policy spelled in unusual tokens is
encoded in the usual ones), a new sequence begins with that rendering as its prompt. A turn that the template refuses
(some refuse two calls at once) stays text. If it refuses the whole, the sequence goes on by the delta.

Context policies, and envs that begin the context anew, change the messages and go the same way. A sequence that has
begun is never changed, so each is exactly what the engine was sent and produced.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from toolgym.rollout.engines.base import Generation
from toolgym.rollout.limits import HistoryMode
from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.models.token_ids import TokenIds
from toolgym.rollout.tokens.placed_ids import images_in, moved
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.token_sequence import Ids, Segment, TokenSequence
from toolgym.tools.errors import TemplateError
from toolgym.tools.message import Message, assistant, user
from toolgym.tools.parsers import ParsedTurn


@dataclass(frozen=True)
class Extension:
    """Possible continuation of a conversation: messages as the policy is to see them, and the tokens that they lead
    to. Either `added` ids go behind the present sequence, or a new one begins with `prompt`, for `start_reason`.
    `tokens` counts the whole context, and `images` are all that are in it."""

    messages: list[Message]
    added: list[int] | None
    prompt: list[int] | None
    start_reason: str
    tokens: int
    images: tuple[PlacedImage, ...] = ()

    @property
    def begins_sequence(self) -> bool:
        return self.prompt is not None


class Conversation:
    """Messages and tokens of one episode. One turn goes through `add_generation` (once for each part), `add_turn`,
    perhaps `add_env_tokens`, `parse_turn` and `set_message`; then `apply` puts the observation behind it. `view` are
    the messages as the policy sees them, `context` are the ids of the present sequence, prompt included, and `images`
    those in it."""

    __slots__ = (
        "_done", "_examples", "_history", "_prompt", "_readings", "_renderer", "_requests", "_segments",
        "_start_reason", "_starts_open", "_text", "_turn_start", "context", "first_prompt_tokens",
        "images", "messages", "view",
    )  # fmt: skip

    def __init__(
        self, renderer: ChatRenderer, history: HistoryMode, messages: Sequence[Message], *, most: int | None = None
    ) -> None:
        self._renderer, self._history = renderer, history
        self.messages = list(messages)
        self.view = list(messages)
        self._examples = tuple(message for message in messages if message["role"] == "assistant")
        ids, self.images = renderer.begin(messages, most=most)
        self._prompt = self.context = ids
        self._done: tuple[TokenSequence, ...] = ()
        self._segments: list[Segment] = []
        self._start_reason = "start"
        self.first_prompt_tokens = self._turn_start = len(self.context)  # where the present turn begins in the context
        self._text = ""  # of the present turn, without what closes it
        self._starts_open = renderer.leaves_thinking_open(self.context)  # the present turn begins inside of thinking
        self._requests = 0  # of all turns so far
        self._readings: list[_Reading] = []

    def fork(self) -> Conversation:
        """Return a conversation in the same state that goes on by itself. Both share the arrays of the ids so far."""
        twin = copy.copy(self)
        twin.messages, twin.view = [*self.messages], [*self.view]
        twin._segments, twin._readings = [*self._segments], [*self._readings]
        return twin

    @property
    def number(self) -> int:
        return len(self._done)

    @property
    def response_tokens(self) -> int:
        return len(self.context) - len(self._prompt)

    @property
    def turn_ids(self) -> Sequence[int]:
        return self.context[self._turn_start :]

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        last = TokenSequence(cast(Ids, self._prompt), tuple(self._segments), self._start_reason, self.images)
        return (*self._done, last)

    def add_generation(self, generation: Generation) -> None:
        if generation.token_ids:
            logprobs, versions = generation.logprob_array, generation.weight_versions
            self._segments.append(Segment.policy(generation.ids, logprobs, versions, generation.aligned))
            self.context = self.context.followed_by(generation.ids)

    def add_turn(self) -> str:
        """Keep the generations of this turn as an assistant message; return its text, without the token that ended
        it."""
        self._text = self._renderer.text(self.turn_ids)
        message = assistant(self._text)
        self.messages.append(message)
        self.view.append(message)
        return self._text

    def missing_end(self) -> list[int]:
        return self._renderer.close_turn(self.turn_ids, starts_open=self._starts_open)

    def add_env_tokens(self, token_ids: Sequence[int]) -> None:
        """Put ids after the context that the policy did not sample, such as the end of a turn that it left open."""
        if token_ids:
            ids = TokenIds(token_ids)
            self._segments.append(Segment.env(ids))
            self.context = self.context.followed_by(ids)

    def parse_turn(self, *, end: int | None = None) -> ParsedTurn:
        """Read the turn, or only its first `end` characters."""
        turn = self._renderer.parse_text(self._text[:end], first_id=self._requests, starts_open=self._starts_open)
        self._requests += len(turn.requests)
        return turn

    def set_message(self, message: Message) -> None:
        """Put the turn's reading, by `parse_turn` or the env, in the place of its text, as the history mode wants
        it."""
        reading = self._renderer.part_reasoning(message, starts_open=self._starts_open)
        if self._history is HistoryMode.APPEND:
            message = self._renderer.exact_message(self._text, message)
            if _is_text(message):
                self._readings.append(_Reading(self._text, reading))
        else:
            message = self._renderable(reading)
        self.messages[-1] = self.view[-1] = message

    def _renderable(self, reading: Message) -> Message:
        """The reading, or the turn's text if the template refuses it: some take no two calls in a turn."""
        try:
            self._renderer.render([user("x"), reading], generation_prompt=False, tools=False)
        except TemplateError:
            return self._renderer.part_reasoning(assistant(self._text), starts_open=self._starts_open)
        return reading

    def to_encode(self, observation: Sequence[Message]) -> Sequence[Message]:
        return observation if self._history is HistoryMode.APPEND else [*self.view, *observation]

    def extended_with(self, observation: Sequence[Message], *, most: int | None = None) -> Extension:
        """Continue the conversation with new messages, to at most `most` tokens. Nothing changes before `apply`."""
        view = [*self.view, *observation]
        if self._history is HistoryMode.TEMPLATE:
            with contextlib.suppress(TemplateError):  # because of what the policy wrote: it goes on, see the module
                return self.rewritten(view, "template", most=most)
        room = None if most is None else most - len(self.context)
        added = self._renderer.extend(observation, self.turn_ids, earlier=self.view[:-1], most=room)
        images = (*self.images, *moved(images_in(added), len(self.context)))
        return Extension(view, added, None, "", len(self.context) + len(added), images)

    def rewritten(self, view: list[Message], start_reason: str, *, most: int | None = None) -> Extension:
        """Continue the conversation with messages of which any may have changed. Nothing changes before `apply`.
        Turns that are kept as text are rendered as they were read if the template refuses the text: some templates
        take no tool result without a structured call before it."""
        prove = self._history is HistoryMode.APPEND
        try:
            ids = self._renderer.prompt(view, most=most, examples=self._examples, prove=prove)
        except TemplateError:
            view_of_calls = self._structured(view)
            ids = self._renderer.prompt(view_of_calls, most=most, examples=self._examples, prove=prove)
        images = images_in(ids)
        if tuple(ids[: len(self.context)]) == self.context and images[: len(self.images)] == self.images:
            return Extension(view, ids[len(self.context) :], None, "", len(ids), images)
        return Extension(view, None, ids, start_reason, len(ids), images)

    def _structured(self, view: Sequence[Message]) -> list[Message]:
        """The messages, with its own reading in the place of each turn that is kept as text. Turns come in the order
        of their sampling. A context policy may have dropped some, so among turns of the same text the result behind
        the message decides."""
        left = list(self._readings)
        structured: list[Message] = []
        for message, behind in zip(view, [*view[1:], None], strict=True):
            same = [turn for turn in left if turn.text == message["content"]] if _is_text(message) else []
            if same:
                match = next((turn for turn in same if behind is not None and turn.is_answered_by(behind)), same[0])
                left.remove(match)
                message = match.message
            structured.append(message)
        return structured

    def renders(self, view: Sequence[Message]) -> bool:
        try:
            self.rewritten(list(view), "")
        except TemplateError:
            return False
        return True

    def apply(self, extension: Extension, observation: Sequence[Message]) -> None:
        self.messages.extend(observation)
        self.view = extension.messages
        if extension.prompt is None:
            self.add_env_tokens(extension.added or ())
        else:
            self._done = self.sequences
            self._segments, self._start_reason = [], extension.start_reason
            self._prompt = self.context = TokenIds(extension.prompt)
        self.images = extension.images
        self._turn_start = len(self.context)
        self._starts_open = self._renderer.leaves_thinking_open(self.context)


class _Reading(NamedTuple):
    text: str
    message: Message

    def is_answered_by(self, result: Message) -> bool:
        return any(call["id"] == result.get("tool_call_id") for call in self.message.get("tool_calls", ()))


def _is_text(message: Message) -> bool:
    return message["role"] == "assistant" and "tool_calls" not in message
