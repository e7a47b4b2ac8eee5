"""A small tokenizer of SQLite's SQL: enough to find the outermost ORDER BY and LIMIT, and to change operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<quoted>'[^']*(?:''[^']*)*'?|\"[^\"]*(?:\"\"[^\"]*)*\"?|`[^`]*(?:``[^`]*)*`?|\[[^\]]*\]?)"
    r"|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<number>\.?\d[\w.]*)"
    r"|(?P<symbol>.)",
    re.DOTALL,
)


class SqlToken(NamedTuple):
    """A token of a query.

    Attributes:
        kind: `space` (comments too), `quoted` (texts and quoted names), `word`, `number` or `symbol`.
        text: the token as written.
        start: its first character in the query.
        depth: how many parentheses it stands in.
    """

    kind: str
    text: str
    start: int
    depth: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    def is_word(self, word: str) -> bool:
        """Whether it is this keyword, in any case. A quoted name is not."""
        return self.kind == "word" and self.text.upper() == word


def read_tokens(sql: str) -> Iterator[SqlToken]:
    """Yield the tokens of a query; their texts joined are the query. The time is linear in its length."""
    depth = 0
    for match in _TOKEN.finditer(sql):
        text = match.group()
        if text == ")":
            depth -= 1
        yield SqlToken(match.lastgroup or "symbol", text, match.start(), depth)
        if text == "(":
            depth += 1


class OrderClause(NamedTuple):
    """The outermost ORDER BY of a query.

    Attributes:
        end: the end of its terms in the query.
        offset: the SQL of its OFFSET; None if it has none.
        is_limited: whether a LIMIT follows.
    """

    end: int
    offset: str | None
    is_limited: bool


def find_order(sql: str) -> OrderClause | None:
    """Return the ORDER BY of a query that stands in no parentheses; None if there is none."""
    tokens = [token for token in read_tokens(sql) if token.kind != "space"]
    outer = [index for index, token in enumerate(tokens) if token.depth == 0]
    order = next(
        (
            index
            for index in reversed(outer)
            if tokens[index].is_word("ORDER") and index + 1 < len(tokens) and tokens[index + 1].is_word("BY")
        ),
        None,
    )
    if order is None:
        return None
    ends = [index for index in outer if index > order + 1 and (tokens[index].text == ";" or _is_limit(tokens[index]))]
    end = ends[0] if ends else len(tokens)
    is_limited = end < len(tokens) and _is_limit(tokens[end])
    clause_end = tokens[end - 1].end
    return OrderClause(clause_end, _offset(sql, tokens[end + 1 :]) if is_limited else None, is_limited)


def _is_limit(token: SqlToken) -> bool:
    return token.is_word("LIMIT")


def _offset(sql: str, tokens: list[SqlToken]) -> str | None:
    """Return the offset of `count`, `count OFFSET offset` or `offset, count`."""
    tokens = [token for token in tokens if token.text != ";"]
    for index, token in enumerate(tokens):
        if token.depth == 0 and token.is_word("OFFSET") and index + 1 < len(tokens):
            return sql[tokens[index + 1].start : tokens[-1].end]
        if token.depth == 0 and token.text == "," and index:
            return sql[tokens[0].start : tokens[index - 1].end]
    return None


def without_distinct(sql: str) -> str:
    """Return a query without DISTINCT, except in the operators `IS DISTINCT FROM` and `IS NOT DISTINCT FROM`, and
    without blanks within the operators `>=`, `<=` and `!=`."""
    kept: list[str] = []
    before: list[SqlToken] = []  # the last two tokens that are not space
    tokens = [*read_tokens(sql)]
    for index, token in enumerate(tokens):
        if token.is_word("DISTINCT") and not _is_operator(before):
            continue
        if token.text == "=" and before and before[-1].text in (">", "<", "!") and tokens[index - 1].kind == "space":
            while kept and kept[-1] != before[-1].text:
                kept.pop()
        kept.append(token.text)
        if token.kind != "space":
            before = [*before[-1:], token]
    return "".join(kept)


def _is_operator(before: list[SqlToken]) -> bool:
    if before and before[-1].is_word("NOT"):
        before = before[:-1]
    return bool(before) and before[-1].is_word("IS")
