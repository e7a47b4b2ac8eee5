"""Values of foreign envs as plain ones: rewards, flags, messages."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

from toolgym.envs.tool_instances import encodable
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.message import Content, Message, Role, image_part, is_parts, joined, system, text_part, user

_ROLES = get_args(Role)
_NAME_OF_TEXT = ("text", "input_text", "output_text")


def number_of(value: Any, what: str) -> float:
    """Return a reward as a number: a scalar, or an array or tensor of one element; None is 0."""
    plain = _plain(value, what)
    if not isinstance(plain, numbers.Real):
        raise EpisodeFailedError(
            StopReason.ENV_FAILED, f"{what} gave a reward that is no number: {shorten(repr(value))}"
        )
    number = float(plain)
    if not math.isfinite(number):
        raise EpisodeFailedError(StopReason.ENV_FAILED, f"{what} gave a reward that is not finite: {number!r}")
    return number


def flag_of(value: Any, what: str) -> bool:
    """Return whether an episode is over: a bool, or an array or tensor of one element."""
    plain = _plain(value, what)
    if plain not in (0, 1):
        text = f"{what} must say whether the episode is over with a bool, got {shorten(repr(value))}"
        raise EpisodeFailedError(StopReason.ENV_FAILED, text)
    return bool(plain)


def metrics_of(info: Mapping[Any, Any]) -> dict[str, float]:
    """Return the finite numbers of an info by name, `env/` put before each."""
    metrics = {}
    for name, value in info.items():
        item = value.item() if callable(getattr(value, "item", None)) and getattr(value, "size", 0) == 1 else value
        if isinstance(item, numbers.Real) and math.isfinite(item):
            metrics[f"env/{name}"] = float(item)
    return metrics


def messages_of(
    observation: Any, what: str, to_text: Callable[[Any], str | Sequence[Message]] | None = None
) -> list[Message]:
    """Return an observation as messages: a text as a user's message, messages as they are, nothing as none.

    `what` names its env in errors; `to_text` makes a text or messages of an observation of another kind.
    """
    if to_text is not None:
        observation = to_text(observation)
    if observation is None:
        return []
    if isinstance(observation, str):
        return [user(encodable(observation))] if observation else []
    if isinstance(observation, Mapping) and "role" in observation:
        return [message_of(observation, what)]
    if isinstance(observation, list | tuple) and all(
        isinstance(message, Mapping) and "role" in message for message in observation
    ):
        return [message_of(message, what) for message in observation]
    raise ConfigError(
        f"the observations of {what} must be texts or chat messages, got {type(observation).__name__}: "
        f"{shorten(repr(observation))}; give to_text=, a function that makes a text of one"
    )


def message_of(value: Mapping[str, Any], what: str) -> Message:
    """Return a chat message of a foreign env, copied. Raises ConfigError: its role is unknown, or it has no text."""
    role = value.get("role")
    if role not in _ROLES:
        raise ConfigError(f"a message of {what} needs a role out of {', '.join(_ROLES)}, got {shorten(repr(value))}")
    message: dict[str, Any] = {"role": role, "content": content_of(value.get("content"), what)}
    for name in ("tool_call_id", "name", "tool_calls", "reasoning_content"):
        if value.get(name) is not None:
            message[name] = value[name]
    return cast(Message, message)


def content_of(content: Any, what: str) -> Content:
    """Return the content of a message: as text, or with the images that it holds as data URLs."""
    if not is_parts(content):
        return text_of(content, what)
    return [
        image_part(part["image_url"].get("url")) if part["type"] == "image_url" else text_part(text_of(part, what))
        for part in content
    ]


def text_of(content: Any, what: str) -> str:
    """Return a content without images as text; the texts of several parts are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return encodable(content)
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence) or not all(isinstance(part, str | Mapping) for part in content):
        raise ConfigError(f"the content of a message of {what} must be text, got {shorten(repr(content))}")
    texts = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") not in _NAME_OF_TEXT:
            raise ConfigError(
                f"a message of {what} holds a part of type {part.get('type')!r}; toolgym passes on texts, and "
                "images as OpenAI's image_url with a data URL, so such an env cannot be wrapped, unless to_text= makes "
                "a text of its observations"
            )
        texts.append(part if isinstance(part, str) else str(part.get("text", "")))
    return encodable("\n".join(texts))


def opened(before: Sequence[Message], first: Sequence[Message]) -> list[Message]:
    """Return the messages of a task with the env's first observation behind them.

    Many chat templates refuse two messages of a user in a row, so an observation after one becomes a part of it.
    """
    messages = [message.copy() for message in before]
    rest = list(first)
    if messages and rest and messages[-1]["role"] == rest[0]["role"] == "user":
        messages[-1] = user(joined([messages[-1]["content"], rest.pop(0)["content"]], "\n\n"))
    return messages + rest


def led_by(instruction: str | None, messages: list[Message]) -> list[Message]:
    """Return messages with a system message before them, or with its text before that of theirs."""
    if instruction is None:
        return messages
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": joined([instruction, messages[0]["content"]], "\n\n")}, *messages[1:]]
    return [system(instruction), *messages]


def _plain(value: Any, what: str) -> Any:
    if value is None:
        return 0
    if callable(getattr(value, "item", None)):
        try:
            return value.item()
        except (ValueError, RuntimeError) as error:
            raise EpisodeFailedError(
                StopReason.ENV_FAILED,
                f"{what} gave {shorten(repr(value))} where one number was expected: wrap a single env, not a vector "
                "of them",
            ) from error
    return value
