"""A row whose tests cannot be passed is refused by name; a policy whose tests fail scores 0."""

from __future__ import annotations

import dataclasses

import pytest

from tests.actors import call
from tests.envs.families.swe.conftest import PYTEST
from tests.parameters import first
from toolgym.envs.families.swe import workspace as workspace_module
from toolgym.envs.families.swe.env import SWEDevEnv
from toolgym.envs.families.swe.row_check import BrokenRowError
from toolgym.envs.families.swe.workspace import RepositoryWorkspace
from toolgym.envs.types import EpisodeFailedError, StopReason

ADD, DOUBLE = "tests.test_calc.CalcTest.test_add", "tests.test_calc.CalcTest.test_double"


async def verdict(task, sandbox, *, gold=False, timeout=60.0, **files):
    async with await RepositoryWorkspace.open(task, sandbox) as workspace:
        if gold:
            await workspace.apply_patch(task.gold_patch)
        for name, text in files.items():
            await workspace.session.write_file(f"repo/{name.replace('__', '/')}.py", text.encode())
        return await workspace.run_tests(timeout)


def hidden(task, old, new):
    tests = {name: data.replace(old.encode(), new.encode()) for name, data in task.test_files.items()}
    return dataclasses.replace(task, test_files=tests)


BROKEN = {
    "an id that does not exist": (
        lambda task: dataclasses.replace(task, pass_to_pass=("tests.test_calc.CalcTest.test_gone",)),
        "'tests.test_calc.CalcTest.test_gone' is not in its file",
    ),
    "a module that does not exist": (
        lambda task: dataclasses.replace(task, fail_to_pass=("tests.test_gone.CalcTest.test_add",)),
        "'tests.test_gone.CalcTest.test_add' has no result",
    ),
    "a package that is missing": (
        lambda task: hidden(task, "import unittest", "import unittest, no_such_package"),
        "No module named 'no_such_package'",
    ),
    "a package that is missing in a test": (
        lambda task: hidden(task, "(self):", "(self):\n        import no_such_package"),
        f"'{ADD}' ended as 'error'",
    ),
    "a solution that does not help": (
        lambda task: hidden(task, "add(1, 2), 3", "add(1, 2), 4"),
        f"'{ADD}' ended as 'failed'",
    ),
    "a test that is skipped": (
        lambda task: hidden(task, "    def test_add", "    @unittest.skip('no')\n    def test_add"),
        f"'{ADD}' ended as 'skipped'",
    ),
    "a program that is missing": (
        lambda task: dataclasses.replace(task, test_command="no-such-program {test}"),
        "cannot be started (exit code 126 or 127)",
    ),
    "a program that cannot be run": (
        lambda task: dataclasses.replace(task, test_command="./calc.py {test}"),
        "cannot be started (exit code 126 or 127)",
    ),
    "a runner that is missing": (
        lambda task: dataclasses.replace(task, test_command="python3 -m no_such_runner {test}"),
        "No module named no_such_runner",
    ),
}


@pytest.mark.parametrize("way", BROKEN)
@pytest.mark.parametrize("gold", [True, False])
async def test_a_broken_row_is_refused_by_name(way, gold, task, sandbox):
    change, fault = BROKEN[way]
    with pytest.raises(BrokenRowError, match="the row 'calc-1' is broken: with its gold_patch, the test") as caught:
        await verdict(change(task), sandbox, gold=gold)
    assert fault in str(caught.value)


async def test_a_broken_row_fails_the_episode(task):
    broken, _ = BROKEN["an id that does not exist"][0](task), None
    async with SWEDevEnv([broken]) as env:
        await env.reset()
        with pytest.raises(EpisodeFailedError, match="the row 'calc-1' is broken") as caught:
            await env.step("done")
    assert caught.value.stop_reason is StopReason.SCORE_FAILED


async def test_tests_that_outlast_their_time_even_with_the_solution_break_the_row(task, sandbox):
    slow = hidden(task, "(self):", "(self):\n        import time; time.sleep(60)")
    with pytest.raises(BrokenRowError, match="has no result in the time of the tests"):
        await verdict(slow, sandbox, timeout=1.0)


async def test_without_a_known_solution_a_row_is_judged_by_its_repository(task, sandbox):
    unknown = dataclasses.replace(task, gold_patch="")
    assert not (await verdict(unknown, sandbox)).resolved
    assert (await verdict(unknown, sandbox, calc="def add(a, b): return a + b\ndef double(a): return 2 * a\n")).resolved
    for name in ("fail_to_pass", "pass_to_pass"):
        gone = dataclasses.replace(unknown, **{name: (f"{ADD}_gone",)})
        with pytest.raises(BrokenRowError, match="in the repository before any change, the test '.*_gone' is not in"):
            await verdict(gone, sandbox)


async def test_the_reference_is_run_once_for_a_row(task, sandbox, monkeypatch):
    runs = []
    judge = workspace_module.judge

    async def counted(*args, **kwargs):
        runs.append(args)
        return await judge(*args, **kwargs)

    monkeypatch.setattr(workspace_module, "judge", counted)
    task = dataclasses.replace(task, instance_id="calc-once")
    for _ in range(3):
        assert (await verdict(task, sandbox)).worth(strict=True) == 0
    assert len(runs) == 4


CRASHES = {
    "the process ends": "import os; os._exit(0)\n",
    "the process ends well": "raise SystemExit(0)\n",
    "a syntax error": "def add(:\n",
    "an error at import": "raise ImportError('No module named no_such_package')\n",
    "a package that is missing": "import no_such_package\n",
    "everything is killed": "import os; os.kill(-1, 9)\n",
    "everything is stopped": "import os; os.kill(-1, 19)\n",
    "it hangs": "import time; time.sleep(600)\n",
    "it uses up the memory": "x = [bytearray(1 << 24) for n in range(1000)]\n",
    "it uses up the stack": "def f(): f()\nimport sys; sys.setrecursionlimit(10 ** 9); f()\n",
    "it crashes": "import ctypes; ctypes.string_at(0)\n",
    "it prints without end": "while True: print('x' * 1000, file=__import__('sys').stderr)\n",
    "tests are skipped": "import unittest\ndef add(a, b): raise unittest.SkipTest\ndouble = add\n",
    "tests are absent": "import unittest\nunittest.TestLoader.loadTestsFromName = lambda *a: unittest.TestSuite()\n",
}


@first("way", CRASHES, short=1)
async def test_a_policy_whose_code_stops_the_tests_scores_0(way, task, sandbox):
    report = await verdict(task, sandbox, calc=CRASHES[way], timeout=3.0)
    assert (report.infra_error, report.worth(strict=False), report.resolved) == (None, 0.0, False)


@pytest.fixture
def pytest_task(task):
    add, double = "tests/test_calc.py::test_add", "tests/test_calc.py::test_double"
    tests = {"tests/test_calc.py": PYTEST}
    return dataclasses.replace(
        task, test_files=tests, test_command="pytest", fail_to_pass=(add,), pass_to_pass=(double,)
    )


INTERNAL_ERROR = "[tool:pytest]\naddopts = -p no_such_plugin\n"


async def test_a_plugin_of_pytest_that_cannot_be_imported_breaks_the_row(pytest_task, sandbox):
    broken = dataclasses.replace(pytest_task, files={**pytest_task.files, "setup.cfg": INTERNAL_ERROR})
    with pytest.raises(BrokenRowError, match="no test began, not even those that the env adds.*no_such_plugin"):
        await verdict(broken, sandbox, gold=True)


async def test_an_internal_error_of_pytest_breaks_the_row(pytest_task, sandbox):
    hooks = {"conftest.py": "def pytest_collection_finish(session):\n    raise ValueError('it is INTERNALERROR')\n"}
    broken = dataclasses.replace(pytest_task, files={**pytest_task.files, **hooks})
    with pytest.raises(BrokenRowError, match="(?s)no test began.*INTERNALERROR"):
        await verdict(broken, sandbox, gold=True)


OTHER_NAMES = [pytest.param(name, marks=pytest.mark.matrix) for name in ("pytest", "pluggy", "tests__conftest")]


@pytest.mark.parametrize("name", ["conftest", *OTHER_NAMES])
async def test_a_policy_that_stops_pytest_scores_0(name, pytest_task, sandbox):
    report = await verdict(pytest_task, sandbox, **{name: "raise SystemExit(3)\n"})
    assert (report.infra_error, report.worth(strict=False)) == (None, 0.0)


MANY = """
import pytest
from calc import add, double


@pytest.mark.parametrize("text", ["a b", "a c"])
def test_add(text):
    assert add(1, 2) == 3


@pytest.mark.xfail
def test_known():
    assert False


@pytest.mark.skip
def test_there():
    assert False


def test_double():
    assert double(2) == 4
"""


@pytest.mark.parametrize("cut", ["test_add[a", pytest.param("test_add[a b", marks=pytest.mark.matrix)])
async def test_ids_that_are_cut_at_a_blank_stand_for_all_that_begin_so(cut, pytest_task, sandbox):
    f2p, p2p = (f"tests/test_calc.py::{cut}",), ("tests/test_calc.py::test_known", "tests/test_calc.py::test_there")
    task = dataclasses.replace(pytest_task, test_files={"tests/test_calc.py": MANY}, fail_to_pass=f2p, pass_to_pass=p2p)
    assert (await verdict(task, sandbox, gold=True)).resolved
    assert not (await verdict(task, sandbox)).resolved


SKIPS = """
import pytest
def add(a, b): return a + b
def double(a): pytest.{}("not today")
"""


@pytest.mark.parametrize("end", ["skip", pytest.param("xfail", marks=pytest.mark.matrix)])
async def test_code_of_the_policy_that_skips_a_test_does_not_keep_it(end, pytest_task, sandbox):
    report = await verdict(pytest_task, sandbox, calc=SKIPS.format(end))
    assert (report.f2p_count, report.p2p_count) == (1, 0)


DESCRIBED = '''
import unittest
from calc import add


class CalcTest(unittest.TestCase):
    def test_add(self):
        """One and two are three. """
        self.assertEqual(add(1, 2), 3)

    def test_zero(self):
        self.assertEqual(add(2, 0), 2)
'''


async def test_ids_as_unittest_prints_them(task, sandbox):
    ids = ("One and two are three.",), ("test_zero (tests.test_calc.CalcTest)",)
    row = dataclasses.replace(
        task, test_files={"tests/test_calc.py": DESCRIBED}, fail_to_pass=ids[0], pass_to_pass=ids[1]
    )
    assert (await verdict(row, sandbox, gold=True)).resolved
    report = await verdict(row, sandbox)
    assert {**report.outcomes} == {ids[0][0]: "failed", ids[1][0]: "passed"}


LET_OFF = {
    "everything is killed later": "(sleep 0.3; kill -9 -1) >/dev/null 2>&1 &",
    "folders are nested": "python3 -c \"import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')\"",
    "the repository is a link": "cd ..; mv repo other; ln -s / repo",
    "the repository is a file": "cd ..; rm -rf repo; touch repo",
    "the repository is gone": "cd ..; rm -rf repo",
    "the repository cannot be read": "chmod 000 .",
    "names are no text": "python3 -c \"open(b'\\xff\\xfe.py', 'w')\"",
    "names are long": "for n in $(seq 50); do touch $(printf '%0250d' $n); done",
    "a file is a pipe": "rm calc.py; mkfifo calc.py",
    "a file is a link in a circle": "ln -sf calc.py calc.py",
    "a file is a device": "ln -sf /dev/zero calc.py",
    "a test is a folder": "rm -rf tests; mkdir -p tests/test_calc.py/x; touch tests/test_calc.py/x/y",
    "the disk is full": "head -c 1G /dev/zero > x; for n in $(seq 99); do head -c 60M /dev/zero > x$n; done; true",
    "no inodes are left": "for n in $(seq 40); do mkdir n$n; (cd n$n; touch $(seq 200)); done; true",
}


@first("way", LET_OFF, short=2)
async def test_a_policy_that_breaks_its_repository_scores_0(way, task, monkeypatch):
    monkeypatch.setattr(workspace_module, "OPEN_TIMEOUT", 20.0)
    async with SWEDevEnv([task]) as env:
        await env.reset()
        await env.step(call("bash", command=LET_OFF[way]))
        if "sleep" in LET_OFF[way]:
            await env.step(call("bash", command="sleep 1"))
        result = await env.step("done")
    assert (result.reward, result.info["metrics"]["score/resolved"]) == (0.0, 0.0)


@pytest.mark.long  # a stopped session takes its whole deadline
async def test_a_policy_that_stops_its_session_scores_0(task, monkeypatch):
    monkeypatch.setattr(workspace_module, "OPEN_TIMEOUT", 20.0)
    async with SWEDevEnv([task]) as env:
        await env.reset()
        await env.step(call("bash", command="(sleep 0.3; kill -STOP -1) >/dev/null 2>&1 &"))
        await env.step(call("bash", command="sleep 1"))
        result = await env.step("done")
    assert (result.reward, result.info["metrics"]["score/broken_by_policy"]) == (0.0, 1.0)
