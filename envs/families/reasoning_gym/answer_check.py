"""`may_be_scored`: the answers that may go to a scorer of reasoning-gym that runs them as Python.

Nine scorers call `eval`, or sympy's `parse_expr` which calls it, on the policy's text. Such an answer is read as a
syntax tree first: only numbers, texts, lists, names, arithmetic, a few functions of mathematics and small powers pass.
The check and the scorers run in a killable process, see `work.py`.
"""

from __future__ import annotations

import ast

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Generators whose scorer calls `eval` on an answer that is not equal to the known one."""

PARSED = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Generators whose scorer calls `sympy.parse_expr` on the answer."""

MOST_CHARS = 4000
MOST_EXPONENT = 100
MOST_POWERS = 2
"""How deep powers may stand in the bases of other powers."""

_FUNCTIONS = "sin cos tan cot sec csc asin acos atan acot sinh cosh tanh exp log ln sqrt Abs Rational Integral"
FUNCTIONS = frozenset(_FUNCTIONS.split())

_DATA = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Load, ast.UnaryOp, ast.USub, ast.UAdd)
_FORMULA = (*_DATA[:2], *_DATA[4:], ast.Name, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Call)


def may_be_scored(generator: str, answer: str) -> bool:
    """Whether the scorer of a generator may get an answer: it does nothing but compute, and is no universal answer."""
    if generator == "complex_arithmetic":  # min() and max() make a full reward of the distance to NaN
        return "nan" not in answer.lower()
    if generator not in EVALUATED | PARSED:
        return True
    if len(answer) > MOST_CHARS:
        return False
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # `eval` refuses it as well, so it is only compared. sympy's syntax is larger than Python's.
        return generator in EVALUATED
    if generator in EVALUATED:
        return isinstance(tree.body, ast.Name) or all(isinstance(node, _DATA) for node in ast.walk(tree))
    return all(_is_formula(node) for node in ast.walk(tree))


def _is_formula(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _is_small(node.right) and _powers(node.left) < MOST_POWERS
    return isinstance(node, _FORMULA)


def _is_small(exponent: ast.expr) -> bool:
    for node in ast.walk(exponent):
        if isinstance(node, ast.Constant) and not (type(node.value) is int and node.value <= MOST_EXPONENT):
            return False
        if isinstance(node, ast.Call | ast.Mult | ast.Pow):
            return False
    return True


def _powers(tree: ast.expr) -> int:
    is_power = isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow)
    below = max((_powers(child) for child in ast.iter_child_nodes(tree) if isinstance(child, ast.expr)), default=0)
    return is_power + below
