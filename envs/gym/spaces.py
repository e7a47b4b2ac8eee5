"""Actions and observations as Gymnasium spaces: `TextSpace` and `ChatSpace`.

Gymnasium's own `Text` wants a finite set of characters; what a language model writes has none. Batches of both are
plain tuples with one member per env.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, cast, get_args

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_differing_spaces, create_empty_array

from toolgym.envs.tasks.arrow_shape import is_unicode
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message, MessageToolCall, Role, require_content, text_of

MAX_ACTION_LENGTH = 1 << 20
"""Characters that one action may have by default: more than any model writes in a turn."""

SAMPLE_LENGTH = 32
"""Longest text that `sample` makes, in characters, unless the space wants longer ones."""

SAMPLE_MESSAGES = 4

_ROLES: tuple[str, ...] = get_args(Role)

# One-byte, two-byte, three-byte and four-byte characters of UTF-8, and white space.
_SAMPLED_CHARACTERS = (
    [chr(code) for code in range(0x20, 0x7F)]
    + [chr(code) for code in range(0x3B1, 0x3CA)]
    + [chr(code) for code in range(0x4E00, 0x4E40)]
    + [chr(code) for code in range(0x1F600, 0x1F640)]
    + ["\n", "\t"]
)


class TextSpace(gymnasium.Space[str]):
    """All texts from `min_length` to `max_length` characters that UTF-8 can encode, that is, without lone surrogates.

    Example:
        >>> space = TextSpace(max_length=8)
        >>> "naïve 🙂" in space, "too long for it" in space, 3 in space
        (True, False, False)
    """

    def __init__(
        self,
        max_length: int = MAX_ACTION_LENGTH,
        *,
        min_length: int = 0,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if not isinstance(max_length, int) or not isinstance(min_length, int) or not 0 <= min_length <= max_length:
            raise ConfigError(
                "a TextSpace needs integers 0 <= min_length <= max_length, "
                f"got min_length={min_length!r} and max_length={max_length!r}"
            )
        self.min_length = min_length
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Draw a short random text; reproducible through `seed`. There are no masks."""
        _refuse_masks(self, mask, probability)
        longest = min(self.max_length, max(self.min_length, SAMPLE_LENGTH))
        length = int(self.np_random.integers(self.min_length, longest + 1))
        picks = self.np_random.integers(len(_SAMPLED_CHARACTERS), size=length)
        return "".join(_SAMPLED_CHARACTERS[pick] for pick in picks)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length and is_unicode(x)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TextSpace) and self.min_length == other.min_length and self.max_length == other.max_length
        )

    def __repr__(self) -> str:
        return f"TextSpace({self.max_length}, min_length={self.min_length})"


class ChatSpace(gymnasium.Space[tuple[Message, ...]]):
    """All sequences of chat messages, at most `max_messages` of at most `max_length` characters.

    A member is a tuple (or a list) of messages in the shape of `toolgym.tools.message.Message`: a dict with `role` and
    a `content`, which is a text or a list of texts and images; with the role `assistant` maybe `tool_calls` and
    `reasoning_content`, with the role `tool` maybe `tool_call_id` and `name`; nothing else.

    Example:
        >>> space = ChatSpace()
        >>> ({"role": "user", "content": "hi"},) in space, ({"role": "user"},) in space
        (True, False)
    """

    def __init__(
        self,
        *,
        max_messages: int | None = None,
        max_length: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        for name, value in (("max_messages", max_messages), ("max_length", max_length)):
            if value is not None and (not isinstance(value, int) or value < 0):
                raise ConfigError(f"{name} of a ChatSpace must be None or an integer of at least 0, got {value!r}")
        self.max_messages = max_messages
        self.max_length = max_length
        super().__init__(seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: None = None, probability: None = None) -> tuple[Message, ...]:
        """Draw a few messages with random roles and short random texts; reproducible through `seed`. No masks."""
        _refuse_masks(self, mask, probability)
        most = SAMPLE_MESSAGES if self.max_messages is None else min(SAMPLE_MESSAGES, self.max_messages)
        longest = SAMPLE_LENGTH if self.max_length is None else min(SAMPLE_LENGTH, self.max_length)
        # Shares this space's random generator, so that one seed decides everything.
        texts = TextSpace(longest, seed=self.np_random)
        return tuple(self._sample_message(texts) for _ in range(int(self.np_random.integers(most + 1))))

    def _sample_message(self, texts: TextSpace) -> Message:
        role = cast(Role, _ROLES[int(self.np_random.integers(len(_ROLES)))])
        message: Message = {"role": role, "content": texts.sample()}
        if role == "tool":
            message["tool_call_id"] = f"call_{self.np_random.integers(100)}"
            message["name"] = f"tool_{self.np_random.integers(100)}"
        elif role == "assistant" and self.np_random.integers(2):
            call: MessageToolCall = {
                "id": f"call_{self.np_random.integers(100)}",
                "type": "function",
                "function": {
                    "name": f"tool_{self.np_random.integers(100)}",
                    "arguments": {"text": texts.sample()},
                },
            }
            message["tool_calls"] = [call]
        if role == "assistant" and self.np_random.integers(2):
            message["reasoning_content"] = texts.sample()
        return message

    def contains(self, x: Any) -> bool:
        if not isinstance(x, tuple | list) or (self.max_messages is not None and len(x) > self.max_messages):
            return False
        return all(self._is_message(message) for message in x)

    def _is_message(self, message: Any) -> bool:
        if (
            not isinstance(message, dict)
            or message.get("role") not in _ROLES
            or not _is_content(message.get("content"))
        ):
            return False
        if self.max_length is not None and len(text_of(message["content"])) > self.max_length:
            return False
        extra = message.keys() - {"role", "content"}
        if message["role"] == "assistant":
            calls = message.get("tool_calls", [])
            return (
                extra <= {"tool_calls", "reasoning_content"}
                and isinstance(calls, list)
                and all(_is_tool_call(call) for call in calls)
                and _is_text(message.get("reasoning_content", ""))
            )
        if message["role"] == "tool":
            return extra <= {"tool_call_id", "name"} and all(_is_text(message[key]) for key in extra)
        return not extra

    def to_jsonable(self, sample_n: Iterable[tuple[Message, ...]]) -> list[list[Message]]:
        return [[copy.deepcopy(message) for message in member] for member in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[tuple[Message, ...]]:
        return [tuple(copy.deepcopy(message) for message in member) for member in sample_n]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ChatSpace)
            and self.max_messages == other.max_messages
            and self.max_length == other.max_length
        )

    def __repr__(self) -> str:
        return f"ChatSpace(max_messages={self.max_messages}, max_length={self.max_length})"


def _refuse_masks(space: gymnasium.Space[Any], mask: object, probability: object) -> None:
    if mask is not None or probability is not None:
        raise ConfigError(f"{space!r} has no finite set of members to mask; call sample() without arguments")


def _is_content(value: object) -> bool:
    try:
        return is_unicode(text_of(require_content(value)))
    except ConfigError:
        return False


def _is_text(value: object) -> bool:
    return isinstance(value, str) and is_unicode(value)


def _is_tool_call(call: object) -> bool:
    if not isinstance(call, dict) or call.keys() != {"id", "type", "function"}:
        return False
    function = call["function"]
    return (
        _is_text(call["id"])
        and call["type"] == "function"
        and isinstance(function, dict)
        and function.keys() == {"name", "arguments"}
        and _is_text(function["name"])
        and isinstance(function["arguments"], dict)
        and _is_json(function["arguments"])
    )


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(_is_json(inner) for inner in value)
    return value is None or isinstance(value, str | int | float)


# `batch_space`, `iterate` and `concatenate` treat an unknown space as these two need it: a Tuple of copies, and plain
# tuples of members. The other two functions know nothing of unknown spaces.
# This one is dispatched by hand, on the type of the first of the spaces, which a type checker cannot know.
@batch_differing_spaces.register(TextSpace)
@batch_differing_spaces.register(ChatSpace)
def _batch_differing(spaces: Any) -> gymnasium.spaces.Tuple[Any]:  # type: ignore[misc]
    return gymnasium.spaces.Tuple([copy.deepcopy(space) for space in spaces], seed=copy.deepcopy(spaces[0].np_random))


@create_empty_array.register(TextSpace)
def _empty_texts(space: TextSpace, n: int = 1, fn: Callable[..., Any] = np.zeros) -> tuple[str, ...]:
    return (" " * space.min_length,) * n


@create_empty_array.register(ChatSpace)
def _empty_chats(space: ChatSpace, n: int = 1, fn: Callable[..., Any] = np.zeros) -> tuple[tuple[Message, ...], ...]:
    return ((),) * n
