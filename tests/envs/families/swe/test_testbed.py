"""Rows of SWE-bench's shape, whose repository and environment lie in an image of their own."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.tools.sandbox.abuse.in_image import python_layer
from tests.tools.sandbox.image_maker import Entry, docker_save, layer, shell_layer, special
from toolgym.envs.families.swe import testbed
from toolgym.envs.families.swe.env import SWEDevEnv
from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import assistant, tool_call
from toolgym.tools.sandbox import LocalSandbox
from toolgym.tools.sandbox.local import probe
from toolgym.tools.sandbox.local.images import cache

pytestmark = pytest.mark.skipif("namespaces" not in probe()["levels"], reason="needs the level namespaces")

ROW = {
    "instance_id": "calc__calc-1",
    "repo": "calc/calc",
    "base_commit": "HEAD",
    "problem_statement": "add(1, 2) is -1.",
    "test_command": "python -m unittest",
    "FAIL_TO_PASS": '["tests.test_calc.CalcTest.test_add"]',
    "PASS_TO_PASS": '["tests.test_calc.CalcTest.test_built"]',
    "patch": "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n",
    "test_patch": (
        "--- a/tests/test_calc.py\n+++ b/tests/test_calc.py\n@@ -5,3 +5,6 @@\n class CalcTest(unittest.TestCase):\n"
        "     def test_built(self):\n         self.assertEqual(calc.built(), 'built in testbed')\n+\n"
        "+    def test_add(self):\n+        self.assertEqual(calc.add(1, 2), 3)\n"
    ),
    "image_name": "swebench/sweb.eval.calc:latest",
}
CALC = """\
def add(a, b):
    return a - b


def built():
    import os, pathlib
    return pathlib.Path(__file__).with_name("built.txt").read_text() + os.environ["CONDA_DEFAULT_ENV"]
"""
TEST = """\
import calc
import unittest


class CalcTest(unittest.TestCase):
    def test_built(self):
        self.assertEqual(calc.built(), 'built in testbed')
"""
ACTIVATE = 'export CONDA_DEFAULT_ENV=$1 PATH="/opt/miniconda3/envs/$1/bin:$PATH"; echo activated\n'


def layer_of_testbed(folder: Path) -> bytes:
    """/testbed with a commit that knows the repair, and files that Git ignores; a Python by a script alone; Git."""
    (folder / "tests").mkdir(parents=True)
    for name, text in {"calc.py": CALC, "tests/__init__.py": "", "tests/test_calc.py": TEST}.items():
        (folder / name).write_text(text)
    (folder / ".gitignore").write_text("built.txt\n")
    (folder / "built.txt").write_text("built in ")
    script = """git init -q . && git add -A && git -c user.name=x -c user.email=x@y commit -qm base
        echo SECRET_OF_THE_FUTURE > calc.py && git -c user.name=x -c user.email=x@y commit -qam repair
        git reset -q --hard HEAD~1"""
    subprocess.run(script, shell=True, cwd=folder, check=True, timeout=60)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    entries: list[Entry] = [(f"testbed/{path.relative_to(folder)}", path.read_bytes()) for path in paths]
    linked = subprocess.run(["ldd", "/usr/bin/git"], capture_output=True, text=True, timeout=20, check=True).stdout
    entries += [
        (path, Path(path).read_bytes(), 0o755) for path in ["/usr/bin/git", *re.findall(r"(/\S+) \(0x", linked)]
    ]
    entries += [
        ("opt/miniconda3/bin/activate", ACTIVATE.encode()),
        special("usr/bin/python3", tarfile.SYMTYPE, "absent"),
    ]
    entries += [
        special("opt/miniconda3/envs/testbed/bin/python3", tarfile.SYMTYPE, str(Path(sys.executable).resolve()))
    ]
    return layer(entries)


@pytest.mark.long
async def test_a_row_is_played_on_the_testbed_of_its_image(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    layers = [shell_layer(), python_layer(), layer_of_testbed(tmp_path / "testbed")]
    docker_save(tmp_path / "swebench_sweb.eval.calc_latest.tar", layers, {"WorkingDir": "/testbed", "User": "root"})
    task = RepositoryTask.from_row(ROW)
    assert RepositoryTask.from_row(task.to_row()) == task
    options = {"images": tmp_path, "testbed": "/testbed", "activate": "source /opt/miniconda3/bin/activate testbed"}
    async with SWEDevEnv([task], **options) as env:
        messages, _ = await env.reset()
        assert "The folder `/testbed` holds a repository" in messages[0]["content"]
        look = (
            "pwd; git log --oneline | cat; git status --short; git cat-file --batch-all-objects --batch; cat built.txt"
        )
        seen = str(await env.step(assistant("", [tool_call("bash", {"command": look})])))
        assert "/testbed\\n" in seen
        assert "The beginning" in seen
        assert "built in" in seen
        assert "SECRET_OF_THE_FUTURE" not in seen
        assert (await env.run_tests()).outcomes == {
            "tests.test_calc.CalcTest.test_built": "passed",
            "tests.test_calc.CalcTest.test_add": "failed",
        }
        for action in env.gold_actions() or ():
            result = await env.step(action)
    assert result.done
    assert result.reward == 1.0


class CountedSandbox(LocalSandbox):
    opened = 0

    async def open_session(self, request):
        self.opened += 1
        return await super().open_session(request)


async def test_variables_are_asked_for_once_and_forgotten_with_their_sandbox(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(testbed, "_MOST", 2)
    image = docker_save(tmp_path / "image.tar", [shell_layer()])
    gc.collect()
    before = len(testbed._KNOWN)
    async with CountedSandbox(preload=()) as sandbox:
        for name in ("a", "b", "a", "c", "a"):  # of two at most, the oldest gives way
            variables = await testbed.activated(sandbox, {"image": str(image)}, f"export NAME={name}", 30.0)
            assert variables["NAME"] == name
        assert sandbox.opened == 4
        assert len(testbed._KNOWN[sandbox]) == 2
    del sandbox
    gc.collect()
    assert len(testbed._KNOWN) == before


async def test_what_a_testbed_needs_is_named(tmp_path):
    with pytest.raises(ConfigError, match="or an image"):
        RepositoryTask.from_row({key: value for key, value in ROW.items() if key != "image_name"})
    docker_save(tmp_path / "swebench_sweb.eval.calc_latest.tar", [layer([("etc/x", b"")])])
    async with SWEDevEnv([RepositoryTask.from_row(ROW)], images=tmp_path) as env:
        with pytest.raises(ConfigError, match="testbed='/testbed' is for rows"):
            await env.reset()
