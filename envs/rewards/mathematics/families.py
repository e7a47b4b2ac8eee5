r"""Answers with a parameter that is any integer, such as `x = \frac{\pi}{6} + 2k\pi, k \in \mathbb{Z}`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import sympy

from toolgym.envs.rewards.mathematics.units import UNITS
from toolgym.envs.rewards.mathematics.values import Answer, IntegerFamily, Listing, Named, Quantity
from toolgym.tools.answers.tokens import AnswerToken

MAX_RESIDUES = 60
"""Values in one period of a family that are compared."""

PARAMETER = sympy.Symbol("parameter", integer=True)

_LETTERS = "kmnlt"
"""Usual names of an integer, of which an answer that does not declare its parameter may have one."""

_DOMAIN = re.compile(
    r"(?:[,;(]\s*)*(?:(?:where|for|with|and)\s+)*(?:(?:any|all|every|some|each)\s+)*(?:"
    r"(?P<element>[a-z]) \\in \\set(?P<set>[ZN])(?P<positive>(?: \^| \{| \}| \+| \*)*)"
    r"|integers? (?P<after>[a-z])|(?P<before>[a-z]) (?:(?:is|are|be) )?(?:(?:any|an|a n) )?integers?"
    r"|(?P<other>[a-z]) 为整数)(?: \))*$"
)


def as_family(tokens: Sequence[AnswerToken], read: Callable[[Sequence[AnswerToken]], Answer]) -> IntegerFamily | None:
    """Read an answer that ends by declaring its parameter an integer; None if it does not end so."""
    texts = [f"\\{token.text}" if token.kind == "command" else token.text for token in tokens]
    offsets = [0, *itertools.accumulate(len(text) + 1 for text in texts)]
    match = _DOMAIN.search(" ".join(texts[-24:]))
    if match is None:
        return None
    start = match.start() + offsets[max(0, len(texts) - 24)]
    end = next((at for at, offset in enumerate(offsets) if offset >= start), 0)
    letter = match["element"] or match["after"] or match["before"] or match["other"]
    if not end or not any(token.kind == "letter" and token.text == letter for token in tokens[:end]):
        return None
    value = read(tokens[:end])
    is_natural = match["set"] == "N" or bool((match["positive"] or "").strip(" ^{}"))
    return _with_parameter(value, sympy.Symbol(letter), "N" if is_natural else "Z")


def same_family(truth: Answer, answer: Answer, same_formula: Callable[[Any, Any], bool]) -> bool:
    """Whether two answers have the same values for all integers, whatever letter the integers have."""
    left, right = _declared(truth), _declared(answer)
    if left is None or right is None:
        return False
    if left.domain and right.domain and left.domain != right.domain:
        return False
    if left.name and right.name and left.name != right.name:
        return False
    if _same_in_any_order(left.formulas, right.formulas, same_formula):
        return True
    residues = _residues(left.formulas, right.formulas) if "N" not in (left.domain, right.domain) else None
    return residues is not None and _same_in_any_order(*residues, lambda here, there: _is_whole(here - there))


def _declared(answer: Answer) -> IntegerFamily | None:
    """Return an answer as a family; its parameter is the letter of an integer if it does not declare one."""
    if isinstance(answer, IntegerFamily):
        return answer
    letters = sorted({symbol for formula in _formulas(answer) or () for symbol in formula.free_symbols}, key=str)
    letters = [letter for letter in letters if letter.name in _LETTERS]
    return _with_parameter(answer, letters[0], "") if len(letters) == 1 else None


def _with_parameter(value: Answer, letter: Any, domain: Literal["Z", "N", ""]) -> IntegerFamily | None:
    formulas = _formulas(value)
    if formulas is None or not any(formula.has(letter) for formula in formulas):
        return None
    name = value.name if isinstance(value, Named) else ""
    return IntegerFamily(tuple(formula.xreplace({letter: PARAMETER}) for formula in formulas), name, domain)


def _formulas(answer: Answer) -> list[Any] | None:
    if isinstance(answer, Named):
        return _formulas(answer.value)
    if isinstance(answer, Quantity):
        in_degrees = answer.unit == UNITS["degree"]
        return [answer.formula * sympy.pi / 180 if in_degrees else answer.formula]
    if not isinstance(answer, Listing) or answer.kind not in ("bare", "set"):
        return None
    parts = [_formulas(item) for item in answer.items]
    return None if None in parts else [formula for part in parts for formula in part or ()]


def _residues(*sides: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
    """Return the values of two families in one period that both have, as parts of it; None if they are not linear."""
    slopes = [sympy.expand(formula).coeff(PARAMETER, 1) for formula in itertools.chain(*sides)]
    if any(slope == 0 or slope.has(PARAMETER) for slope in slopes):
        return None
    ratios = [abs(sympy.simplify(slope / slopes[0])) for slope in slopes]
    if not all(ratio.is_Rational for ratio in ratios):
        return None
    common = math.lcm(*(int(ratio.q) for ratio in ratios))
    period = sympy.Rational(math.lcm(*(int(ratio * common) for ratio in ratios)), common)
    values: list[list[Any]] = []
    for side in sides:
        residues = []
        for formula in side:
            expanded = sympy.expand(formula)
            slope = expanded.coeff(PARAMETER, 1)
            start = sympy.expand(expanded - slope * PARAMETER)
            count = period / abs(sympy.simplify(slope / slopes[0]))
            if start.has(PARAMETER) or count > MAX_RESIDUES:
                return None
            residues += [(start + step * slope) / (period * slopes[0]) for step in range(int(count))]
        values.append(residues)
    return values[0], values[1]


def _is_whole(difference: Any) -> bool:
    value = sympy.simplify(difference)
    return bool(value.is_Integer)


def _same_in_any_order(truths: Sequence[Any], answers: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    """Whether each value of either side is one of the other side."""
    if len(truths) * len(answers) > MAX_RESIDUES**2:
        return False
    forward = all(any(same(truth, answer) for answer in answers) for truth in truths)
    return forward and all(any(same(truth, answer) for truth in truths) for answer in answers)
