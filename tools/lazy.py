"""Public names of a package that load their modules when they are first used.

A package lists each name once, in the block that type checkers read:

    if TYPE_CHECKING:
        from toolgym.tools.base import BaseTool as BaseTool
    else:
        __getattr__, __dir__ = lazy_names(__name__)

`from ... import name as name` marks a re-export for type checkers. At run time that block is the table of names.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from toolgym.tools.errors import MissingExtraError


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package, from the imports in its `if TYPE_CHECKING` block.

    `__all__` is among the attributes: the re-exports of the package, sorted, but for those that need a package which is
    not installed. So `from ... import *` works with any extras; asked for by its name, such a one says what to install.

    Args:
        package: the package's `__name__`. Its source is read at the first use of a name.
    """

    @functools.cache
    def homes() -> dict[str, str]:
        return _re_exports(inspect.getsource(sys.modules[package]))

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(filter(installed, homes()))
        if (name.startswith("__") and name.endswith("__")) or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes()[name]), name)

    def installed(name: str) -> bool:
        try:
            getattr(sys.modules[package], name)
        except MissingExtraError:
            return False
        return True

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes()})

    return load, names


def _re_exports(source: str) -> dict[str, str]:
    """From each name in a line `from module import name as name` to that module."""
    body = ast.parse(source).body
    checked = [line for node in body if isinstance(node, ast.If) for line in node.body]
    return {
        alias.name: str(line.module)
        for line in [*body, *checked]
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
        if alias.asname == alias.name
    }
