"""Whether two queries give the same result: by the library's rule, by BIRD's and by Spider's."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from toolgym.envs.families.sql.tokens import find_order, without_distinct

Row = Sequence[Any]

NEAR = 100
"""Rows before and after its place that are compared with a row whose reals may be nearly equal."""

TOLERANCE = 1e-6
"""The part of themselves by which two numbers may differ if one is a real; two integers must be equal."""

ROUNDING = 1e-12
"""The amount by which they may differ in any case, so that 0.1 + 0.2 - 0.3 is 0."""


def is_ordered(sql: str) -> bool:
    """Whether a query orders its rows: it has an ORDER BY that stands in no parentheses."""
    return find_order(sql) is not None


def same_rows(expected: Sequence[Row], answer: Sequence[Row], *, ordered: bool) -> bool:
    """Whether two results have the same rows as often, in the same order if `ordered`.

    Reals are equal within `TOLERANCE`, and so are an integer and a real. Names of columns are not compared.
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
    """Return the query as Spider's test suite runs it: without DISTINCT, and without blanks within an operator. The
    operator `IS DISTINCT FROM` stays, which the test suite breaks."""
    return without_distinct(sql)


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


def contains_rows(expected: Sequence[Row], answer: Sequence[Row]) -> bool:
    """Whether each row of an answer is among the expected rows, at most as often."""
    return len(answer) <= len(expected) and _match(answer, expected)


def _match(rows: Sequence[Row], among: Sequence[Row]) -> bool:
    """Whether each row is another one of those in `among`. Rows whose reals are nearly equal may be sorted in another
    order, so the rows near to its place are looked at."""
    remaining = sorted(among, key=_key)
    for row in rows:
        start = max(0, bisect.bisect_left(remaining, _key(row), key=_key) - NEAR)
        near = range(start, min(len(remaining), start + 2 * NEAR))
        place = next((at for at in near if _same_row(row, remaining[at])), None)
        if place is None:
            return False
        del remaining[place]
    return True


def _same_row(row: Row, other: Row) -> bool:
    return len(row) == len(other) and all(map(_same, row, other))


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, int) and isinstance(other, int):
        return value == other
    if isinstance(value, int | float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=TOLERANCE, abs_tol=ROUNDING)
    return type(value) is type(other) and bool(value == other)


def _key(row: Row) -> list[tuple[int, Any]]:
    kinds = {type(None): 0, bool: 1, int: 1, float: 1, str: 2, bytes: 3}
    return [(kinds[type(value)], 0 if value is None else value) for value in row]
