"""`after_import`: do something with a module of another package once it was imported, without importing it.

Gymnasium and verl have registries that want our names, and importing them for that would cost every program seconds.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> None:
    """Call `action` with the module of this name: now where it was imported already, else each time that it has run.

    Args:
        name: absolute name of a module; it need not be installed.
        action: what it raises comes out of the import.
    """
    finder = next((entry for entry in sys.meta_path if isinstance(entry, _Finder)), None)
    if finder is None:
        sys.meta_path.insert(0, finder := _Finder())
    finder.actions.setdefault(name, []).append(action)
    if sys.modules.get(name) is not None:
        action(importlib.import_module(name))  # waits, where another thread is importing it


class _Finder:
    """Finds the modules of `actions` as the other finders do, and calls the actions after each ran."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    run = functools.partial(_run, spec.loader.exec_module, self.actions[fullname])
                    spec.loader.exec_module = run  # type: ignore[method-assign]
                return spec
        return None


def _run(run: Action, actions: Sequence[Action], module: ModuleType) -> None:
    run(module)
    for action in actions:
        action(module)
