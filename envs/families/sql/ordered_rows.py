"""`OrderedRows`: the rows of a query with an ORDER BY, with the orders that it leaves open.

Rows with equal keys may come in any order, and where a LIMIT cuts them, any of them may come. The query is run with all
of its columns as further keys, once ascending and once descending. Both results have the same rows up to a place
exactly where no two rows with equal keys are separated, so those places part the groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from toolgym.envs.families.sql.compare import Row, contains_rows, same_rows
from toolgym.envs.families.sql.database import Database, QueryError, QueryResult
from toolgym.envs.families.sql.tokens import OrderClause, find_order


class OrderedRows(NamedTuple):
    """All rows of an ordered query in groups of equal keys, and the window that its LIMIT lets through."""

    groups: Sequence[Sequence[Row]]
    offset: int
    size: int

    def accepts(self, answer: Sequence[Row]) -> bool:
        """Whether rows are in an order, and a choice at the ends of the window, that the query leaves open."""
        if len(answer) != self.size:
            return False
        for group, rows in self._parts(answer):
            if not (same_rows(group, rows, ordered=False) if len(group) == len(rows) else contains_rows(group, rows)):
                return False
        return True

    def _parts(self, answer: Sequence[Row]) -> Iterator[tuple[Sequence[Row], Sequence[Row]]]:
        place = -self.offset
        for group in self.groups:
            end = place + len(group)
            rows = answer[max(0, place) : max(0, min(end, self.size))]
            if rows:
                yield group, rows
            place = end


def ordered_rows(
    database: Database, sql: str, result: QueryResult, *, max_rows: int, timeout: float
) -> OrderedRows | None:
    """Return the rows of an ordered query in groups.

    Args:
        database: what it runs on.
        sql: the query.
        result: what the query gave.
        max_rows: the most rows without its LIMIT.
        timeout: wall seconds for each of the two runs.

    Returns:
        None if the query has no outermost ORDER BY, or its groups cannot be told: it is too slow or large without its
        LIMIT. Then only the order of `result` counts.
    """
    clause = find_order(sql)
    if clause is None:
        return None
    try:
        offset = _offset(database, clause, timeout)
        first, second = (
            database.query(_with_ties(sql, clause, len(result.columns), way), max_rows=max_rows, timeout=timeout)
            for way in ("ASC", "DESC")
        )
    except QueryError:
        return None
    if first.more or second.more:
        return None
    rows = OrderedRows([*_groups(first.rows, second.rows)], offset, len(result.rows))
    return rows if rows.accepts(result.rows) else None


def _with_ties(sql: str, clause: OrderClause, columns: int, way: str) -> str:
    ties = ", ".join(f"{number} COLLATE BINARY {way}" for number in range(1, columns + 1))
    return f"{sql[: clause.end]}, {ties}"


def _offset(database: Database, clause: OrderClause, timeout: float) -> int:
    if clause.offset is None:
        return 0
    value: Any = database.query(f"SELECT {clause.offset}", timeout=timeout).rows[0][0]
    return max(0, int(value))


def _groups(ascending: Sequence[Row], descending: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield runs of rows that the two results have at the same places, in any order."""
    surplus: Counter[Row] = Counter()
    start = 0
    for place, (row, other) in enumerate(zip(ascending, descending, strict=True), start=1):
        for key, change in ((tuple(row), 1), (tuple(other), -1)):
            surplus[key] += change
            if not surplus[key]:
                del surplus[key]
        if not surplus:
            yield ascending[start:place]
            start = place
    if start < len(ascending):
        yield ascending[start:]
