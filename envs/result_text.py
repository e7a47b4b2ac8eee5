"""Cutting of the text of a tool's result to a length."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Literal

from toolgym.tools.errors import ConfigError, require_whole_number

Side = Literal["left", "middle", "right"]
"""What stays of a text that is cut, as in verl: `left` its beginning, `right` its end, `middle` both."""


def check_cut(name: str, max_chars: object, side: object) -> None:
    """Raise `ConfigError` unless `max_chars`, which is called `name`, is at least 1, and there is such a side."""
    require_whole_number(name, max_chars, at_least=1)
    if side not in ("left", "middle", "right"):
        raise ConfigError(f"side must be 'left', 'middle' or 'right', got {side!r}")


def cut(text: str, max_chars: int, side: Side) -> str:
    """Cut a text to `max_chars` characters and a note that says how many were left out; a shorter one stays."""
    if len(text) <= max_chars:
        return text
    tail = _tail(max_chars, side)
    return _joined(text, max_chars - tail, tail, f"[... {len(text) - max_chars} characters left out ...]")


def cut_tokens(text: str, max_tokens: int, side: Side, count: Callable[[str], int]) -> str:
    """Cut a text to `max_tokens` tokens, as `count` has them, and a note that says how many were left out.

    The text is cut between characters, wherever its tokens end: what remains is never decoded from tokens.
    """
    if count(text) <= max_tokens:
        return text
    tail = _tail(max_tokens, side)
    head_chars = _fitting(len(text), max_tokens - tail, lambda size: count(text[:size]))
    tail_chars = _fitting(len(text) - head_chars, tail, lambda size: count(text[len(text) - size :]))
    left_out = count(text[head_chars : len(text) - tail_chars])
    return _joined(text, head_chars, tail_chars, f"[... {left_out} tokens left out ...]")


def _tail(most: int, side: Side) -> int:
    return {"left": 0, "middle": most // 2, "right": most}[side]


def _joined(text: str, head: int, tail: int, note: str) -> str:
    """The beginning of `head` characters, the note, and the end of `tail` characters."""
    parts = (text[:head], note, text[len(text) - tail :])
    return " ".join(part for part in parts if part)


def _fitting(longest: int, most: int, tokens: Callable[[int], int]) -> int:
    """The largest number of characters, up to `longest`, that have at most `most` tokens."""
    size = max(0, bisect.bisect_right(range(longest + 1), most, key=tokens) - 1)
    while size and tokens(size) > most:  # a character more may join tokens, so the counts may fall here and there
        size -= 1
    return size
