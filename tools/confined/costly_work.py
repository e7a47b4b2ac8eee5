"""Matches regular expressions and parses Python: the work of a `ProcessPool`."""

from __future__ import annotations

import ast
import functools
import re

_CODE = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AugAssign,
    ast.For,
    ast.While,
    ast.With,
    ast.Try,
)


def load() -> None:
    pass


def match(pattern: str, flags: int, whole: bool, text: str) -> bool:
    compiled = _compiled(pattern, flags)
    return (compiled.fullmatch(text) if whole else compiled.search(text)) is not None


def is_python_program(text: str) -> bool:
    """Return whether a text is Python that does something. Words may be Python too: `Done`, `not yet`, `Answer: 42`."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(
        isinstance(node, _CODE) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) for node in body
    )


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str, flags: int) -> re.Pattern[str]:
    return re.compile(pattern, flags)
