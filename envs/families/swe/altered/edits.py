"""Edits of a test's text after which it must fail: another expected value, or the opposite assertion.

An edit changes as little as it can, so that the test still looks like a test that somebody wrote: code of the policy
that runs in the same process cannot see which tests were edited unless it knows what the right answers are.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

OPPOSITES = (
    ("assertEqual", "assertNotEqual"),
    ("assertTrue", "assertFalse"),
    ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"),
    ("assertIn", "assertNotIn"),
    ("assertIsInstance", "assertNotIsInstance"),
    ("assertAlmostEqual", "assertNotAlmostEqual"),
    ("assertGreater", "assertLessEqual"),
    ("assertLess", "assertGreaterEqual"),
    ("assertRegex", "assertNotRegex"),
)
OPPOSITE_METHODS = {name: other for pair in OPPOSITES for name, other in (pair, pair[::-1])}

OPPOSITE_OPERATORS = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.GtE: "<",
    ast.Gt: "<=",
    ast.LtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}

EQUALITIES = {
    "assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual",
    "assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual", "assert_equal", "assert_array_equal", "eq_",
}  # fmt: skip
"""Functions and methods that hold for equal values only."""

ERRORS = ("TypeError", "KeyError", "IndexError", "AttributeError", "ZeroDivisionError", "ValueError", "RuntimeError")
UNLIKELY_ERRORS = ("ZeroDivisionError", "RecursionError", "EOFError", "UnicodeDecodeError")


class Edit(NamedTuple):
    """Bytes of a source, from `start` to `end`, and what takes their place."""

    start: int
    end: int
    text: bytes


class Source:
    """A module's text with the places of its nodes in it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.module = data, ast.parse(data)
        self._lines = [0]
        for line in data.splitlines(keepends=True):  # Python counts lines at form feeds neither
            self._lines.append(self._lines[-1] + len(line))

    def place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.expr | ast.stmt) -> bytes:
        start, end = self.place(node)
        return self.data[start:end]

    def line_start(self, node: ast.stmt) -> int:
        return self._lines[node.lineno - 1]

    def edited(self, edits: Sequence[Edit]) -> bytes:
        data = self.data
        for edit in sorted(edits, reverse=True):
            data = data[: edit.start] + edit.text + data[edit.end :]
        return data


def failing_edit(
    source: Source, body: Sequence[ast.stmt], choose: random.Random, inner: Sequence[Sequence[ast.stmt]] = ()
) -> tuple[Edit, bool]:
    """Return an edit after which code that ran to its end must fail, and whether it is hard to see.

    An edit of an assertion's expected value is preferred to the opposite assertion, and that to a statement of its own
    that fails, which is for code without an assertion that is sure to be reached.

    Args:
        source: the module.
        body: the statements of the test.
        choose: draws among the edits.
        inner: bodies of the functions that the test runs, if it is a whole file. They are edited if `body` has no
            assertion.
    """
    for statements in ([body], inner):
        values: list[Edit] = []
        opposites: list[Edit] = []
        for statement in itertools.chain.from_iterable(map(_reached, statements)):
            values += _value_edits(source, statement, choose)
            opposites += _opposite_edits(source, statement)
        if values:
            return choose.choice(values), True
        if opposites:
            return choose.choice(opposites), True
    return _failing_statement(source, body, choose), False


# ---------------------------------------------------------------------- statements that are sure to run


def _reached(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the assertions that code which ended well has run: no branch, handler or early return is on the way."""
    for statement in body:
        if isinstance(statement, ast.Assert | ast.Expr):
            yield statement
        elif isinstance(statement, ast.With | ast.AsyncWith):
            yield statement
            if not any(_is_about_errors(item.context_expr) for item in statement.items):
                yield from _reached(statement.body)
        elif isinstance(statement, ast.For) and _is_not_empty(statement.iter) and not _leaves(statement.body):
            yield from _reached(statement.body)
        if _leaves([statement]):
            return


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether code may return, break or continue."""
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return | ast.Break | ast.Continue):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False


def _is_not_empty(values: ast.expr) -> bool:
    return isinstance(values, ast.List | ast.Tuple | ast.Set) and bool(values.elts)


def _is_about_errors(expression: ast.expr) -> bool:
    """Whether a context manager may end its block early, as `raises`, `suppress` and `warns` do."""
    name = _name(expression.func) if isinstance(expression, ast.Call) else ""
    return not isinstance(expression, ast.Call) or bool(re.search(r"(?i)rais|suppress|ignor|expect|catch|skip", name))


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


# ---------------------------------------------------------------------- other values


def _value_edits(source: Source, statement: ast.stmt, choose: random.Random) -> list[Edit]:
    """Return edits of what an assertion compares with."""
    if isinstance(statement, ast.With | ast.AsyncWith):
        calls = [item.context_expr for item in statement.items]
        return [edit for call in calls for edit in _error_edits(source, call, choose)]
    test = statement.test if isinstance(statement, ast.Assert) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        return _side_edits(source, [test.left, test.comparators[0]], choose)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return []
    if _name(call.func) in EQUALITIES and len(call.args) >= 2:
        return _side_edits(source, call.args[:2], choose)
    return _error_edits(source, call, choose)


def _side_edits(source: Source, sides: Sequence[ast.expr], choose: random.Random) -> list[Edit]:
    if sum(map(_is_literal, sides)) != 1:
        return []
    return _literal_edits(source, next(side for side in sides if _is_literal(side)), choose)


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _literal_edits(source: Source, literal: ast.expr, choose: random.Random) -> list[Edit]:
    """Return edits of a literal's constants, each of which makes it another value."""
    before = ast.literal_eval(literal)
    start, end = source.place(literal)
    edits = []
    for node in ast.walk(literal):
        if not isinstance(node, ast.Constant):
            continue
        text = _other_constant(node, source.text(node), choose)
        if text is None:
            continue
        place = source.place(node)
        changed = source.data[start : place[0]] + text + source.data[place[1] : end]
        try:
            differs = ast.literal_eval(f"({changed.decode()})") != before
        except (ValueError, TypeError, SyntaxError):
            continue
        if differs:
            edits.append(Edit(*place, text))
    if isinstance(literal, ast.List | ast.Tuple | ast.Dict | ast.Set) and not edits:
        empty = {ast.List: b"[0]", ast.Tuple: b"(0,)", ast.Dict: b"{0: 0}", ast.Set: b"{0}"}[type(literal)]
        edits.append(Edit(start, end, empty))
    return edits


def _other_constant(node: ast.Constant, written: bytes, choose: random.Random) -> bytes | None:
    value = node.value
    if isinstance(value, bool):
        return str(not value).encode()
    if isinstance(value, int):
        near = {abs(value + step) for step in (-2, -1, 1, 2)} - {value}  # no threshold divides it from its neighbours
        return str(choose.choice(sorted(near))).encode()
    if isinstance(value, float):
        return repr(choose.choice([2 * value + 1, value + 10, value / 2 + 3])).encode()
    if isinstance(value, str):
        other, quote = _other_text(value, choose), written[:1]
        plain = other.encode("utf-8", "surrogatepass")
        if written == quote + value.encode("utf-8", "surrogatepass") + quote and other.isprintable():
            return quote + plain + quote if quote not in plain and b"\\" not in plain else repr(other).encode()
        return repr(other).encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return repr(_other_text(value.decode("latin-1"), choose).encode("latin-1")).encode()
    return None if value is Ellipsis else choose.choice([b"0", b"False", b"''"]) if value is None else None


def _other_text(text: str, choose: random.Random) -> str:
    """Return another text that looks like the text: words in another order or number, or another letter or digit."""
    parts = re.findall(r"\w+|\W+", text)
    words = [place for place, part in enumerate(parts) if part.isalnum()]
    ways = []
    if len({parts[place] for place in words}) > 1:
        first, second = choose.sample(words, 2)
        swapped = [*parts]
        swapped[first], swapped[second] = parts[second], parts[first]
        dropped = [part for place, part in enumerate(parts) if place != first]
        ways += ["".join(swapped), "".join(dropped)]
    letters = [place for place, char in enumerate(text) if char.isascii() and char.isalnum()]
    if letters:
        place = choose.choice(letters)
        kind = "0123456789" if text[place].isdigit() else "etaoinsrhldcum"
        other = choose.choice([char for char in kind if char != text[place].lower()])
        other = other.upper() if text[place].isupper() else other
        ways += [text[:place] + other + text[place + 1 :], text[:place] + text[place + 1 :]]
    ways = [way for way in ways if way != text]
    return choose.choice(ways) if ways else f"{text}{choose.choice('etaoins')}"


def _error_edits(source: Source, call: ast.expr, choose: random.Random) -> list[Edit]:
    """Return edits of the class of an expected error, or of the text that its message must match."""
    if not isinstance(call, ast.Call) or _name(call.func) not in ("assertRaises", "raises", "assertRaisesRegex"):
        return []
    if not call.args or not isinstance(call.args[0], ast.Name | ast.Attribute):
        return []
    expected = getattr(builtins, _name(call.args[0]), None)
    others: list[str] = []
    if isinstance(expected, type) and expected not in (BaseException, Exception):
        kinds = {name: getattr(builtins, name) for name in ERRORS}
        others = [
            name for name, kind in kinds.items() if not issubclass(kind, expected) and not issubclass(expected, kind)
        ]
    return [Edit(*source.place(call.args[0]), choose.choice(others or UNLIKELY_ERRORS).encode())]


# ---------------------------------------------------------------------- opposites


def _opposite_edits(source: Source, statement: ast.stmt) -> list[Edit]:
    if isinstance(statement, ast.Assert):
        return _opposite_test(source, statement.test)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return []
    other = OPPOSITE_METHODS.get(call.func.attr)
    is_self = isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls")
    if other is None or not is_self:
        return []
    end = source.place(call.func)[1]
    return [Edit(end - len(call.func.attr.encode()), end, other.encode())]


def _opposite_test(source: Source, test: ast.expr) -> list[Edit]:
    start, end = source.place(test)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        middle = (source.place(test.left)[1], source.place(test.comparators[0])[0])
        between = source.data[middle[0] : middle[1]]
        operator = re.search(rb"not\s+in|is\s+not|==|!=|<=|>=|<|>|\bin\b|\bis\b", between)
        other = OPPOSITE_OPERATORS.get(type(test.ops[0]))
        if operator is None or other is None or b"#" in between:
            return []
        return [Edit(middle[0] + operator.start(), middle[0] + operator.end(), other.encode())]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return [Edit(start, source.place(test.operand)[0], b"")] if _is_simple(test.operand) else []
    if _is_simple(test):
        return [Edit(start, start, b"not ")]
    if isinstance(test, ast.Tuple | ast.Constant):
        return []
    return [Edit(start, end, b"not (" + source.data[start:end] + b")")]


def _is_simple(node: ast.expr) -> bool:
    return isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.Subscript)


def _failing_statement(source: Source, body: Sequence[ast.stmt], choose: random.Random) -> Edit:
    """Return an edit that adds a statement which fails, after the docstring and the imports.

    The imports may be of the policy's code, and code that ends the process with exit code 0 would fail as it must.
    """
    first = next(
        (
            statement
            for place, statement in enumerate(body)
            if not (place == 0 and _is_docstring(statement)) and not isinstance(statement, ast.Import | ast.ImportFrom)
        ),
        body[-1],
    )
    start = source.place(first)[0]
    if getattr(first, "decorator_list", None):
        start = source.place(first.decorator_list[0])[0] - 1  # type: ignore[attr-defined]  # it has one
    value = choose.randint(2, 9)
    text = f"assert {value} * {choose.randint(2, 9)} == {value}"
    line = source.data[source.data.rfind(b"\n", 0, start) + 1 : start]
    separator = "\n" + line.decode() if not line.strip() else "; "
    return Edit(start, start, f"{text}{separator}".encode())


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
