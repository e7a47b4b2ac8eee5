"""Answers with a relation: named values, equations, inequalities and intervals written as inequalities."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy

from toolgym.envs.rewards.mathematics.containers import points_of
from toolgym.envs.rewards.mathematics.equality import same
from toolgym.envs.rewards.mathematics.formulas import UnreadableError, read_formula
from toolgym.envs.rewards.mathematics.parts import closes, closing_of, opens, split, without_lead
from toolgym.envs.rewards.mathematics.values import Answer, Listing, Named, Quantity, Region, Relation
from toolgym.tools.answers.numbers import NEGATIONS
from toolgym.tools.answers.tokens import AnswerToken

Read = Callable[[Sequence[AnswerToken]], Answer]

_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "le": "<=", "ge": ">=", "ne": "!=", "approx": "~", "in": "in", "equiv": "=",
    "sim": "~", "cong": "~", "ll": "<", "gg": ">",
}  # fmt: skip
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_WORD_RELATIONS = {
    ("at", "least"): ">=", ("at", "most"): "<=", ("more", "than"): ">", ("greater", "than"): ">", ("less", "than"): "<",
    ("fewer", "than"): "<", ("no", "more", "than"): "<=", ("no", "less", "than"): ">=", ("no", "fewer", "than"): ">=",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z][A-Za-z]*'*(?:_\w+|\^-1)?(?:\([\w,]+\))?")


def as_relation(tokens: Sequence[AnswerToken], read: Read) -> Answer | None:
    """Read an answer with relation signs, or with words such as "at least"; None if it has none of them."""
    for words, sign in _WORD_RELATIONS.items():
        if len(tokens) > len(words) and all(map(AnswerToken.is_word, tokens, words)):
            return _inequality([], sign, tokens[len(words) :], read)
    parts, signs = _split_at_signs(tokens)
    if not signs:
        return None
    if all(sign in ("=", "~") for sign in signs):
        return _equation(parts, signs, read)
    if signs == ["in"]:
        region = read(parts[1])
        if _names(parts[0]) is not None:
            return region  # (a, b) in a set of pairs
        points = points_of(region)
        if points is None:
            raise UnreadableError("what a variable is in is not a set")
        return Region(points, _name(parts[0]) or "")
    if len(signs) == 1:
        return _inequality(parts[0], signs[0], parts[1], read)
    if len(signs) == 2 and all(sign in ("<", "<=", ">", ">=") for sign in signs):
        name = _name(parts[1])
        below, above = _inequality(parts[0], signs[0], parts[1], read), _inequality(parts[1], signs[1], parts[2], read)
        if name is not None and isinstance(below, Region) and isinstance(above, Region):
            return Region(sympy.Intersection(below.points, above.points), name)
    return _chain(parts, signs)


def _chain(parts: Sequence[Sequence[AnswerToken]], signs: Sequence[str]) -> Listing:
    """Read `a > b > c` as its inequalities, from the smallest side on."""
    if not all(sign in ("<", "<=") for sign in signs):
        if not all(sign in (">", ">=") for sign in signs):
            raise UnreadableError("a chain of relations")
        parts, signs = parts[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    sides = [read_formula(part) for part in parts]
    steps = zip(signs, itertools.pairwise(sides), strict=True)
    return Listing(tuple(Relation(sign, left, right) for sign, (left, right) in steps), "tuple")


def _split_at_signs(tokens: Sequence[AnswerToken]) -> tuple[list[list[AnswerToken]], list[str]]:
    """Return the sides of the relations outside of brackets, and the signs between them."""
    parts: list[list[AnswerToken]] = [[]]
    signs: list[str] = []
    depth, at = 0, 0
    while at < len(tokens):
        token = tokens[at]
        depth += opens(token) - closes(token)
        sign = _RELATIONS.get(token.text, "") if token.kind in ("symbol", "command") else ""
        is_followed = at + 1 < len(tokens) and tokens[at + 1].is_symbol("=")
        if is_followed and token.is_command("not"):
            sign, at = "!=", at + 1
        elif is_followed and sign in ("<", ">"):
            sign, at = f"{sign}=", at + 1
        if depth == 0 and sign:
            signs.append(sign)
            parts.append([])
        else:
            parts[-1].append(token)
        at += 1
    return parts, signs


def _name(tokens: Sequence[AnswerToken]) -> str | None:
    """Return the name that a side of an equation is, such as `x` and `f(x)`; None if it is not a name."""
    text = "".join(token.text for token in tokens if not token.is_symbol("{", "}"))
    if any(
        token.is_command("angle", "triangle", "overline", "vec", "hat", "measuredangle", "mathrm") for token in tokens
    ):
        return text if not any(token.kind == "number" for token in tokens) else None
    if _is_call(tokens):
        return text
    if not tokens or tokens[0].kind == "number" or any(token.kind == "command" for token in tokens[1:]):
        return None
    if any(token.is_word(*NEGATIONS) for token in tokens):
        return None
    if all(token.kind == "word" for token in tokens):
        return " ".join(token.text.lower() for token in tokens)
    letters = [token for token in tokens if token.kind == "letter"]
    if len(letters) == len(tokens) and len(letters) > 1 and not all(token.text.isupper() for token in letters):
        return None  # a product
    return text if _NAME.fullmatch(text) and text not in ("e", "i") else None


def _is_call(tokens: Sequence[AnswerToken]) -> bool:
    r"""Whether tokens name a value: `P(A \cup B)`, `E[X]`, `|A|`, a limit, an integral or a derivative."""
    if len(tokens) < 3:
        return False
    first = tokens[0]
    if first.is_symbol("|") and tokens[-1].is_symbol("|"):
        return all(token.kind == "letter" and token.text.isupper() for token in tokens[1:-1])
    if first.is_command("frac"):
        return tokens[1].is_symbol("{") and (tokens[2].text == "d" or tokens[2].is_command("partial"))
    is_head = first.is_command("Pr", "setE", "setP", "gcd", "det", "max", "min") or first.kind == "word"
    is_head = is_head or (first.kind == "letter" and first.text.isupper())
    if is_head and opens(tokens[1]):
        return closing_of(tokens, 1) == len(tokens) - 1
    return first.is_command("lim", "int", "iint", "oint", "sum", "prod", "det")


def _equation(parts: Sequence[Sequence[AnswerToken]], signs: Sequence[str], read: Read) -> Answer:
    if signs[-1] == "~" and len(parts) > 1:  # the exact value stands before what it is about
        exact = parts[:-1]
        if len(exact) > 1 or not _name(exact[0]):
            return _equation(exact, signs[:-1], read) if len(exact) > 1 else read(exact[0])
    left, right = parts[0], parts[-1]
    name = _name(without_lead(left))
    if name is None and len(parts) == 2 and (tuple_of_names := _names(left)) is not None:
        value = read(right)
        items = value.pair.items if isinstance(value, Region) and value.pair else getattr(value, "items", ())
        if len(items) == len(tuple_of_names):
            return value
    if name is not None:
        values = [read(part) for part in parts[1:]]
        _require_equal(values)
        return Named(name, values[-1])
    if len(parts) == 2 and (name := _name(right)) is not None and len(name) == 1:
        return Named(name, read(left))
    if len(parts) > 1 and any(token.is_command("ldots") for part in parts[:-1] for token in part):
        parts = [part for part in parts if not any(token.is_command("ldots") for token in part)]  # 1 + 2 + ... = 45
        return _equation(parts, ["="] * (len(parts) - 1), read) if len(parts) > 1 else read(parts[0])
    formulas = [read_formula(part) for part in parts]
    if any(formula.free_symbols for formula in formulas):
        if len(parts) > 2:
            raise UnreadableError("a chain of equations")
        return Relation("=", formulas[0], formulas[1])
    quantities = [read(part) for part in parts]
    _require_equal(quantities)
    return quantities[-1]


def _require_equal(values: Sequence[Answer]) -> None:
    """Refuse a chain such as `99 = 5`, which would be right for two different ground truths."""
    if any(not same(values[-1], value) for value in values[:-1]):
        raise UnreadableError("an equation that does not hold")


def _names(tokens: Sequence[AnswerToken]) -> list[str] | None:
    if len(tokens) < 3 or not tokens[0].is_symbol("(") or not tokens[-1].is_symbol(")"):
        return None
    names = [_name(part) for part in split(tokens[1:-1], (",",), joins=False)]
    return [name for name in names if name] if all(names) and len(names) > 1 else None


def _inequality(left: Sequence[AnswerToken], sign: str, right: Sequence[AnswerToken], read: Read) -> Answer:
    name, other = _name(left) if left else "", _name(right)
    if name is None and other is not None:
        left, right, name, sign = right, left, other, _FLIPPED[sign]
    bound = read(right)
    if name is not None and sign == "!=" and isinstance(bound, Listing):
        points = points_of(bound)
        if points is not None:
            return Region(sympy.Complement(sympy.S.Reals, points), name)
    is_number = isinstance(bound, Quantity) and not bound.formula.free_symbols and bound.formula.is_extended_real
    if name is not None and is_number and isinstance(bound, Quantity):
        return Region(_half_line(sign, bound.formula), name)
    formulas = read_formula(left), read_formula(right)
    symbols = formulas[0].free_symbols | formulas[1].free_symbols
    if sign in (">", ">="):
        formulas, sign = formulas[::-1], _FLIPPED[sign]
    if len(symbols) == 1:
        try:
            relation = {"<": sympy.Lt, "<=": sympy.Le, "!=": sympy.Ne}[sign](*formulas)
            symbol = next(iter(symbols))
            return Region(relation.as_set() if relation not in (True, False) else sympy.S.EmptySet, symbol.name)
        except (NotImplementedError, TypeError, ValueError, AttributeError):
            pass
    return Relation(sign, *formulas)


def _half_line(sign: str, bound: Any) -> Any:
    if sign in (">", ">="):
        return sympy.Interval(bound, sympy.oo, sign == ">")
    if sign in ("<", "<="):
        return sympy.Interval(-sympy.oo, bound, True, sign == "<")
    return sympy.Complement(sympy.S.Reals, sympy.FiniteSet(bound))
