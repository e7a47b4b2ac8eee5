r"""Answers with a parameter that is any integer or real number: `x = \pi + 2k\pi, k \in \mathbb{Z}`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import sympy

from toolgym.envs.rewards.mathematics.units import UNITS
from toolgym.envs.rewards.mathematics.values import Answer, Listing, Named, ParameterFamily, Quantity, Words
from toolgym.tools.answers.tokens import AnswerToken

_FUNCTION = re.compile(r"([a-z]'*)\(([a-z])\)")

MAX_RESIDUES = 60
"""Values in one period of a family that are compared."""

PARAMETER = sympy.Symbol("parameter")

_LETTERS = "kmnltabcrC"
"""Usual names of a parameter, of which an answer that does not declare its parameter may have one."""

_NATURAL = ("natural", "positive", "nonnegative", "non - negative")
_VARIABLES = "xyzt"
"""Names that are variables if an answer declares them real, as in `x^2, x \\in \\mathbb{R}`."""

_NUMBERS = (
    r"(?:(?P<kind{0}>natural|positive|non - negative|nonnegative|real|arbitrary) )?"
    r"(?P<noun{0}>integers?|numbers?|constants?|reals)"
)
_DOMAIN = re.compile(
    r"(?:[,;(]\s*)*(?:(?:where|for|with|and)\s+)*(?:(?:an?|any|all|every|some|each)\s+)*(?:"
    r"(?P<element>[A-Za-z]) \\in \\set(?P<set>[ZNR])(?P<positive>(?: \^| \{| \}| \+| \*)*)"
    rf"|{_NUMBERS.format(1)} (?P<after>[A-Za-z])"
    rf"|(?P<before>[A-Za-z]) (?:(?:is|are|be) )?(?:(?:any|an?|a n) )?{_NUMBERS.format(2)}"
    r"|(?P<other>[a-z]) 为整数)(?: \))*$"
)


def as_family(tokens: Sequence[AnswerToken], read: Callable[[Sequence[AnswerToken]], Answer]) -> Answer | None:
    """Read an answer that ends by declaring its parameter an integer or a real number; None if it does not end so."""
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
    domain = _domain(match)
    if domain == "R" and letter in _VARIABLES:
        return value
    return _with_parameter(value, sympy.Symbol(letter), domain)


def as_congruence(
    tokens: Sequence[AnswerToken], read: Callable[[Sequence[AnswerToken]], Answer]
) -> ParameterFamily | None:
    r"""Read `n \equiv 3 \pmod 5`, which is `n = 3 + 5k`; None if the tokens do not end with a modulus."""
    place = next((at for at, token in enumerate(tokens) if token.is_command("pmod", "bmod", "mod")), 0)
    if not place and any(token.is_command("equiv") for token in tokens):
        place = next((at for at, token in enumerate(tokens) if token.is_word("mod")), 0)
    if not place:
        return None
    modulus = [token for token in tokens[place + 1 :] if not token.is_symbol("{", "}", "(", ")", ".", ",")]
    before = list(tokens[:place])
    while before and before[-1].is_symbol("(", "{", ","):
        before.pop()
    if not before or len(modulus) != 1:
        return None
    value, size = read(before), read(modulus)
    formulas = _formulas(value)
    if formulas is None or not isinstance(size, Quantity):
        return None
    return ParameterFamily(
        tuple(formula + size.formula * PARAMETER for formula in formulas),
        value.name if isinstance(value, Named) else "",
        "Z",
        value,
    )


def _domain(match: re.Match[str]) -> Literal["Z", "N", "R"]:
    kind = match["kind1"] or match["kind2"] or ""
    noun = match["noun1"] or match["noun2"] or ""
    if match["set"] == "N" or (match["positive"] or "").strip(" ^{}") or kind in _NATURAL:
        return "N"
    is_whole = match["set"] == "Z" or match["other"] or noun.startswith("integer")
    return "Z" if is_whole else "R"


def same_family(truth: Answer, answer: Answer, same_formula: Callable[[Any, Any], bool]) -> bool:
    """Whether two answers have the same values for all parameters, whatever letter the parameter has."""
    left, right = _declared(truth), _declared(answer)
    if left is None or right is None:
        return False
    if left.domain and right.domain and left.domain != right.domain:
        return False
    if left.name and right.name and left.name != right.name:
        return False
    if _same_in_any_order(left.formulas, right.formulas, same_formula):
        return True
    is_whole = {left.domain, right.domain} <= {"Z", ""}
    residues = _residues(left.formulas, right.formulas) if is_whole else None
    return residues is not None and _same_in_any_order(*residues, lambda here, there: _is_whole(here - there))


def _declared(answer: Answer) -> ParameterFamily | None:
    """Return an answer as a family; its parameter is the letter of an integer if it does not declare one."""
    if isinstance(answer, ParameterFamily):
        return answer
    letters = sorted({symbol for formula in _formulas(answer) or () for symbol in formula.free_symbols}, key=str)
    letters = [letter for letter in letters if letter.name in _LETTERS]
    return _with_parameter(answer, letters[0], "") if len(letters) == 1 else None


def _with_parameter(value: Answer, letter: Any, domain: Literal["Z", "N", "R", ""]) -> ParameterFamily | None:
    formulas = _formulas(value)
    if formulas is None or not any(formula.has(letter) for formula in formulas):
        return None
    name = value.name if isinstance(value, Named) else ""
    return ParameterFamily(tuple(formula.xreplace({letter: PARAMETER}) for formula in formulas), name, domain)


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


# ---------------------------------------------------------------------- functions


def same_name(truth: str, answer: str) -> bool:
    """Whether two names are the same. The graph of `f(x)` is written with `y`, and `f(t)` is `f(x)`."""
    left, right = _FUNCTION.fullmatch(truth), _FUNCTION.fullmatch(answer)
    if left and right:
        return left[1] == right[1]
    return truth == answer or (left is not None and left[2] == "x" and answer == "y")


def with_argument(truth: str, answer: Named) -> Answer:
    """Return the value of a function with the argument that the ground truth has."""
    left, right = _FUNCTION.fullmatch(truth), _FUNCTION.fullmatch(answer.name)
    if not left or not right or left[2] == right[2] or not isinstance(answer.value, Quantity):
        return answer.value
    symbols = sympy.Symbol(left[2]), sympy.Symbol(right[2])
    if symbols[0] in answer.value.formula.free_symbols:
        return Words("")  # another variable has that name
    return Quantity(answer.value.formula.xreplace({symbols[1]: symbols[0]}))
