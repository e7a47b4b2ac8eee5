"""Commands as a user types them, in this process: most of a process of its own would be importing torch."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import types

import pytest


def needs_a_shell(line: str) -> bool:
    return not line.startswith("toolgym ") or re.search(r"[|<>$&;]", line.partition(" #")[0]) is not None


@pytest.fixture
def as_typed(monkeypatch, capfd):
    """Runs `toolgym ...` in a folder, and returns what a process would have come to."""
    from toolgym.cli.app import main  # not every trainer's environment has the command

    def run(line: str, folder) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", shlex.split(line, comments=True))
        with pytest.raises(SystemExit) as left:
            main()
        return subprocess.CompletedProcess(line, left.value.code or 0, *capfd.readouterr())

    return run


@pytest.fixture
def as_program(monkeypatch, capfd):
    """Runs a program of a page in a folder, and returns what it printed."""

    def run(program: str, folder) -> str:
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        module = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        exec(compile(program, "page", "exec"), vars(module))
        return capfd.readouterr().out

    return run
