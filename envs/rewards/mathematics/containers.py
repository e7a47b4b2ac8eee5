"""Answers of several values: lists, tuples, sets, intervals, unions and matrices."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import sympy

from toolgym.envs.rewards.mathematics.formulas import UnreadableError, rational, read_formula
from toolgym.envs.rewards.mathematics.parts import closes, closing_of, opening_of, opens, split
from toolgym.envs.rewards.mathematics.units import Unit
from toolgym.envs.rewards.mathematics.values import Answer, Listing, Matrix, Named, Quantity, Region
from toolgym.tools.answers.tokens import AnswerToken, read_tokens, word_set

MAX_ITEMS = 200

Read = Callable[[Sequence[AnswerToken]], Answer]

_MATRICES = word_set("matrix pmatrix bmatrix Bmatrix smallmatrix array psmallmatrix bsmallmatrix")
_BEGIN = re.compile(r"\\begin\s*\{(\w+\*?)\}(?:\s*\{[clr|\s]*\})?")


def as_listing(parts: Sequence[Sequence[AnswerToken]], read: Read, *, join: str = "") -> Answer:
    """Read values with separators between them; `join` is the word "and" or "or", if one is among these."""
    if len(parts) > MAX_ITEMS:
        raise UnreadableError("the answer has too many parts")
    items = _punctured([read(part) for part in parts])
    if len(items) == 1:
        return items[0]
    first = items[0]
    if isinstance(first, Named) and not any(isinstance(item, Named) for item in items[1:]):  # n = 4, 5, 6
        items[0] = first.value
    if (total := _total(items)) is not None:
        return total
    regions = [item for item in items if isinstance(item, Region)]
    if len(regions) == len(items) > 1 and any(region.points is sympy.S.Reals for region in regions):  # x in R, x != 2
        names = [region.name for region in regions if region.name]
        return Region(sympy.Intersection(*(region.points for region in regions)), names[0] if names else "")
    if len(regions) == len(items) and any(region.name for region in regions):  # x < 1 or x > 2
        return Region(_joined([region.points for region in regions], join), regions[0].name)
    return Listing(tuple(_flattened(items)), "bare")


def _punctured(items: Sequence[Answer]) -> list[Answer]:
    r"""Join `x \ne 1, 2` to one region without both numbers."""
    joined: list[Answer] = []
    for item in items:
        before = joined[-1] if joined else None
        if isinstance(item, Quantity) and isinstance(before, Region):
            missing = sympy.Complement(sympy.S.Reals, before.points)
            if isinstance(missing, sympy.FiniteSet) and missing:
                joined[-1] = Region(sympy.Complement(before.points, sympy.FiniteSet(item.formula)), before.name)
                continue
        joined.append(item)
    return joined


def _total(items: Sequence[Answer]) -> Quantity | None:
    """Return the sum of values in smaller and smaller units, such as "1 hour and 20 minutes"; None for other values."""
    units = [item.unit for item in items if isinstance(item, Quantity) and item.unit is not None]
    factors = [unit.factor for unit in units]
    is_sum = len(items) == len(units) > 1 and all(high > low for high, low in itertools.pairwise(factors))
    if not is_sum or len({unit.dimension for unit in units}) > 1:
        return None
    formulas = [item.formula * rational(item.unit.factor) for item in items if isinstance(item, Quantity) and item.unit]
    return Quantity(sum(formulas, sympy.Integer(0)), Unit(units[0].dimension, Fraction(1)), parts=True)


def _joined(points: Sequence[Any], join: str) -> Any:
    """Join inequalities: "x > 2 and x < 5" is both of them, and "x < 2 and x > 5", which excludes itself, is either."""
    either, both = sympy.Union(*points), sympy.Intersection(*points)
    is_both = join == "and" or (not join and either == sympy.S.Reals)
    return both if is_both and both is not sympy.S.EmptySet else either


def _flattened(items: Sequence[Answer]) -> list[Answer]:
    names = {item.name for item in items if isinstance(item, Named)}
    if len(names) == 1:  # x = 1 or x = 2
        items = [item.value if isinstance(item, Named) else item for item in items]
    flat: list[Answer] = []
    for item in items:
        flat += item.items if isinstance(item, Listing) and item.kind == "bare" else [item]
    return flat


def as_bracketed(tokens: Sequence[AnswerToken], read: Read) -> Answer | None:
    tokens = _plain_brackets(tokens)
    if (multiple := _multiple(tokens, read)) is not None:
        return multiple
    if not opens(tokens[0]) or closing_of(tokens, 0) != len(tokens) - 1:
        return None
    opening, closing, inner = tokens[0].text, tokens[-1].text, list(tokens[1:-1])
    if opening == "{" and tokens[0].kind == "command":
        return _as_set(inner, read)
    parts = split(inner, (",", ";"), joins=False)
    if len(parts) == 1:
        if opening in ("(", "{") and not _is_formula(tokens):
            return read(inner)
        if opening == "[" and closing == "]":
            return read(inner)
        return None
    if any(not part for part in parts):
        raise UnreadableError("a part in brackets is empty")
    items = tuple(read(part) for part in parts)
    if opening in ("langle", "lbrack") and opening == "langle":
        return Listing(items, "tuple")
    if len(items) == 2 and (interval := _interval(items, opening == "(", closing == ")")) is not None:
        return interval
    return Listing(items, "bracket" if opening == "[" else "tuple")


def _multiple(tokens: Sequence[AnswerToken], read: Read) -> Listing | None:
    r"""Read a number times a tuple, such as `\frac{1}{3}(1, 2, 2)`."""
    opening = opening_of(tokens, len(tokens) - 1) if tokens[-1].is_symbol(")") else None
    factor = [token for token in tokens[:opening] if not token.is_command("cdot", "times")] if opening else []
    inner = split(tokens[opening + 1 : -1], (",",), joins=False) if opening is not None else []
    if not factor or len(inner) < 2 or any(token.kind in ("letter", "word") for token in factor):
        return None
    if any(token.is_symbol(",", ";") for token in factor):
        return None
    number = read_formula(factor)
    items = [read(part) for part in inner]
    formulas = [item.formula for item in items if isinstance(item, Quantity) and item.unit is None]
    if len(formulas) != len(items):
        return None
    return Listing(tuple(Quantity(number * formula) for formula in formulas), "tuple")


def _plain_brackets(tokens: Sequence[AnswerToken]) -> Sequence[AnswerToken]:
    """Return a point without its name, a column without its transposition, and `]0, 1[` with round brackets."""
    first, last = tokens[0], tokens[-1]
    if len(tokens) > 3 and first.kind == "letter" and first.text.isupper() and tokens[1].is_symbol("("):
        is_point = closing_of(tokens, 1) == len(tokens) - 1 and any(token.is_symbol(",", ";") for token in tokens)
        return tokens[1:] if is_point else tokens
    is_open = first.is_symbol("]"), last.is_symbol("[")
    if any(is_open) and sum(token.is_symbol("[", "]") for token in tokens) < 3:
        round_first = first._replace(text="(") if is_open[0] else first
        round_last = last._replace(text=")") if is_open[1] else last
        return [round_first, *tokens[1:-1], round_last]
    end = len(tokens) - 1
    while end > 1 and (tokens[end].is_symbol("{", "}") or tokens[end].text in ("T", "top", "intercal")):
        end -= 1
    if end < len(tokens) - 1 and tokens[end].is_symbol("^") and closes(tokens[end - 1]):
        return tokens[:end]
    return tokens


def _is_formula(tokens: Sequence[AnswerToken]) -> bool:
    try:
        read_formula(tokens)
    except UnreadableError:
        return False
    return True


def _as_set(inner: Sequence[AnswerToken], read: Read) -> Answer:
    if not inner:
        return Listing((), "set")
    for at, token in enumerate(inner):
        if token.is_command("mid") or token.is_symbol(":", "|"):  # { x | x > 5 }
            condition = read(inner[at + 1 :])
            if isinstance(condition, Region):
                return condition
            raise UnreadableError("the condition of a set")
    items = [read(part) for part in split(inner, (",", ";"))]
    flat: list[Answer] = []
    for item in items:
        flat += item.items if isinstance(item, Listing) and item.kind == "bare" else [item]
    return Listing(tuple(flat), "set")


def _interval(items: Sequence[Answer], left_open: bool, right_open: bool) -> Answer | None:
    low, high = items
    if not (isinstance(low, Quantity) and isinstance(high, Quantity)) or low.unit or high.unit:
        return None
    ends = low.formula, high.formula
    is_real = all(end.is_extended_real and not end.free_symbols for end in ends)
    if not is_real or (left_open != right_open and not ends[0].is_comparable and not ends[0].is_infinite):
        return None
    pair = Listing(tuple(items), "tuple") if left_open and right_open else None
    if not left_open and not right_open:
        pair = Listing(tuple(items), "bracket")
    if sympy.Lt(*ends) != True:  # noqa: E712  a relation of SymPy
        return pair
    return Region(sympy.Interval(*ends, left_open, right_open), pair=pair)


def as_union(tokens: Sequence[AnswerToken], read: Read) -> Answer | None:
    """Read a union of intervals, all real numbers, or a set without some of its points."""
    if len(tokens) == 1:
        if tokens[0].is_command("emptyset"):
            return Listing((), "set")
        sets = {"setR": sympy.S.Reals, "setZ": sympy.S.Integers, "setN": sympy.S.Naturals, "setQ": sympy.S.Rationals}
        return Region(sets[tokens[0].text]) if tokens[0].kind == "command" and tokens[0].text in sets else None
    for command, join in (("setminus", sympy.Complement), ("cup", sympy.Union), ("cap", sympy.Intersection)):
        parts: list[list[AnswerToken]] = [[]]
        depth = 0
        for token in tokens:
            depth += opens(token) - closes(token)
            if depth == 0 and token.is_command(command):
                parts.append([])
            else:
                parts[-1].append(token)
        if len(parts) > 1:
            sets_of_parts = [points_of(read(part)) for part in parts]
            if any(points is None for points in sets_of_parts):
                raise UnreadableError("a part of a union")
            points = sets_of_parts[0]
            for other in sets_of_parts[1:]:
                points = join(points, other)
            return Region(points)
    return None


def as_reals_except(tokens: Sequence[AnswerToken], read: Read) -> Answer | None:
    """Read "all real numbers except 2"."""
    place = next((at for at, token in enumerate(tokens) if token.is_word("except")), 0)
    words = {token.text.lower() for token in tokens[:place] if not (token.kind == "letter" and token.text == "x")}
    if not words or not words <= {"all", "real", "reals", "numbers", "values", "of", "setr"}:
        return None
    excepted = [token for token in tokens[place + 1 :] if not token.is_word("for")]
    answer = read(excepted)
    if isinstance(answer, Named):
        answer = answer.value
    points = points_of(answer if isinstance(answer, Listing) else Listing((answer,), "bare"))
    return None if points is None else Region(sympy.Complement(sympy.S.Reals, points))


def points_of(answer: Answer) -> Any:
    """Return the set of SymPy that an answer is as a set of numbers; None if it is not one."""
    if isinstance(answer, Region):
        return answer.points
    if isinstance(answer, Listing) and answer.kind in ("set", "bare"):
        formulas = [item.formula for item in answer.items if isinstance(item, Quantity)]
        return sympy.FiniteSet(*formulas) if len(formulas) == len(answer.items) else None
    return None


def as_matrix(text: str, read: Callable[[str], Answer]) -> Answer:
    """Read an environment of LaTeX: equations, or a matrix, perhaps with a name or a factor before it."""
    begin = _BEGIN.search(text)
    end = text.rfind("\\end")
    if begin is None or end < begin.end() or "\\begin" in text[begin.end() : end]:
        raise UnreadableError("an environment that is not a matrix")
    rows = [row for row in re.split(r"\\\\(?:\[\w+\])?|\\cr", text[begin.end() : end]) if row.strip()]
    if begin[1] not in _MATRICES or all(row.count("=") == 1 and row.count("&") < 3 for row in rows):
        return _as_equations(begin[1], rows, read)
    around = text[: begin.start()] + " \\matrix " + text[end:].partition("}")[2]
    matrix = Matrix(tuple(tuple(read(cell) for cell in row.split("&")) for row in rows))
    tokens = [token for token in read_tokens(around) if not token.is_symbol("(", ")", "[", "]", ".", ",", "{", "}")]
    place = next(at for at, token in enumerate(tokens) if token.is_command("matrix"))
    before, after = tokens[:place], tokens[place + 1 :]
    if [token.text for token in after] in (["^", "T"], ["^", "top"]):
        matrix, after = Matrix(tuple(zip(*matrix.rows, strict=True))), []
    if after:
        raise UnreadableError("a formula with a matrix")
    equals = max((at for at, token in enumerate(before) if token.is_symbol("=")), default=-1)
    if factor := before[equals + 1 :]:
        matrix = _scaled(matrix, read_formula(factor))
    name = "".join(token.text for token in before[:equals])
    return Named(name, matrix) if equals > 0 else matrix


def _as_equations(environment: str, rows: Sequence[str], read: Callable[[str], Answer]) -> Answer:
    """Read a system of equations, one a row."""
    if environment not in ("cases", "aligned", "array", "align", "align*", "gathered", "split") or len(rows) < 2:
        raise UnreadableError("an environment that is not a matrix")
    equations = [row.replace("&", "").strip().rstrip(",;.") for row in rows]
    if not all(equation.count("=") == 1 for equation in equations):
        raise UnreadableError("a function by cases")
    return read(", ".join(equations))


def _scaled(matrix: Matrix, factor: Any) -> Matrix:
    rows = []
    for row in matrix.rows:
        if not all(isinstance(cell, Quantity) and cell.unit is None for cell in row):
            raise UnreadableError("a factor of a matrix that has other cells than numbers")
        rows.append(tuple(Quantity(factor * cell.formula) for cell in row if isinstance(cell, Quantity)))
    return Matrix(tuple(rows))


def vector_cells(matrix: Matrix) -> Sequence[Answer] | None:
    """Return the cells of a row or a column; None if the matrix is neither."""
    if all(len(row) == 1 for row in matrix.rows):
        return [row[0] for row in matrix.rows]
    return matrix.rows[0] if len(matrix.rows) == 1 else None


def components(formula: Any, count: int) -> list[Answer] | None:
    """Return the components of a vector such as `3i + 4j`; None if the formula is not a vector."""
    units = [sympy.I, sympy.Symbol("j"), sympy.Symbol("k")]
    if not formula.free_symbols & set(units[1:]) or count not in (2, 3):
        return None
    basis = sympy.symbols("basis_i basis_j basis_k")
    expanded = sympy.expand(formula).xreplace(dict(zip(units, basis, strict=True)))
    parts = [expanded.coeff(unit) for unit in basis]
    rest = sympy.expand(expanded - sum(map(sympy.Mul, parts, basis)))
    if rest != 0 or any(part.has(*basis) for part in parts) or any(parts[count:]):
        return None
    return [Quantity(part) for part in parts[:count]]
