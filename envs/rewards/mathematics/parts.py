"""Tokens of an answer: what stands around it, and where it falls into parts."""

from __future__ import annotations

from collections.abc import Sequence

from toolgym.tools.answers.numbers import LABELS
from toolgym.tools.answers.tokens import AnswerToken, word_set

JOINS = word_set("and or 和 或 与 及 且")
"""Words between the values of a list."""

_LEADS = LABELS - {"x", "y", "n"}
_OPENINGS, _CLOSINGS = ("(", "[", "{", "langle", "lbrack"), (")", "]", "}", "rangle", "rbrack")


def stripped(tokens: Sequence[AnswerToken]) -> list[AnswerToken]:
    """Drop punctuation at both ends, braces and round brackets around all of it, and a remark such as (in seconds)."""
    tokens = list(tokens)
    while True:
        before = len(tokens)
        while tokens and (tokens[-1].is_symbol(".", ",", ";", ":", "*", "#", '"')):
            tokens.pop()
        while tokens and tokens[0].is_symbol("*", "#", ":", ",", '"', "&"):
            tokens.pop(0)
        while tokens and tokens[0].is_command("therefore", "implies", "Rightarrow", "boxed", "quad", "to"):
            tokens.pop(0)
        if tokens and tokens[0].is_symbol("=") and len(tokens) > 1:
            tokens.pop(0)
        if tokens and tokens[0].is_command("approx", "sim") and len(tokens) > 1:
            tokens.pop(0)
        tokens = _without_remark(tokens)
        if len(tokens) > 1 and tokens[0].is_symbol("{") and closing_of(tokens, 0) == len(tokens) - 1:
            tokens = tokens[1:-1]
        if len(tokens) == before:
            return tokens


def _without_remark(tokens: list[AnswerToken]) -> list[AnswerToken]:
    if len(tokens) > 2 and tokens[-1].is_symbol(")"):
        opening = opening_of(tokens, len(tokens) - 1)
        inner = tokens[opening + 1 : -1] if opening is not None else []
        if (
            opening
            and inner
            and inner[0].kind == "word"
            and len(inner[0].text) > 1
            and not inner[0].is_word("base")
            and not tokens[opening - 1].is_command("frac")
        ):
            return tokens[:opening]
    return tokens


def without_lead(tokens: Sequence[AnswerToken]) -> Sequence[AnswerToken]:
    """Drop the words in front of a value that only announce it, such as "the answer is"."""
    at = 0
    while at < len(tokens) and (tokens[at].is_word(*_LEADS) or (at and tokens[at].is_symbol(":"))):
        at += 1
    return tokens[at:] if at < len(tokens) else tokens


def closing_of(tokens: Sequence[AnswerToken], start: int) -> int | None:
    """Return the index at which the bracket of `start` closes. The brackets of an interval may differ."""
    depth = 0
    for at in range(start, len(tokens)):
        if opens(tokens[at]):
            depth += 1
        elif closes(tokens[at]):
            depth -= 1
            if depth == 0:
                return at
    return None


def opening_of(tokens: Sequence[AnswerToken], end: int) -> int | None:
    depth = 0
    for at in range(end, -1, -1):
        if closes(tokens[at]):
            depth += 1
        elif opens(tokens[at]):
            depth -= 1
            if depth == 0:
                return at
    return None


def opens(token: AnswerToken) -> bool:
    return token.kind in ("symbol", "command") and token.text in _OPENINGS


def closes(token: AnswerToken) -> bool:
    return token.kind in ("symbol", "command") and token.text in _CLOSINGS


def split(tokens: Sequence[AnswerToken], separators: Sequence[str], *, joins: bool = True) -> list[list[AnswerToken]]:
    """Split at separators, and at words such as "and", outside of brackets."""
    has_relation = any(token.is_symbol("=", "<", ">") or token.is_command("le", "ge", "ne", "in") for token in tokens)
    parts: list[list[AnswerToken]] = [[]]
    depth = 0
    for token in tokens:
        depth += opens(token) - closes(token)
        is_join = joins and (token.is_word(*JOINS) or (has_relation and token.is_command("lor", "land")))
        if depth == 0 and (token.is_symbol(*separators) or is_join):
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part] if joins else parts


def joined(tokens: Sequence[AnswerToken]) -> str:
    texts = []
    for token in tokens:
        glue = "" if token.kind == "letter" and not token.spaced else " "
        texts.append(glue + (f"\\{token.text}" if token.kind == "command" else token.text))
    return " ".join("".join(texts).casefold().split())
