"""A sandbox, and a small repository with a bug."""

from __future__ import annotations

import dataclasses

import pytest
import pytest_asyncio

from toolgym.envs.families.swe.task import RepositoryTask
from toolgym.tools.sandbox.shared import SharedSandbox

BEFORE = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n"
VISIBLE = """\
import unittest

from calc import double


class CalcTest(unittest.TestCase):
    def test_double(self):
        self.assertEqual(double(2), 4)
"""
HIDDEN = f"""\
{VISIBLE.replace("import double", "import add, double")}
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""
PATCH = """\
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""

PYTEST = """
from calc import add, double


def test_add():
    assert add(1, 2) == 3


def test_double():
    assert double(2) == 4
"""


@pytest.fixture
def task():
    """`add` subtracts; `test_add` is hidden."""
    return RepositoryTask(
        instance_id="calc-1",
        problem_statement="add(1, 2) is -1.",
        files={"calc.py": BEFORE, "tests/__init__.py": "", "tests/test_calc.py": VISIBLE, "run.sh": "echo ran\n"},
        test_files={"tests/test_calc.py": HIDDEN},
        test_command="python -m unittest discover -s tests -t .",
        fail_to_pass=("tests.test_calc.CalcTest.test_add",),
        pass_to_pass=("tests.test_calc.CalcTest.test_double",),
        gold_patch=PATCH,
        executable=frozenset({"run.sh"}),
        links={"link.py": "calc.py"},
    )


@pytest.fixture
def task_of_pytest(task):
    return dataclasses.replace(
        task,
        test_files={"tests/test_calc.py": PYTEST},
        test_command="python -m pytest -q tests",
        fail_to_pass=("tests/test_calc.py::test_add",),
        pass_to_pass=("tests/test_calc.py::test_double",),
    )


@pytest_asyncio.fixture
async def sandbox():
    async with SharedSandbox() as sandbox:
        yield sandbox
