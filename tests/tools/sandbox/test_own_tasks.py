"""Programs cannot read the tasks that the library brings, with their answers and hidden tests."""

from __future__ import annotations

from pathlib import Path

import pip
import pytest

from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.local.host import template_pool

LEVELS = [level for level in probe()["levels"] if level != "uid"]
PROGRAM = """
import os, numpy
try:
    print(len(open({file!r}).read()) > 0)
except OSError as error:
    print(type(error).__name__)
print(os.path.basename(numpy.__file__), os.access({neighbour!r}, os.R_OK))
"""


@pytest.mark.parametrize("level", LEVELS)
async def test_a_folder_of_the_interpreter_can_be_hidden(level, monkeypatch):
    folder = Path(pip.__file__).parent  # stands for the installed library: a package among others
    program = PROGRAM.format(file=str(folder / "__init__.py"), neighbour=str(folder.parent / "pytest" / "__init__.py"))
    async with LocalSandbox(level=level, preload=()) as sandbox:
        assert (await sandbox.run(program)).stdout == "True\n__init__.py True\n"
    monkeypatch.setattr(template_pool, "OWN_TASKS", str(folder))
    async with LocalSandbox(level=level, preload=()) as sandbox:
        done = await sandbox.run(program)
    refused = {"namespaces": "FileNotFoundError", "landlock": "PermissionError"}[level]
    assert done.stdout == f"{refused}\n__init__.py True\n", done.stderr


def test_the_librarys_own_envs_are_that_folder():
    import toolgym.envs

    assert Path(toolgym.envs.__file__).parent == Path(template_pool.OWN_TASKS)
