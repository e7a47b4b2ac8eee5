"""Whether two answers are the same, by what they are. Numbers are compared exactly."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy

from toolgym.envs.rewards.mathematics.containers import components, vector_cells
from toolgym.envs.rewards.mathematics.families import same_family, same_name, with_argument
from toolgym.envs.rewards.mathematics.units import UNITS
from toolgym.envs.rewards.mathematics.values import (
    Answer,
    Based,
    Choice,
    Listing,
    Matrix,
    Named,
    ParameterFamily,
    Quantity,
    Ratio,
    Region,
    Relation,
    Words,
)

MIN_DECIMALS = 3
"""Digits after the point, and significant digits, of a decimal ground truth that may be a rounded exact value."""

MIN_ROUNDED = 6
"""The same for a decimal ground truth that may be a rounded longer decimal."""

NOISE_DIGITS = 15
"""Significant digits of a decimal that a computer has rounded."""

_SMALL_LETTERS = {letter: sympy.Symbol(letter.lower()) for letter in "ABCDFGHJ"}
"""Choices as small letters, which are names in a formula. `e` and `i` are numbers."""

_CONSTANTS = frozenset(("C", "c", "K", "k", "C_1", "c_1", "C_0"))

_STATED = re.compile(r"^(?:\w+ ){1,5}(?:is|are) (?:an? |the )?")
"""What stands before the answer in a sentence such as "the locus is a circle"."""

_INFINITELY_MANY = "infinitely many"

_TEMPERATURES = (UNITS["celsius"], UNITS["fahrenheit"])

PRECISION = 60
POINTS = 6


def same(truth: Answer, answer: Answer) -> bool:
    """Whether an answer is what the ground truth is. The ground truth decides what an ambiguous answer means."""
    if isinstance(answer, Choice) and not isinstance(truth, Choice):
        return answer.value is not None and same(truth, answer.value)
    if (
        isinstance(truth, Choice)
        and truth.value is not None
        and not isinstance(answer, Choice)
        and same(truth.value, answer)
    ):
        return True
    if isinstance(truth, ParameterFamily) or isinstance(answer, ParameterFamily):
        return _same_family(truth, answer)
    for kinds, compare in _COMPARISONS:
        if isinstance(truth, kinds):
            return compare(truth, answer)
    raise TypeError(f"no comparison for {type(truth).__name__}")


def _value(answer: Answer) -> Answer:
    """Return an answer without its name, and a list or set of one value as that value."""
    while True:
        if isinstance(answer, Named):
            answer = answer.value
        elif isinstance(answer, Listing) and len(answer.items) == 1:
            answer = answer.items[0]
        else:
            return answer


# ---------------------------------------------------------------------- numbers


def _same_quantity(truth: Quantity, answer: Answer) -> bool:
    answer = _value(answer)
    if isinstance(answer, Words) and truth.formula is sympy.oo:
        return answer.text == _INFINITELY_MANY
    if isinstance(answer, Based):
        return answer.value is not None and same_formula(truth.formula, sympy.Integer(answer.value))
    if isinstance(answer, Ratio) and len(answer.terms) == 2 and not answer.is_time:
        quotient = None if truth.formula.is_integer else _quotient(answer)
        return quotient is not None and same_formula(truth.formula, quotient)
    if isinstance(answer, Listing) and len(answer.items) > 1 and answer.kind in ("bare", "set"):
        return all(_same_quantity(truth, item) for item in answer.items)  # 5, 5
    if isinstance(answer, Relation) and answer.sign == "=":
        return _same_total(truth, answer)
    if not isinstance(answer, Quantity):
        return False
    if answer.parts and truth.unit is None:
        return False
    if truth.is_percent != answer.is_percent:
        return _same_percentage(truth, answer)
    if _angle(truth) or _angle(answer):
        return _same_angle(truth, answer)
    if truth.unit is not None and answer.unit is not None and truth.unit != answer.unit:
        if truth.unit.dimension != answer.unit.dimension:
            return False
        factors = [sympy.Rational(unit.factor.numerator, unit.factor.denominator) for unit in (truth.unit, answer.unit)]
        return same_formula(truth.formula * factors[0], answer.formula * factors[1])
    return _same_number(truth, answer)


def _same_total(truth: Quantity, answer: Relation) -> bool:
    """Whether an equation such as `m + n = 204` gives a number of several variables. `x^2 = 16` may give x."""
    is_total = len(answer.left.free_symbols) > 1 and answer.right.is_number and answer.right != 0
    return is_total and truth.formula.is_number and same_formula(truth.formula, answer.right)


def _same_percentage(truth: Quantity, answer: Quantity) -> bool:
    """Compare a value with a percentage: 64 and 0.64 are both 64 %, but 0.64 is not 0.64 %."""
    if truth.is_percent:
        return same_formula(truth.formula, answer.formula) or same_formula(truth.formula / 100, answer.formula)
    value = truth.formula
    is_share = bool(value.is_Rational and not value.is_Integer and abs(value) < 1)
    is_count = bool(value.is_Integer and value != 1)
    as_written = not is_share and _same_number(truth, answer)
    return as_written or (not is_count and same_formula(value, answer.formula / 100))


def _angle(quantity: Quantity) -> bool:
    return quantity.unit in (UNITS["degree"], UNITS["radian"])


def _same_angle(truth: Quantity, answer: Quantity) -> bool:
    """Compare angles. A number without a unit is in the unit of the other angle, or in radians if it has a pi."""
    units = [
        quantity.unit or (UNITS["radian"] if quantity.formula.has(sympy.pi) else None) for quantity in (truth, answer)
    ]
    if None in units or units[0] == units[1] or any(unit in _TEMPERATURES for unit in units):
        return _same_number(truth, answer)
    if not all(unit in (UNITS["degree"], UNITS["radian"]) for unit in units):
        return False
    degrees = [
        quantity.formula * (1 if unit == UNITS["degree"] else 180 / sympy.pi)
        for quantity, unit in zip((truth, answer), units, strict=True)
    ]
    return same_formula(*degrees)


def _same_number(truth: Quantity, answer: Quantity) -> bool:
    if truth.formula == answer.formula or (truth.decimals >= 0 and _is_rounded(truth, answer)):
        return True
    return same_formula(truth.formula, _with_constant(truth.formula, answer.formula))


def _is_rounded(truth: Quantity, answer: Quantity) -> bool:
    """Whether a decimal ground truth is the answer, rounded at the last digit of the ground truth."""
    if answer.formula.free_symbols or not answer.formula.is_comparable:
        return False
    difference = abs(sympy.N(answer.formula - truth.formula, PRECISION))
    if max(truth.digits, answer.digits) >= NOISE_DIGITS:
        return bool(difference <= abs(truth.formula) * sympy.Rational(1, 10**12))
    if answer.decimals >= 0 or answer.formula.is_Integer:
        least = MIN_ROUNDED
        if answer.decimals <= truth.decimals:
            return False
    else:
        least = MIN_DECIMALS
    if min(truth.decimals, truth.digits) < least or truth.unit is not None:
        return False
    return bool(difference <= sympy.Rational(1, 2) / sympy.Integer(10) ** truth.decimals)


def _with_constant(truth: Any, answer: Any) -> Any:
    """Return the answer with its constant of integration named as in the ground truth, such as C instead of c."""
    constants = [
        [symbol for symbol in formula.free_symbols if symbol.name in _CONSTANTS and _is_added(formula, symbol)]
        for formula in (truth, answer)
    ]
    if [len(symbols) for symbols in constants] != [1, 1] or constants[1][0] in truth.free_symbols:
        return answer
    return answer.xreplace({constants[1][0]: constants[0][0]})


def _is_added(formula: Any, symbol: Any) -> bool:
    return formula.is_Add and symbol in formula.args and not (formula - symbol).has(symbol)


def same_formula(truth: Any, answer: Any) -> bool:
    """Whether two SymPy expressions are equal wherever both are real. A difference is looked for in numbers first."""
    if truth == answer:
        return True
    if truth.is_Rational and answer.is_Rational:
        return False
    if truth.is_infinite or answer.is_infinite or truth.is_Boolean or answer.is_Boolean:
        return False
    difference = truth - answer
    if difference == 0:
        return True
    symbols = sorted(difference.free_symbols, key=str)
    if not symbols:
        return _is_zero(difference, truth, answer)
    return _agree_at_points(truth, answer, symbols)


def _is_zero(difference: Any, truth: Any, answer: Any) -> bool:
    values = [_number(value) for value in (truth, answer)]
    if any(value is None for value in values):
        return bool(sympy.simplify(difference) == 0)
    if not _close(values[0], values[1]):
        return False
    return difference.is_zero is not False and abs(sympy.N(difference, 5, maxn=1000)) < sympy.Rational(1, 10**200)


def _number(value: Any) -> Any:
    number = sympy.N(value, PRECISION)
    return (
        number
        if number.is_number and not number.has(sympy.nan, sympy.zoo) and not number.atoms(sympy.Function)
        else None
    )


def _close(left: Any, right: Any) -> bool:
    size = max(abs(left), abs(right))
    return bool(abs(left - right) <= size * sympy.Float(10, PRECISION) ** (10 - PRECISION))


def _agree_at_points(truth: Any, answer: Any, symbols: Sequence[Any]) -> bool:
    """Whether two expressions agree at points drawn at random, of which at least three must be real for both."""
    drawn = random.Random(7)
    compared = 0
    for at in range(4 * POINTS):
        sign = 1 if at < 2 * POINTS else -1
        point = {
            symbol: sign * sympy.Rational(drawn.randint(100, 999), drawn.choice((7, 11, 13, 101))) / 10
            for symbol in symbols
        }
        numbers = [_number(value.xreplace(point)) for value in (truth, answer)]
        if any(number is None for number in numbers):
            continue
        if at >= 2 * POINTS and not all(number.is_real for number in numbers):
            continue
        if not _close(*numbers):
            return False
        compared += 1
        if compared >= POINTS and at >= 2 * POINTS:
            break
    return compared >= 3 or bool(sympy.simplify(truth - answer) == 0)


# ---------------------------------------------------------------------- several values


def _same_listing(truth: Listing, answer: Answer) -> bool:
    if isinstance(answer, Named) and not (len(truth.items) == 1 and isinstance(truth.items[0], Named)):
        answer = answer.value
    if isinstance(answer, Region):
        if answer.pair is not None and (truth.kind, answer.pair.kind) in _PAIRS:
            return _same_listing(truth, answer.pair)
        if not isinstance(answer.points, sympy.FiniteSet):
            return not truth.items and answer.points is sympy.S.EmptySet
        answer = Listing(tuple(map(Quantity, answer.points)), "set")
    if isinstance(answer, Quantity) and truth.kind in ("tuple", "bracket"):
        parts = components(answer.formula, len(truth.items))
        return parts is not None and _all_same(truth.items, parts)
    if isinstance(answer, Matrix) and truth.kind == "tuple":
        cells = vector_cells(answer)
        return cells is not None and _all_same(truth.items, cells)
    if isinstance(answer, Choice) and len(answer.letter) > 1:
        answer = Listing(tuple(map(Choice, answer.letter)), "bare")
    if not isinstance(answer, Listing):
        answer = Listing((answer,), "bare")
    if truth.kind == "set" and answer.kind in ("tuple", "bracket"):
        return False
    if truth.kind in ("tuple", "bracket"):
        if answer.kind == "set" or (truth.kind != answer.kind and answer.kind != "bare"):
            return False
        return _all_same(truth.items, _in_order(answer.items))
    if _names(truth.items) and _names(answer.items):
        return _same_items(truth.items, answer.items)
    if any(isinstance(item, Named) for item in (*truth.items, *answer.items)):  # x = 1, y = 2 beside 1, 2
        return _all_same(_in_order(truth.items), _in_order(answer.items))
    return _same_items(truth.items, answer.items)


_PAIRS = frozenset((("tuple", "tuple"), ("bare", "tuple"), ("bracket", "bracket")))
"""Kinds of lists of two values, and of intervals that may be such a list: `2, 5` may be `(2, 5)`, but not `[2, 5]`."""


def _names(items: Sequence[Answer]) -> list[str]:
    names = [item.name for item in items if isinstance(item, Named)]
    return names if len(names) == len(items) else []


def _in_order(items: Sequence[Answer]) -> Sequence[Answer]:
    """Return named values sorted if their names are neighbours in the alphabet, else in the order of the answer."""
    names = _names(items)
    if names and all(len(name) == 1 for name in names):
        letters = sorted(map(ord, names))
        if letters[-1] - letters[0] == len(letters) - 1:
            items = sorted(items, key=lambda item: item.name if isinstance(item, Named) else "")
    return [item.value if isinstance(item, Named) else item for item in items]


def _all_same(truths: Sequence[Answer], answers: Sequence[Answer]) -> bool:
    return len(truths) == len(answers) and all(map(same, truths, answers))


def _same_items(truths: Sequence[Answer], answers: Sequence[Answer]) -> bool:
    """Whether two lists have the same values in any order, a value that stands twice counted once."""
    truths, answers = _distinct(truths), _distinct(answers)
    if len(truths) != len(answers):
        return False
    left = list(answers)
    for truth in truths:
        match = next((at for at, answer in enumerate(left) if same(truth, answer)), None)
        if match is None:
            return False
        left.pop(match)
    return True


def _distinct(items: Sequence[Answer]) -> list[Answer]:
    kept: list[Answer] = []
    for item in items:
        if not any(type(item) is type(other) and same(other, item) for other in kept):
            kept.append(item)
    return kept


def _same_matrix(truth: Matrix, answer: Answer) -> bool:
    answer = _value(answer)
    if isinstance(answer, Quantity) and (cells := vector_cells(truth)) is not None:
        answer = Listing(tuple(components(answer.formula, len(cells)) or ()), "tuple")
    if isinstance(answer, Region) and answer.pair is not None:
        answer = answer.pair
    if isinstance(answer, Listing):
        cells = vector_cells(truth)
        return cells is not None and answer.kind in ("tuple", "bracket") and _all_same(cells, answer.items)
    if not isinstance(answer, Matrix) or len(truth.rows) != len(answer.rows):
        return False
    return all(map(_all_same, truth.rows, answer.rows))


# ---------------------------------------------------------------------- the rest


def _same_region(truth: Region, answer: Answer) -> bool:
    if isinstance(answer, Named):
        answer = answer.value
    if isinstance(answer, Quantity) and truth.pair is not None:
        return _same_listing(truth.pair, answer)
    if isinstance(truth.points, sympy.FiniteSet) and isinstance(answer, Listing | Quantity):
        return _same_listing(Listing(tuple(map(Quantity, truth.points)), "set"), answer)
    if isinstance(answer, Listing):
        if truth.pair is not None and truth.pair.kind == "tuple" and answer.kind in ("tuple", "bare"):
            return _same_listing(truth.pair, answer)
        return not answer.items and truth.points is sympy.S.EmptySet
    if isinstance(answer, Matrix):
        return truth.pair is not None and _same_listing(truth.pair, answer)
    if not isinstance(answer, Region):
        return False
    if truth.name and answer.name and truth.name != answer.name:
        return False
    if truth.points == answer.points or _both_all(truth.points, answer.points):
        return True
    if truth.pair is not None and answer.pair is not None:
        return _same_listing(truth.pair, answer.pair)
    try:
        return bool(sympy.SymmetricDifference(truth.points, answer.points).is_empty)
    except (NotImplementedError, TypeError, ValueError):
        return False


def _both_all(left: Any, right: Any) -> bool:
    everything = sympy.Interval(-sympy.oo, sympy.oo)
    return all(points in (sympy.S.Reals, everything) for points in (left, right))


def _same_named(truth: Named, answer: Answer) -> bool:
    if isinstance(answer, Named):
        return same_name(truth.name, answer.name) and same(truth.value, with_argument(truth.name, answer))
    if isinstance(answer, Relation):
        is_solved = isinstance(truth.value, Quantity) and truth.value.formula.is_number  # 2x = 5 is not x = 5/2
        if is_solved or not isinstance(truth.value, Quantity) or answer.sign != "=":
            return False
        return _same_relation(Relation("=", sympy.Symbol(truth.name), truth.value.formula), answer)
    return same(truth.value, answer)


def _same_family(truth: Answer, answer: Answer) -> bool:
    """Compare values with a parameter. The modulus may be left out: `5 \\pmod 7` is `5`."""
    if isinstance(truth, ParameterFamily) and not isinstance(answer, ParameterFamily) and truth.residue is not None:
        return same(truth.residue, answer) or same_family(truth, answer, same_formula)
    if isinstance(answer, ParameterFamily) and not isinstance(truth, ParameterFamily) and answer.residue is not None:
        return same(truth, answer.residue)
    return same_family(truth, answer, same_formula)


def _same_relation(truth: Relation, answer: Answer) -> bool:
    if isinstance(answer, Named) and isinstance(answer.value, Quantity):
        answer = Relation("=", sympy.Symbol(answer.name), answer.value.formula)
    if not isinstance(answer, Relation) or truth.sign != answer.sign:
        return False
    left, right = truth.left - truth.right, answer.left - answer.right
    if left == 0 or right == 0:
        return bool(left == right)
    ratio = sympy.cancel(left / right)
    if ratio.free_symbols or not ratio.is_number:
        return False
    return bool(ratio > 0) if truth.sign in ("<", "<=") else bool(ratio != 0)


def _same_ratio(truth: Ratio, answer: Answer) -> bool:
    answer = _value(answer)
    if isinstance(answer, Quantity):
        quotient = None if truth.is_time else _quotient(truth)
        return quotient is not None and same_formula(quotient, answer.formula)
    if not isinstance(answer, Ratio) or len(truth.terms) != len(answer.terms):
        return False
    if truth.half and answer.half and truth.half != answer.half:
        return False
    if _all_same(truth.terms, answer.terms):
        return True
    if truth.is_time and answer.is_time and bool(truth.half) != bool(answer.half):
        return _all_same(_in_24_hours(truth).terms, _in_24_hours(answer).terms)  # 2:30 pm, 14:30
    if (truth.is_time and answer.is_time) or truth.half or answer.half:
        return False
    left, right = _formulas(truth), _formulas(answer)
    return None not in (left, right) and all(
        same_formula(left[0] * there, right[0] * here) for here, there in zip(left, right, strict=True)
    )


def _in_24_hours(ratio: Ratio) -> Ratio:
    hours = ratio.terms[0]
    if not ratio.half or not isinstance(hours, Quantity):
        return ratio
    hour = hours.formula % 12 + (12 if ratio.half == "pm" else 0)
    return Ratio((Quantity(hour), *ratio.terms[1:]), ratio.is_time)


def _formulas(ratio: Ratio) -> list[Any]:
    return [term.formula for term in ratio.terms if isinstance(term, Quantity)]


def _quotient(ratio: Ratio) -> Any:
    formulas = _formulas(ratio)
    return formulas[0] / formulas[1] if len(formulas) == 2 and formulas[1] != 0 else None


def _same_based(truth: Based, answer: Answer) -> bool:
    answer = _value(answer)
    if not isinstance(answer, Based):
        return False  # without its base, `1101` is another number
    return truth.base == answer.base and truth.digits.lstrip("0") == answer.digits.lstrip("0")


def _same_choice(truth: Choice, answer: Answer) -> bool:
    if truth.value is not None and not isinstance(answer, Choice) and same(truth.value, answer):
        return True
    if isinstance(answer, Quantity) and answer.unit is None:
        product = sympy.Mul(*map(sympy.Symbol, truth.letter))
        return bool(answer.formula in (product, _SMALL_LETTERS.get(truth.letter)))
    if isinstance(answer, Words):
        return answer.text == truth.letter.lower()
    if isinstance(answer, Listing) and answer.kind in ("bare", "set"):
        return "".join(_letters(answer.items)) == truth.letter
    return isinstance(answer, Choice) and truth.letter == answer.letter


def _letters(items: Sequence[Answer]) -> list[str]:
    """Return the letters of several choices; an empty list if they are not choices."""
    letters = [item.letter for item in items if isinstance(item, Choice)]
    return sorted(set(letters)) if len(letters) == len(items) else []


def _same_words(truth: Words, answer: Answer) -> bool:
    if isinstance(answer, Quantity) and answer.formula is sympy.oo:
        return truth.text == _INFINITELY_MANY
    if not isinstance(answer, Words):
        return False
    return truth.text == answer.text or _STATED.sub("", answer.text) == truth.text


_COMPARISONS: tuple[tuple[type, Callable[[Any, Answer], bool]], ...] = (
    (Quantity, _same_quantity),
    (Listing, _same_listing),
    (Region, _same_region),
    (Matrix, _same_matrix),
    (Named, _same_named),
    (Relation, _same_relation),
    (Ratio, _same_ratio),
    (Based, _same_based),
    (Choice, _same_choice),
    (Words, _same_words),
)
