"""The rim can go: the core imports none of it, and a room of it is deleted with its line in a table."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.house.test_layout import LAYERS, ROOT, import_name, imported, sources

RIM = [
    "toolgym.tools.integrations",
    "toolgym.tools.sandbox.e2b",
    "toolgym.tools.sandbox.opensandbox",
    "toolgym.envs.families",
    "toolgym.envs.foreign",
    "toolgym.envs.served",
    "toolgym.rollout.adapters",
    "toolgym.rollout.capture",
]
TABLES = {"envs/__init__.py", "envs/ids.py", "front/cli/serve.py"}
"""The files of the core that list public names, ids and servers."""


def of_the_rim(name):
    return any(name == room or name.startswith(f"{room}.") for room in RIM)


def test_the_core_imports_no_rim_not_by_string_either():
    core = [path for layer in LAYERS for path in sources(layer) if not of_the_rim(import_name(path))]
    wrong = {f"{path.relative_to(ROOT)} imports {name}" for path in core for name in imported(path) if of_the_rim(name)}
    assert {line for line in wrong if line.partition(" ")[0] not in TABLES} == set()
    assert any(line.startswith("envs/ids.py imports toolgym.envs.families.sql") for line in wrong)  # the test can fail


HERE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]  # a checkout's own
sys.path.insert(0, "")
"""

IMPORT_ALL = """
import importlib, pkgutil, sys, toolgym
assert toolgym.__file__.startswith(sys.argv[1]), toolgym.__file__
modules = {name for _, name, _ in pkgutil.walk_packages(toolgym.__path__, "toolgym.", onerror=lambda name: None)}
for name in sorted(modules):
    if not name.startswith(tuple(sys.argv[3:])) and not name.endswith(("__main__", "_program")):
        try:
            importlib.import_module(name)
        except ImportError as error:  # a package of an extra may be absent, a module of the library may not
            assert not (error.name or "").startswith("toolgym."), f"{name}: {error!r}"
gone = sys.argv[2]
assert gone not in sys.modules and gone not in modules
print(len(modules))
"""

PLAY = """
import asyncio, toolgym
from toolgym.envs.ids import OWN_ENVS
async def main():
    async with toolgym.make("SingleTurn-v0") as env:
        await env.reset(seed=0)
        result = await env.step(env.gold_actions()[0])
        print(result.reward, "SQL-v0" in OWN_ENVS, "BFCL/multi_turn_base-v0" in OWN_ENVS)
asyncio.run(main())
"""

ROLL_OUT = """
import asyncio
from toolgym.rollout import RunConfig, open_engine, rollout
async def main():
    async with open_engine("tiny") as engine:
        config = RunConfig(group_size=2, seed=0)
        trajectories = await rollout("SingleTurn-v0", engine, num_tasks=1, config=config)
        print(len(trajectories))
asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("room", "table", "program", "printed"),
    [
        ("envs/families/sql", "envs/ids.py", PLAY, "1.0 False True\n"),
        ("rollout/adapters/skyrl", None, ROLL_OUT, "2\n"),
    ],
)
def test_a_room_of_the_rim_can_be_deleted(tmp_path, room, table, program, printed):
    library, ignored = tmp_path / "toolgym", shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "front", library, ignore=ignored)
    for layer in LAYERS[:-1]:
        shutil.copytree(ROOT / layer, library / layer, ignore=ignored)
    shutil.rmtree(library / room)
    gone = "toolgym." + room.replace("/", ".")
    if table is not None:
        lines = (library / table).read_text().splitlines(keepends=True)
        kept = [line for line in lines if f'"{gone}.' not in line]
        assert len(kept) == len(lines) - 1
        (library / table).write_text("".join(kept))

    def run(code, *arguments):
        return subprocess.run(
            [sys.executable, "-c", HERE + code, *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    done = run(IMPORT_ALL, str(tmp_path), gone, "toolgym.tools.sandbox.local.child", "toolgym.rollout.adapters.verl")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300
    done = run(program)
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr
