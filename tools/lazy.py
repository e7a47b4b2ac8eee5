"""Imports that happen late. A package lists each name once, in the block that type checkers read:

if TYPE_CHECKING:
    from toolgym.tools.base import BaseTool as BaseTool
else:
    __getattr__, __dir__ = lazy_names(__name__)
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.machinery
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from toolgym.tools.errors import MissingExtraError


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package, from the imports in its `if TYPE_CHECKING` block. `__all__`
    leaves out the names that need a package which is not installed, so that `from ... import *` works with any
    extras."""

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
    body = ast.parse(source).body
    checked = [line for node in body if isinstance(node, ast.If) for line in node.body]
    return {
        alias.name: str(line.module)
        for line in [*body, *checked]
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
        if alias.asname == alias.name
    }


def missing_extra(extra: str, feature: str, cause: ImportError) -> MissingExtraError:
    """Build the error for a feature whose optional dependency, of an extra, is absent or broken."""
    if not isinstance(cause, ModuleNotFoundError):  # it is there, but broken, or of another version
        return MissingExtraError(
            f"{feature} needs the extra {extra!r}, which is broken here: {cause}. Install it again with: "
            f"{pip_install(extra, '--force-reinstall ')}",
            name=cause.name,
        )
    module = cause.name or "a package"
    return MissingExtraError(
        f"{feature} needs {module!r}, which is not installed. Install it with: {pip_install(extra)}", name=cause.name
    )


def missing_package(package: str, feature: str, cause: ImportError) -> MissingExtraError:
    return MissingExtraError(
        f"{feature} needs the package {package!r} ({cause}). Install it with: {_pip(package)}", name=cause.name
    )


def outdated_package(package: str, feature: str, least: str, version: str) -> MissingExtraError:
    needed = f"{package}>={least}"
    return MissingExtraError(
        f"{feature} needs {needed}, found {version}. Install it with: {_pip(needed)}", name=package.partition("[")[0]
    )


def _pip(*what: str) -> str:
    import shlex

    return shlex.join([sys.executable, "-m", "pip", "install", *what])


def pip_install(extra: str, options: str = "") -> str:
    """The way to install an extra from where the library was, which installers note
    (https://packaging.python.org/en/latest/specifications/direct-url/)."""
    import importlib.metadata
    import shlex

    try:
        noted = importlib.metadata.distribution("toolgym").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        noted = None
    origin = json.loads(noted or "{}")
    folder = Path(unquote(urlsplit(origin.get("url", "")).path))
    if "dir_info" not in origin or not folder.is_dir():
        return f"{_pip()} {options}'.[{extra}]' in a checkout of toolgym"
    editable = "-e " if origin["dir_info"].get("editable") else ""
    return f"{_pip()} {options}{editable}{shlex.quote(f'{folder}[{extra}]')}"


Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> None:
    """Call `action` with the module of this absolute name: now if it was imported already, else each time that it has
    run. What the action raises comes out of the import."""
    finder = next((entry for entry in sys.meta_path if isinstance(entry, _Finder)), None)
    if finder is None:
        sys.meta_path.insert(0, finder := _Finder())
    finder.actions.setdefault(name, []).append(action)
    if sys.modules.get(name) is not None:
        action(importlib.import_module(name))  # waits, where another thread is importing it


class _Finder:
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
