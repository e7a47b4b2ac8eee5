"""Whether two queries give the same result: by the library's rule, by BIRD's and by Spider's."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

Row = Sequence[Any]

TOLERANCE = 1e-6
"""By what part of themselves two numbers may differ."""

_QUOTED_OR_COMMENT = re.compile(
    r"'(?:[^']|'')*+(?:'|\Z)|\"(?:[^\"]|\"\")*+(?:\"|\Z)|`[^`]*+(?:`|\Z)|\[[^\]]*+(?:\]|\Z)|--[^\n]*+"
    r"|/\*.*?(?:\*/|\Z)",
    re.DOTALL,
)
"""Text of a query that is not SQL. What is not closed reaches to the end, so that the search takes linear time."""

_DISTINCT = re.compile(rf"({_QUOTED_OR_COMMENT.pattern})|\bdistinct\b", re.IGNORECASE | re.DOTALL)
_ORDER = re.compile(r"[()]|\border\s+by\b", re.IGNORECASE)


def is_ordered(sql: str) -> bool:
    """Whether a query orders its rows: it has an ORDER BY that is in no parentheses."""
    depth = 0
    for match in _ORDER.finditer(_QUOTED_OR_COMMENT.sub(" ", sql)):
        if match.group() == "(":
            depth += 1
        elif match.group() == ")":
            depth -= 1
        elif depth == 0:
            return True
    return False


def same_rows(expected: Sequence[Row], answer: Sequence[Row], *, ordered: bool) -> bool:
    """Whether two results have the same rows as often, in the same order if `ordered`.

    Numbers are equal within `TOLERANCE`, an integer and a real one too. Names of columns are not compared.
    """
    if len(expected) != len(answer):
        return False
    if ordered:
        return all(map(_same_row, expected, answer))
    first, second = sorted(expected, key=_key), sorted(answer, key=_key)
    return all(map(_same_row, first, second)) or _match(first, second)


def bird_same(expected: Sequence[Row], answer: Sequence[Row]) -> bool:
    """Whether both are the same set of rows, as BIRD's `evaluation.py` compares: neither order nor repetition counts.

    https://github.com/AlibabaResearch/DAMO-ConvAI/blob/main/bird/llm/src/evaluation.py
    """
    return set(map(tuple, expected)) == set(map(tuple, answer))


def spider_query(sql: str) -> str:
    """Return the query as Spider's test suite runs it: without DISTINCT, and without blanks within an operator."""
    for operator in (">", "<", "!"):
        sql = sql.replace(f"{operator} =", f"{operator}=")
    return _DISTINCT.sub(lambda match: match[1] or "", sql)


def spider_same(expected: Sequence[Row], answer: Sequence[Row], known: str) -> bool:
    """Whether the columns can be put into an order in which both have the same rows, each as often.

    In the same order if the known query has "order by" anywhere; two empty results are the same.
    https://github.com/taoyds/test-suite-sql-eval/blob/master/exec_eval.py (`eval_exec_match`)
    """
    if len(expected) != len(answer) or not expected:
        return not expected and not answer
    ordered = "order by" in known.lower()
    wanted, columns = list(zip(*expected, strict=True)), list(zip(*answer, strict=True))

    def fits(chosen: list[tuple[Any, ...]]) -> bool:
        left, right = list(zip(*wanted[: len(chosen)], strict=True)), list(zip(*chosen, strict=True))
        return left == right if ordered else Counter(left) == Counter(right)

    def is_order(chosen: list[tuple[Any, ...]], rest: list[tuple[Any, ...]]) -> bool:
        if not rest:
            return True
        tried = []
        for at, column in enumerate(rest):
            if (
                column not in tried
                and fits([*chosen, column])
                and is_order([*chosen, column], rest[:at] + rest[at + 1 :])
            ):
                return True
            tried.append(column)
        return False

    return len(wanted) == len(columns) and is_order([], columns)


def same_result(match: str, known: str, expected: Sequence[Row], answer: Sequence[Row]) -> bool:
    """Whether two results are the same by a rule: `rows` of this library, or `bird`, or `spider`.

    Args:
        match: the rule.
        known: the known query.
        expected: rows of the known query.
        answer: rows of the policy's query.
    """
    if match == "bird":
        return bird_same(expected, answer)
    if match == "spider":
        return spider_same(expected, answer, known)
    return same_rows(expected, answer, ordered=is_ordered(known))


def _match(expected: Sequence[Row], answer: Sequence[Row]) -> bool:
    left = list(answer)
    for row in expected:
        place = next((at for at, other in enumerate(left[:100]) if _same_row(row, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def _same_row(row: Row, other: Row) -> bool:
    return len(row) == len(other) and all(map(_same, row, other))


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, int | float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=TOLERANCE, abs_tol=1e-9)
    return type(value) is type(other) and bool(value == other)


def _key(row: Row) -> list[tuple[int, Any]]:
    kinds = {type(None): 0, bool: 1, int: 1, float: 1, str: 2, bytes: 3}
    return [(kinds[type(value)], 0 if value is None else value) for value in row]
