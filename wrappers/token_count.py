"""Counts of the tokens of texts and messages, by a tokenizer or a function of the user's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from toolgym.envs.actions import action_message
from toolgym.envs.base import Action
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message, described
from toolgym.tools.parsers.base import ParsedTurn

T = TypeVar("T")

LONG = 16_384
"""From so many characters on, a text is encoded in a thread: it takes some 10 ms, and other episodes go on."""

TokenCount = Callable[[str], int]


def token_count(tokenizer: Any) -> TokenCount:
    """Return a tokenizer as a function that counts the tokens of a text, without special ones; a function as it is."""
    encode = None if isinstance(tokenizer, str) else getattr(tokenizer, "encode", None)
    if callable(encode):
        return lambda text: len(encode(text, add_special_tokens=False))
    if not callable(tokenizer):
        raise ConfigError(
            f"tokenizer must be a tokenizer, or a function from a text to its number of tokens, got {tokenizer!r}"
        )
    return cast(TokenCount, tokenizer)


def turn_text(action: Action) -> str:
    """The text of a turn as generated, if that is known."""
    text = action.text if isinstance(action, ParsedTurn) else action
    return text if text and isinstance(text, str) else message_text(action_message(action))


def message_text(message: Message) -> str:
    """The thinking of a message, its content, and its tool calls as JSON."""
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
    return "\n".join(filter(None, [message.get("reasoning_content", ""), described(message["content"]), *calls]))


async def count_all(count: TokenCount, texts: Sequence[str]) -> int:
    return await apart(lambda: sum(map(count, texts)), texts)


async def apart(work: Callable[[], T], texts: Sequence[str]) -> T:
    """Call a function that encodes texts, in a thread if they are long."""
    return work() if sum(map(len, texts)) < LONG else await in_thread(work)
