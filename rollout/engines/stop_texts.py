"""Texts that end a turn: where the sampled ids complete one."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Decode = Callable[[Sequence[int]], str]


def decoder(tokenizer: PreTrainedTokenizerBase) -> Decode:
    """Return the function that turns ids into their text, control tokens included."""
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def stop_length(token_ids: Sequence[int], texts: Sequence[str], decode: Decode) -> int | None:
    """Return how many of the first ids are needed until their text holds one of `texts`; None if it never does."""

    def is_complete(count: int) -> bool:
        text = decode(token_ids[:count])
        return any(stop in text for stop in texts)

    if not texts or not token_ids or not is_complete(len(token_ids)):
        return None
    return 1 + bisect.bisect_left(range(1, len(token_ids) + 1), True, key=is_complete)


def stop_in(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return where the stop text that is complete first begins in a text, and the stop text; None if none is there."""
    places = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    return min(places)[1:] if places else None
