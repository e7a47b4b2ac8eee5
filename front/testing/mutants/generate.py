"""`mutants_of`: programs that differ from a Python program in one place."""

from __future__ import annotations

import ast
import copy
import difflib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Change: TypeAlias = Callable[[Any], None]
"""Changes a node of a copy of the program's tree in place."""

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OPERATORS: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Div),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
_FUNCTIONS = {
    "max": "min",
    "min": "max",
    "any": "all",
    "all": "any",
    "sorted": "list",
    "ceil": "floor",
    "floor": "ceil",
}
_METHODS = {"append": "extend", "add": "discard", "upper": "lower", "lower": "upper", "find": "rfind", "rfind": "find"}


@dataclass(frozen=True)
class Mutant:
    """A program that differs from another one in one place.

    Attributes:
        source: the whole program, as `ast.unparse` writes it.
        line: line of the change in the original program.
        diff: the lines that differ, with `-` and `+`.
    """

    source: str
    line: int
    diff: str


def mutants_of(source: str, *, most: int | None = None, seed: int = 0) -> list[Mutant]:
    """Return programs that differ from a Python program in one place, as programmers err.

    Constants are off by one, comparisons include or exclude their bounds, operators and functions are taken for their
    counterparts, conditions always or never hold, and statements are left out.

    Args:
        source: the program.
        most: how many to return. Default: all. Fewer are a sample over the whole program.
        seed: of the sample.

    Raises SyntaxError if the program is not Python.
    """
    tree = ast.parse(source)
    original = ast.unparse(tree)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and _is_text(node.value)}
    sites = [
        (index, change)
        for index, node in enumerate(ast.walk(tree))
        if id(node) not in texts
        for change in _changes(node)
    ]
    if most is not None and len(sites) > most:
        random.Random(seed).shuffle(sites)
    seen = {original}
    mutants: list[Mutant] = []
    for index, change in sites:
        if most is not None and len(mutants) >= most:
            break
        changed = copy.deepcopy(tree)
        node = next(node for at, node in enumerate(ast.walk(changed)) if at == index)
        change(node)
        text = ast.unparse(ast.fix_missing_locations(changed))
        if text not in seen:
            seen.add(text)
            mutants.append(Mutant(text, getattr(node, "lineno", 1), _diff(original, text)))
    return sorted(mutants, key=lambda mutant: mutant.line)


def _is_text(node: ast.expr) -> bool:
    """Whether an expression is a text. Such a statement is a docstring."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _diff(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))
    return "\n".join(line for line in lines[2:] if not line.startswith("@@"))


def _changes(node: ast.AST) -> Iterator[Change]:
    """Yield the changes that a node allows."""
    match node:
        case ast.Constant():
            yield from _constant(node)
        case ast.Compare():
            for at, operator in enumerate(node.ops):
                for other in _COMPARISONS[type(operator)]:
                    yield _setter("ops", at, other())
        case ast.BinOp() | ast.AugAssign():
            for operation in _OPERATORS.get(type(node.op), ()):
                yield _setter("op", None, operation())
        case ast.BoolOp():
            yield _setter("op", None, ast.Or() if isinstance(node.op, ast.And) else ast.And())
            for at in range(len(node.values)):
                yield _without_value(at)
        case ast.UnaryOp() if isinstance(node.op, ast.USub | ast.Not):
            yield _setter("op", None, ast.UAdd()) if isinstance(node.op, ast.USub) else _without_not
        case ast.If() | ast.IfExp():
            yield _setter("test", None, ast.Constant(True))
            yield _setter("test", None, ast.Constant(False))
        case ast.Call():
            yield from _call(node)
        case ast.Slice():
            for bound in ("lower", "upper"):
                if (value := getattr(node, bound)) is not None and not isinstance(value, ast.Constant):
                    yield _setter(bound, None, ast.BinOp(value, ast.Add(), ast.Constant(1)))
        case ast.Return() if node.value is not None:
            yield _setter("value", None, ast.Constant(None))
    yield from _left_out(node)


def _setter(field: str, at: int | None, value: Any) -> Change:
    def change(node: Any) -> None:
        if at is None:
            setattr(node, field, copy.deepcopy(value))
        else:
            getattr(node, field)[at] = copy.deepcopy(value)

    return change


def _without_value(at: int) -> Change:
    def change(node: Any) -> None:
        del node.values[at]

    return change


def _without_not(node: Any) -> None:
    node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)


def _constant(node: ast.Constant) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield _setter("value", None, not value)
    elif isinstance(value, int):
        yield _setter("value", None, value + 1)
        yield _setter("value", None, value - 1)
    elif isinstance(value, float):
        yield _setter("value", None, value + 1)
    elif isinstance(value, str):
        yield _setter("value", None, value[:-1] if value else "?")


def _call(node: ast.Call) -> Iterator[Change]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in _FUNCTIONS:
        yield _setter("func", None, ast.Name(_FUNCTIONS[name], ast.Load()))
    if name in ("min", "max") and len(node.args) > 1:
        for at in range(len(node.args)):
            kept = [*node.args[:at], *node.args[at + 1 :]]
            yield _setter("args", None, kept if len(kept) > 1 else kept * 2)
    if name == "range" and node.args:
        at = min(1, len(node.args) - 1)
        for operator in (ast.Add(), ast.Sub()):
            yield _setter("args", at, ast.BinOp(node.args[at], operator, ast.Constant(1)))
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        yield _setter("func", None, ast.Attribute(node.func.value, _METHODS[node.func.attr], ast.Load()))


def _left_out(node: ast.AST) -> Iterator[Change]:
    """Yield changes that leave out one statement of a body."""
    for field in ("body", "orelse", "finalbody"):
        body = getattr(node, field, None)
        if not isinstance(body, list):
            continue
        for at, statement in enumerate(body):
            if isinstance(statement, ast.Expr) and _is_text(statement.value):
                continue
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Break | ast.Continue):
                yield _setter(field, at, ast.Pass())
