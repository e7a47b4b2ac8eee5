"""Calls of math-verify, for answers and ground truths that the grammar of answers cannot read.

math-verify drops what it does not know: a "not", an inequality sign, a base, a power of ten below its rounding. So it
is asked only about texts that agree in these, and its numbers are compared exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from toolgym.envs.rewards.mathematics.equality import same_formula
from toolgym.tools.answers.numbers import MULTIPLIERS, NEGATIONS
from toolgym.tools.answers.tokens import AnswerToken, read_tokens, word_set

Verdict = Literal["right", "wrong", "unreadable", "no truth"]

MAX_TEXT = 1000
MAX_BRACKETS = 40
"""Characters and brackets of one kind in an answer that math-verify is asked about: its parser is slow."""

_WEIGHTY_COMMANDS = word_set(
    "ne not neg le ge in notin subset subseteq supset forall exists setminus cup cap pm mp infty emptyset "
    "approx equiv sim to setR setZ setQ setN setC overline vec int sum prod lim parallel perp"
)
_WEIGHTY_SYMBOLS = frozenset("<>='%:!|")


def load() -> None:
    import math_verify  # noqa: F401


def verify(truth: str, answer: str) -> Verdict:
    """Return what math-verify says, if both texts say the same of what it would drop."""
    import math_verify
    from sympy import Expr

    if len(answer) > MAX_TEXT or max(map(answer.count, "([{")) > MAX_BRACKETS:
        return "unreadable"
    gold = _parse(truth)
    if not gold:
        return "no truth"
    parsed = _parse(answer)
    if not any(not isinstance(value, str) for value in parsed):
        return "wrong" if parsed else "unreadable"
    if _weights(truth) != _weights(answer):
        return "wrong"
    formulas = [value for side in (gold, parsed) for value in side[:1] if isinstance(value, Expr)]
    if len(formulas) == 2:
        return "right" if same_formula(*(formula.doit() for formula in formulas)) else "wrong"
    return "right" if math_verify.verify(gold, parsed, timeout_seconds=None) else "wrong"


def _parse(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    boxed = f"\\boxed{{{text}}}"
    marked = text if "\\boxed" in text or re.search(r"(?<!\\)\$", text) else boxed  # `\$` is a dollar
    # Time-outs of math-verify need signals. The process has a limit instead.
    result: list[Any] = parse(marked, configs, parsing_timeout=None) or parse(boxed, configs, parsing_timeout=None)
    return result


def _weights(text: str) -> list[str]:
    """Return the tokens that math-verify may drop although they carry the meaning, and the bases of numbers."""
    tokens = read_tokens(text)
    return sorted(filter(None, (_weight(tokens, at) for at in range(len(tokens)))))


def _weight(tokens: Sequence[AnswerToken], at: int) -> str:
    token = tokens[at]
    if token.is_word(*NEGATIONS, *MULTIPLIERS) or token.kind == "word":
        return token.text.lower()
    if token.kind == "command" and token.text in _WEIGHTY_COMMANDS:
        return f"\\{token.text}"
    if token.kind == "symbol" and token.text in _WEIGHTY_SYMBOLS:
        return token.text
    if token.is_symbol("_") and at and tokens[at - 1].kind == "number":
        return "".join(other.text for other in tokens[at : at + 4])
    return ""
