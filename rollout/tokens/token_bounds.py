"""Fewest tokens that a text can have, known from its length only: a text that cannot fit need not be encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ToolgymError
from toolgym.tools.lazy import missing_extra

try:
    from tokenizers.pre_tokenizers import ByteLevel
except ImportError as error:
    raise missing_extra("rollout", "Exact tokens", error) from error

COMPOSED = 4
"""Most characters that NFC or NFKC make into one. Source: Unicode Standard Annex 15, on the lengths of normalised
text."""


class TooManyTokensError(ToolgymError, ValueError):
    """A text surely has more tokens than are of use, `least` or more, so it was not encoded."""

    def __init__(self, least: int) -> None:
        super().__init__(f"the text has at least {least} tokens")
        self.least = least


def longest_token(state: Mapping[str, Any]) -> int | None:
    """Return the most characters of normalised text that one token stands for; None if there is no such number.
    There is none if a tokenizer may drop characters, or make one token of any number of them: of unknown ones, or of
    white space beside an added token."""
    model = state["model"]
    if model.get("type") != "BPE" or not _keeps_all(state["normalizer"]) or not _keeps_all(state["pre_tokenizer"]):
        return None
    if any(token["lstrip"] or token["rstrip"] for token in state["added_tokens"]):
        return None
    vocabulary = model["vocab"]
    spelled = {f"<0x{byte:02X}>" for byte in range(256)} if model.get("byte_fallback") else set(ByteLevel.alphabet())
    if not vocabulary.keys() >= spelled:
        return None
    return max(map(len, [*vocabulary, *(token["content"] for token in state["added_tokens"])]))


def composes(state: Mapping[str, Any]) -> bool:
    """Whether a tokenizer's normaliser may make one character of several."""
    return any(part["type"] in ("NFC", "NFKC") for part in _parts(state["normalizer"]))


def _keeps_all(component: Mapping[str, Any] | None) -> bool:
    return all(_keeps(part) for part in _parts(component))


def _keeps(part: Mapping[str, Any]) -> bool:
    match part["type"]:
        case "NFC" | "NFKC" | "NFD" | "NFKD" | "Prepend" | "ByteLevel" | "Digits" | "Metaspace":
            return True
        case "Replace":
            return len(part["content"]) >= len(part["pattern"].get("String", part["content"] + "x"))
        case "Split":
            return str(part["behavior"]) != "Removed"
    return False


def _parts(component: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    inside = component.get("normalizers") or component.get("pretokenizers")
    return [component] if inside is None else [part for item in inside for part in _parts(item)]
