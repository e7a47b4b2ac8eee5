"""Context policies: how much of a long conversation the policy goes on seeing.

`admit` looks at each new message before the model reads it and may shorten it. `revise` looks at the whole conversation
before each turn and may give another one in its place; then the present token sequence is over and a new one begins
(see `toolgym.rollout.tokens.conversation`). The trajectory's `messages` keep every message.

    config = RunConfig(context=[CutToolResults(max_tokens=2000), KeepToolResults(last=3)])
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from toolgym.envs.entry_points import named_factory
from toolgym.rollout.tokens.chat_template import ROLES
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.tokens.safe_encoder import SafeEncoder
from toolgym.rollout.tokens.token_bounds import TooManyTokensError
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest
from toolgym.tools.lazy import missing_extra
from toolgym.tools.message import Message

try:
    from tokenizers import Encoding
except ImportError as error:
    raise missing_extra("rollout", "Exact tokens", error) from error


@dataclass(frozen=True)
class ContextState:
    """Tokens that the context would have if the messages stayed as they are, and the most that it may have."""

    tokens: int
    budget: int


class ContextPolicy:
    """Decides what the policy goes on seeing. One instance serves all episodes, so it keeps nothing between calls.

    An error in either method ends the episode with `StopReason.CONTEXT_FAILED`.

    Attributes:
        tokenizes: `admit` may take long for a long message: then it runs in a thread, so that other episodes go on.
    """

    tokenizes: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The `TokenSequence.start_reason` of the sequences that it begins."""
        return type(self).__name__

    @property
    def revises(self) -> bool:
        """Whether it may begin a new token sequence: it has a `revise` of its own."""
        return type(self).revise is not ContextPolicy.revise

    def admit(self, message: Message, renderer: ChatRenderer) -> Message:
        """Return the new message, which is not to be changed, as the model is to read it. Called once for each of a
        step."""
        return message

    async def revise(self, messages: Sequence[Message], state: ContextState) -> Sequence[Message]:
        """Return the conversation as the model is to see it from here on, the new messages included.

        Called before each turn but the first, for at most `EpisodeLimits.context_timeout` seconds. The messages are not
        to be changed; the same ones go on without a new sequence.
        """
        return messages


@dataclass(frozen=True)
class KeepToolResults(ContextPolicy):
    """Replaces all tool results but the last ones by a short placeholder.

    Each change begins a new sequence, whose prompt the engine has to read from its start; `slack` makes that rarer.
    Raises ConfigError for a number out of range.

    Attributes:
        last: how many results are kept. Each message of a tool counts, those of parallel calls too.
        slack: how many results more may pile up before all but the last ones are replaced at once.
        placeholder: text that stands for the others.
    """

    last: int
    slack: int = 0
    placeholder: str = "[An earlier tool result was left out here.]"

    def __post_init__(self) -> None:
        if self.last < 1 or self.slack < 0:
            raise ConfigError(
                f"last must be at least 1 and slack at least 0, got last={self.last!r} and slack={self.slack!r}"
            )

    async def revise(self, messages: Sequence[Message], state: ContextState) -> Sequence[Message]:
        whole = [
            index
            for index, message in enumerate(messages)
            if message["role"] == "tool" and message["content"] != self.placeholder
        ]
        if len(whole) <= self.last + self.slack:
            return messages
        replaced = set(whole[: -self.last])
        return [
            {**message, "content": self.placeholder} if index in replaced else message
            for index, message in enumerate(messages)
        ]


@dataclass(frozen=True)
class CutToolResults(ContextPolicy):
    """Cuts the middle out of long tool results as they arrive; a note in its place says how many tokens were there.

    Nothing that the model has read is changed, so no new sequence begins. Raises ConfigError for a number out of range.

    Attributes:
        max_tokens: most tokens of a result, the note included.
        head: share of what is kept that comes from the result's beginning; the rest comes from its end.
    """

    tokenizes: ClassVar[bool] = True

    max_tokens: int
    head: float = 0.5

    def __post_init__(self) -> None:
        if self.max_tokens < 64:
            raise ConfigError(
                f"max_tokens must be at least 64, so that more than the note is left, got {self.max_tokens!r}"
            )
        if not 0 <= self.head <= 1:
            raise ConfigError(f"head must be a share between 0 and 1, got {self.head!r}")

    def admit(self, message: Message, renderer: ChatRenderer) -> Message:
        content = message["content"]
        if message["role"] != "tool" or not isinstance(content, str):
            return message  # the renderer refuses a content that is not text
        encoder = SafeEncoder.of(renderer.tokenizer)
        with contextlib.suppress(TooManyTokensError):
            if len(encoder.encode(encoder.protect(content), most=self.max_tokens)) <= self.max_tokens:
                return message
        places = encoder.plain(content)
        kept = min(self.max_tokens, len(places))
        while True:
            head = round(kept * self.head)
            tail = kept - head
            start = _span(places, head - 1)[1] if head else 0
            end = max(start, _span(places, len(places) - tail)[0]) if tail else len(content)
            note = f"\n[... {len(places) - kept} tokens were left out here ...]\n"
            text = content[:start] + note + content[end:]
            # Counted as the prompt will have it: a control token's text is several tokens there.
            excess = len(encoder.encode(encoder.protect(text))) - self.max_tokens
            if excess <= 0 or kept == 0:
                return {**message, "content": text}
            kept = max(0, kept - excess)


def _span(places: Encoding, index: int) -> tuple[int, int]:
    """Begin and end of a token in its text. One by one: the list of all takes a tenth of the encoding's time."""
    span = places.token_to_chars(index)
    assert span is not None
    return span


Summary = Callable[[list[Message]], Awaitable[Sequence[Message]]]


@dataclass(frozen=True)
class Summarize(ContextPolicy):
    """Lets a function of yours write a shorter conversation when the context fills up. Raises ConfigError if `share` is
    out of range.

    Attributes:
        callback: gets copies of all messages and returns those that take their place. They are rendered as a prompt, so
            they usually end with a message of a user or a tool; tool results need the assistant's message that called.
        share: it is called before each turn once this share of the budget is used.
    """

    callback: Summary
    share: float = 0.75

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share must be above 0 and at most 1, got {self.share!r}")

    async def revise(self, messages: Sequence[Message], state: ContextState) -> Sequence[Message]:
        if state.tokens <= self.share * state.budget:
            return messages
        return await self.callback([message.copy() for message in messages])


def read_context(policies: Any) -> tuple[ContextPolicy, ...]:
    """The context policies that a configuration names, for trainers whose settings are plain data.

    Each is a `ContextPolicy`, the name of what makes one, or a mapping with that `name` and its `kwargs`, as `{"name":
    "KeepToolResults", "kwargs": {"last": 3}}`. The name is a class of this module, or `"package.module:name"`.

    Raises:
        UnknownNameError: there is no such class, module or argument; names the nearest one.
        ConfigError: something of another shape was given, or an argument cannot be used.
    """
    if isinstance(policies, ContextPolicy | Mapping | str):
        policies = [policies]
    if not isinstance(policies, Sequence):
        raise ConfigError(f"context must be a list of context policies, got {policies!r}")
    return tuple(policy if isinstance(policy, ContextPolicy) else _make_policy(policy) for policy in policies)


_OWN = ("CutToolResults", "KeepToolResults", "Summarize")


def _make_policy(spec: Any) -> ContextPolicy:
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    if isinstance(name, str) and ":" not in name:
        if name not in _OWN:
            raise UnknownNameError(
                f"there is no context policy {name!r}{nearest(name, _OWN)}: expected {', '.join(_OWN)} or "
                "package.module:name"
            )
        spec = {"kwargs": {}, **(spec if isinstance(spec, Mapping) else {}), "name": f"{__name__}:{name}"}
    make = named_factory(spec, "a context policy", f"one of {', '.join(_OWN)}")
    try:
        policy = make()
    except TypeError as error:
        raise ConfigError(f"the context policy {spec!r} cannot be made: {error}") from error
    if not isinstance(policy, ContextPolicy):
        raise ConfigError(f"{spec!r} must give a context policy, got {policy!r}")
    return policy


def checked_messages(giver: str, messages: Any) -> list[Message]:
    if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
        raise ConfigError(f"{giver} must return a list of messages, got {messages!r}")
    for message in messages:
        if (
            not isinstance(message, dict)
            or message.get("role") not in ROLES
            or not isinstance(message.get("content"), str)
        ):
            raise ConfigError(
                f"{giver} must return messages with a role out of {', '.join(ROLES)} and a "
                f"text content, got {message!r}"
            )
    if messages[-1]["role"] == "assistant":
        raise ConfigError(
            f"{giver} returned a conversation that ends with the assistant's message; the "
            "policy speaks next, so it must end with another's"
        )
    return list(messages)
