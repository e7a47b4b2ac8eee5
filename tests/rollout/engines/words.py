"""A tokenizer of whole words, for random models that have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Words:
    """Writes each id as a word of its own."""

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(f"w{token_id} " for token_id in ids)


WORDS: Any = Words()
