"""Runs inside a sandbox: keeps assertions from holding for no numbers at all.

`(f(x) == 9).all()` holds for an empty array, and so does `numpy.allclose(f(x), 9)`: numpy compares nothing and is
content. So while assertions run, an operation on two values, one of which is an empty array and the other is not empty,
fails. That covers operators in the source of the tests, and calls that the tests make of the functions of numpy that
compare. Calls from elsewhere, such as another library's or the program's, are not touched.
"""

from __future__ import annotations

import ast
import functools
import importlib
import operator
import re
import sys
from collections.abc import Callable
from typing import Any

_BINARY = "_judge_binary"
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "BitXor": operator.xor,
    "MatMult": operator.matmul,
}
GUARDED_FILES = frozenset({"<tests>", "<helpers>"})
"""File names under which the source of tests is compiled: only calls from there are guarded."""

_PLAIN = frozenset({int, float, str, bool, bytes, complex, list, tuple, dict, set, frozenset, type(None)})
_UFUNCS = (
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "subtract", "add", "multiply", "divide",
    "true_divide", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "hypot",
)  # fmt: skip
_FUNCTIONS = ("allclose", "isclose", "array_equal", "array_equiv")
_ASSERTIONS = (
    "assert_allclose", "assert_almost_equal", "assert_approx_equal", "assert_array_almost_equal",
    "assert_array_almost_equal_nulp", "assert_array_compare", "assert_array_equal", "assert_array_less",
    "assert_array_max_ulp", "assert_equal",
)  # fmt: skip


class EmptyError(AssertionError):
    """An empty value was compared with one that is not empty."""


def guard_source(tree: ast.Module) -> ast.Module:
    """Make the operators of a source refuse an empty array beside a value that is not empty."""
    guarded: ast.Module = _Guard().visit(tree)
    return ast.fix_missing_locations(guarded)


class _Guard(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) != 1 or type(node.ops[0]).__name__ not in _OPERATORS:
            return node
        return _call(type(node.ops[0]).__name__, node.left, node.comparators[0], node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        constants = isinstance(node.left, ast.Constant), isinstance(node.right, ast.Constant)
        if all(constants) or type(node.op).__name__ not in _OPERATORS:
            return node
        return _call(type(node.op).__name__, node.left, node.right, node)


def _call(name: str, left: ast.expr, right: ast.expr, where: ast.expr) -> ast.AST:
    function = ast.Name(_BINARY, ast.Load())
    return ast.copy_location(ast.Call(function, [ast.Constant(name), left, right], []), where)


def _binary(name: str, left: Any, right: Any) -> Any:
    if not (type(left) in _PLAIN and type(right) in _PLAIN):
        _refuse(left, right)
    return _OPERATORS[name](left, right)


NAMES: dict[str, Any] = {_BINARY: _binary}
"""Names that a guarded source needs."""


def guard_numpy(source: str) -> None:
    """Make numpy's functions that compare, where tests call them, refuse an empty array beside one that is not empty.

    Does nothing for tests whose source cannot use numpy. They get its functions only from an import.
    """
    if not re.search(r"\b(?:numpy|np|__import__|import_module)\b", source):
        return
    try:
        numpy: Any = importlib.import_module("numpy")
        testing: Any = importlib.import_module("numpy.testing")
    except ImportError:
        return
    if getattr(numpy, "_judge_guarded", False):
        return
    numpy._judge_guarded = True
    for name in _FUNCTIONS:
        setattr(numpy, name, _guarded(getattr(numpy, name)))
    for name in _UFUNCS:
        setattr(numpy, name, _Ufunc(getattr(numpy, name)))
    for name in _ASSERTIONS:
        if hasattr(testing, name):
            setattr(testing, name, _guarded(getattr(testing, name)))


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        values = args if len(args) > 1 else (*args, *kwargs.values())
        if len(values) > 1 and sys._getframe(1).f_code.co_filename in GUARDED_FILES:
            _refuse(values[0], values[1], convert=True)
        return function(*args, **kwargs)

    return guarded


class _Ufunc:
    """A function of numpy for arrays, with its methods."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 and sys._getframe(1).f_code.co_filename in GUARDED_FILES:
            _refuse(args[0], args[1], convert=True)
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def _refuse(left: Any, right: Any, *, convert: bool = False) -> None:
    """Raise EmptyError if one value is an empty array, or list of numbers, and the other is not empty."""
    if not (convert or _is_array(left) or _is_array(right)):
        return
    sizes = _size(left), _size(right)
    if None not in sizes and (sizes[0] == 0) != (sizes[1] == 0):
        raise EmptyError(f"one value has {sizes[0]} elements, and the other has {sizes[1]}")


def _is_array(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("numpy", "pandas")


def _size(value: Any) -> int | None:
    """Return the number of elements of a value; None if it is not known."""
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        size = getattr(value, "size", 1) if _is_array(value) else 1
        return size if isinstance(size, int) else None
    if _is_array(value):
        size = getattr(value, "size", None)
        return size if isinstance(size, int) else None
    if isinstance(value, list | tuple):
        return sum(_size(item) or 0 for item in value)
    return len(value)
