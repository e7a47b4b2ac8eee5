"""Whether two queries give the same result."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

Row = Sequence[Any]

TOLERANCE = 1e-6
"""By what part of themselves two numbers may differ."""

_QUOTED_OR_COMMENT = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)
_ORDER = re.compile(r"[()]|\border\s+by\b", re.IGNORECASE)


def is_ordered(sql: str) -> bool:
    """Whether a query orders its rows: it has an ORDER BY that is in no parentheses."""
    depth = 0
    for found in _ORDER.finditer(_QUOTED_OR_COMMENT.sub(" ", sql)):
        if found.group() == "(":
            depth += 1
        elif found.group() == ")":
            depth -= 1
        elif depth == 0:
            return True
    return False


def same_rows(expected: Sequence[Row], given: Sequence[Row], *, ordered: bool) -> bool:
    """Whether two results are equal: the same rows as often, and in the same order where that counts.

    Numbers are equal within `TOLERANCE`, an integer and a real one too. Names of columns are not compared.
    """
    if len(expected) != len(given):
        return False
    if ordered:
        return all(map(_same_row, expected, given))
    first, second = sorted(expected, key=_key), sorted(given, key=_key)
    return all(map(_same_row, first, second)) or _match(first, second)


def _match(expected: Sequence[Row], given: Sequence[Row]) -> bool:
    """The same for rows that numbers which differ a little have put into another order."""
    left = list(given)
    for row in expected:
        place = next((at for at, other in enumerate(left[:100]) if _same_row(row, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def _same_row(one: Row, other: Row) -> bool:
    return len(one) == len(other) and all(map(_same, one, other))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-9)
    return type(one) is type(other) and bool(one == other)


def _key(row: Row) -> list[tuple[int, Any]]:
    """An order of rows whose values are of any type."""
    return [
        (0, 0)
        if value is None
        else (1, value)
        if isinstance(value, int | float)
        else (2 + isinstance(value, bytes), value)
        for value in row
    ]
