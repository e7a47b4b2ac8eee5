"""Imports between the rooms of the local sandbox: the trust boundary is a folder boundary, so they go one way."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from toolgym.tools.sandbox.local.host import template_process

LOCAL = Path(template_process.FOLDER)
PACKAGE = "toolgym.tools.sandbox.local"
ROOMS = ("kernel", "protocol", "child", "zygote", "broker")
"""Each may import itself and those before it."""


def imported(path: Path) -> set[str]:
    """The modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms(path: Path) -> set[str]:
    """The rooms of this folder that a file imports from."""
    return {name.removeprefix(f"{PACKAGE}.").partition(".")[0] for name in imported(path) if name.startswith(PACKAGE)}


def wrong(room: str, allowed: set[str]) -> dict[str, set[str]]:
    files = sorted((LOCAL / room).glob("*.py"))
    assert files
    return {path.name: rooms(path) - allowed for path in files if rooms(path) - allowed}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_itself_and_lower_ones(room):
    assert not wrong(room, set(ROOMS[: ROOMS.index(room) + 1]))


def test_the_host_never_imports_what_runs_in_a_template_process():
    assert not wrong("host", {"host", "kernel", "protocol"})


@pytest.mark.parametrize("room", ROOMS)
def test_a_template_process_needs_nothing_but_the_standard_library(room):
    """Its Python may be one without toolgym, and without any other package."""
    for path in sorted((LOCAL / room).glob("*.py")):
        outside = {name.partition(".")[0] for name in imported(path) if not name.startswith(f"{PACKAGE}.")}
        assert outside <= sys.stdlib_module_names, path.name
