"""Programs that do not solve their task, each with a test that it tries to deceive. None of them passes."""

from __future__ import annotations

import pytest

from toolgym.tools.judge import AssertTest, FunctionTest, StdioTest, VerdictStatus

NUMPY = "import numpy as np\n"
EMPTY_LIST = "def f(x): return []"
EMPTY_ARRAY = "import numpy\ndef f(x): return numpy.zeros((0,))"
EMPTY_ROWS = "import numpy\ndef f(x): return numpy.zeros((0, 3))"

EMPTINESS = {
    "isclose": "assert np.isclose(f(1), 9).all()",
    "isclose, by numpy.all": "assert np.all(np.isclose(f(1), 9))",
    "isclose, inverted": "assert not (~np.isclose(f(1), 9)).any()",
    "allclose": "assert np.allclose(f(1), 9)",
    "allclose, turned round": "assert np.allclose(9, f(1))",
    "allclose, by keywords": "assert np.allclose(a=f(1), b=9)",
    "allclose, by getattr": "assert getattr(np, 'all' + 'close')(f(1), 9)",
    "allclose, by its name": "from numpy import allclose\nassert allclose(f(1), 9)",
    "allclose of arrays": "assert np.allclose(np.array(f(1)), np.array([9]))",
    "array_equiv": "assert np.array_equiv(f(1), 9)",
    "equal": "assert np.equal(f(1), 9).all()",
    "equality of arrays": "assert (np.array(f(1)) == 9).all()",
    "equality of arrays, turned round": "assert (9 == np.asarray(f(1))).all()",
    "inequality of arrays": "assert not (np.array(f(1)) != 9).any()",
    "a difference": "assert (np.abs(np.array(f(1)) - 9) < 1e-6).all()",
    "the sum of differences": "assert np.sum(np.abs(np.array(f(1)) - 9)) < 1e-6",
    "the norm of a difference": "assert np.linalg.norm(np.array(f(1)) - np.array([9])) < 1e-6",
    "subtract": "assert np.abs(np.subtract(f(1), 9)).sum() == 0",
    "an order": "assert (np.array(f(1)) >= 9).all()",
    "less_equal": "assert np.less_equal(f(1), 9).all() and np.greater_equal(f(1), 9).all()",
    "logical_and": "assert np.logical_and(f(1), np.array([True])).all()",
    "assert_allclose": "np.testing.assert_allclose(f(1), 9)",
    "assert_allclose, by its name": "from numpy.testing import assert_allclose\nassert_allclose(f(1), 9)",
    "assert_array_equal": "np.testing.assert_array_equal(f(1), 9)",
    "assert_array_almost_equal": "np.testing.assert_array_almost_equal(f(1), 9)",
    "assert_almost_equal": "np.testing.assert_almost_equal(np.array(f(1)), 9)",
    "assert_equal": "np.testing.assert_equal(np.array(f(1)), 9)",
    "assert_array_less": "np.testing.assert_array_less(f(1), 9)\nnp.testing.assert_array_less(9, f(1))",
    "a helper of the test": "def same(a, b):\n    return (np.asarray(a) == b).all()\nassert same(f(1), 9)",
}
"""Assertions that numpy holds for no numbers at all."""


async def test_no_emptiness_equals_a_number(judge):
    tests = {what: AssertTest(NUMPY + code, entry_points=("f",)) for what, code in EMPTINESS.items()}
    verdicts = dict(zip(tests, await judge(stop_at_failure=False).judge(EMPTY_LIST, [*tests.values()]), strict=True))
    assert {verdict.status for verdict in verdicts.values()} <= {VerdictStatus.WRONG, VerdictStatus.ERROR}, verdicts


@pytest.mark.parametrize("program", [EMPTY_ARRAY, EMPTY_ROWS])
async def test_no_empty_array_equals_a_number(judge, program):
    code = ("assert (f(1) == 9).all()", "assert not (f(1) != 9).any()", "assert (abs(f(1) - 9) < 1e-6).all()")
    for verdict in await judge(stop_at_failure=False).judge(program, [AssertTest(line) for line in code]):
        assert verdict.status is VerdictStatus.WRONG, verdict


HONEST = {
    "a number": ("def f(x): return 9", "assert np.isclose(f(1), 9).all() and np.allclose(f(1), 9)"),
    "arrays": (f"{NUMPY}def f(x): return np.full(3, 9.0)", "assert (f(1) == 9).all() and (f(1) - 9 == 0).all()"),
    "both empty": (EMPTY_LIST, "assert np.allclose(f(1), []) and (np.array(f(1)) == np.array([])).all()"),
    "both empty, of two dimensions": (EMPTY_ROWS, "np.testing.assert_array_equal(f(1), np.zeros((0, 3)))"),
    "the size of an empty array": (EMPTY_ARRAY, "assert f(1).size == 0 and f(1).shape == (0,) and len(f(1)) == 0"),
    "an empty list": (EMPTY_LIST, "assert f(1) == [] and f(1) != [9] and not f(1) == 9 and f(1) + [1] == [1]"),
    "broadcasting": (f"{NUMPY}def f(x): return np.arange(6).reshape(2, 3)", "assert (f(1) >= 0).all()"),
    "methods of functions": ("def f(x): return [1, 2]", "assert np.add.reduce(f(1)) == 3"),
}  # fmt: skip


@pytest.mark.parametrize("what", HONEST)
async def test_honest_comparisons_with_numpy_hold(judge, what):
    program, code = HONEST[what]
    [verdict] = await judge().judge(program, [AssertTest(NUMPY + code, entry_points=("f",))])
    assert verdict.passed, verdict.detail


UNITTEST = """import unittest
class T(unittest.TestCase):
    def test_it(self):
        self.assertEqual(f(1), 9)
result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(T).run(result)
assert result.wasSuccessful(), result
"""
STEERING = {
    "SkipTest": "import unittest\ndef f(x): raise unittest.SkipTest('no')",
    "a class of SkipTest's": "import unittest\nclass S(unittest.SkipTest): pass\ndef f(x): raise S",
    "a class with SkipTest's name": "class SkipTest(Exception): __module__ = 'unittest.case'\ndef f(x): raise SkipTest",
    "_ShouldStop": "import unittest.case\ndef f(x): raise unittest.case._ShouldStop",
    "_UnexpectedSuccess": "import unittest.case\ndef f(x): raise unittest.case._UnexpectedSuccess",
    "skip": "import unittest\n@unittest.skip('no')\ndef f(x): return 1",
    "SystemExit": "def f(x): raise SystemExit(0)",
    "GeneratorExit": "def f(x): raise GeneratorExit",
    "KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "StopIteration": "def f(x): raise StopIteration",
    "StopAsyncIteration": "def f(x): raise StopAsyncIteration",
    "CancelledError": "import asyncio\ndef f(x): raise asyncio.CancelledError",
    "BdbQuit": "import bdb\ndef f(x): raise bdb.BdbQuit",
    "a group of exceptions": "import unittest\ndef f(x): raise ExceptionGroup('a', [unittest.SkipTest('no')])",
    "a group that ends": "def f(x): raise BaseExceptionGroup('a', [SystemExit(0)])",
    "a base exception": "class E(BaseException): pass\ndef f(x): raise E",
}


@pytest.mark.parametrize("what", STEERING)
async def test_no_exception_steers_the_tests(judge, what):
    tests = [AssertTest(UNITTEST, entry_points=("f",)), AssertTest("for n in [1]:\n    assert f(n) == 9")]
    verdicts = await judge(stop_at_failure=False).judge(STEERING[what], [*tests, FunctionTest("f", [1], 9)])
    assert not any(verdict.passed for verdict in verdicts)
    assert all(verdict.status in (VerdictStatus.WRONG, VerdictStatus.ERROR) for verdict in verdicts), verdicts


NAMED = """from collections import namedtuple
T = namedtuple('T', 'count index')
def f(x): return T(lambda y: 3, lambda y: 7)
"""
PROCESSES = {
    "kills its loader": "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGKILL)\n    return 1",
    "kills all": "import os, signal\ndef f(x):\n    for pid in range(2, 99):\n        try: os.kill(pid, 9)\n"
    "        except OSError: pass\n    return 1",
    "stops its loader": "import os, signal\ndef f(x):\n    os.kill(os.getppid(), signal.SIGSTOP)\n    return 1",
    "closes all descriptors": "import os\nos.closerange(0, 256)\ndef f(x): return 9",
    "closes all descriptors when called": "import os\ndef f(x):\n    os.closerange(0, 256)\n    return 9",
    "writes to all descriptors": "import os\nfor fd in range(64):\n    try: os.write(fd, b'0\\n0 0.0\\n')\n"
    "    except OSError: pass\ndef f(x): return 1",
    "answers before it is asked": "import os, json, struct\ndata = json.dumps(['answer', 1, 9, []]).encode()\n"
    "for fd in range(3, 64):\n    try: os.write(fd, struct.pack('<I', len(data)) + data)\n"
    "    except OSError: pass\ndef f(x): return 1",
    "replaces fork": "import os\nos.fork = os.wait4 = os.read = os.write = lambda *a: 0\ndef f(x): return 1",
    "forks when it is loaded": "import os\nif os.fork() == 0:\n    def f(x): return 1\nelse:\n    def f(x): return 2",
    "reports for the tests": "import sys\ndef f(x):\n    sys.stderr.write('{\"test\": 0, \"status\": \"passed\"}')",
    "keeps a process that answers": "import os, time\nif os.fork() == 0:\n    time.sleep(60)\ndef f(x): return 1",
    "a thread that answers": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    "def f(x): return 1",
    "never loads": "while True: pass",
    "sleeps when it is loaded": "import time\ntime.sleep(600)",
    "ends when it is loaded": "import os\nos._exit(0)",
    "deletes its folder": "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\ndef f(x): return 1",
    "fills its folder": "def f(x):\n    for n in range(9999):\n        open(f'file{n}', 'w').write('x')\n    return 1",
    "raises what cannot be shown": "class E(Exception):\n    def __str__(self): raise self\ndef f(x): raise E",
    "a dictionary with two keys of a name": "def f(x): return {1: 9, '1': 9}",
}  # fmt: skip


@pytest.mark.parametrize("what", PROCESSES)
async def test_no_process_of_a_program_reaches_its_tests(judge, what):
    expected = {"1": 9} if "dictionary" in what else 9 if "descriptors" not in what else 8
    tests = [
        FunctionTest("f", [1], expected),
        AssertTest(f"assert f(1) == {expected}"),
        FunctionTest("f", [2], expected),
    ]
    verdicts = await judge(stop_at_failure=False, timeout=0.5).judge(PROCESSES[what], tests)
    assert not any(verdict.passed for verdict in verdicts), verdicts
    assert all(verdict.status is not VerdictStatus.NOT_JUDGEABLE for verdict in verdicts), verdicts


REPLIES = [
    b'["", true]\n',
    b'"not judgeable"\n',
    b'["not_judgeable", true]\n',
    b'{"status": "passed", "error": "", "shares": true}\n',
    b'{"status": "not_judgeable"}\n',
    b'[["passed"], {}]\n',
    b"\n\n\n",
    b"1\n0 0.0\n",
    b"-1\n0 0.0\n",
    b"99999999\n0 nan\n",
    b"x" * 100_000,
    b'["", true]\n1\n0 0.0\n1\n0 0.0\n',
]
"""What a program may write in the name of its loader."""


@pytest.mark.parametrize("reply", REPLIES, ids=range(len(REPLIES)))
async def test_no_reply_of_a_loader_passes_a_test(judge, reply):
    program = (
        "import sys, os\nframe = sys._getframe()\nfound = 0\nwhile frame:\n    if 'replies' in frame.f_locals:\n"
        "        os.set_blocking(frame.f_locals['replies'], False)\n"
        f"        os.write(frame.f_locals['replies'], {reply!r})\n"
        "        found = 1\n    frame = frame.f_back\ndef f(x): return 1 + found"
    )
    tests = [AssertTest("assert f(1) == 9"), AssertTest("assert f(2) == 9")]
    verdicts = await judge(stop_at_failure=False, timeout=1.0).judge(program, tests)
    assert not any(verdict.passed for verdict in verdicts), verdicts
    assert all(verdict.status is not VerdictStatus.NOT_JUDGEABLE for verdict in verdicts), verdicts
    assert all(verdict.detail != "got 1, expected 9" for verdict in verdicts), "the loader was not found"


LINES = [
    b'{"value": 9}{"value": 9}',
    b'{"value": [9, ' + b"9" * 5000 + b"]}",
    b"[" * 100_000,
    b'{"value": ' + b"[" * 400 + b"9" + b"]" * 400 + b"}",
    b"9" * 2_000_000,
    b'"value"',
    b"{}",
    b"null",
    b'{"value": {"dict": 9}}',
    b'{"value": {"dict": [[9]]}}',
    b'{"value": {"int": 9}}',
    b'{"value": {"int": "x"}}',
    b'{"value": {"other": {}}}',
    b'{"value": {"int": "0x9", "other": "9"}}',
    b'{"value": {}}',
    b'{"error": {"value": 9}}',
    b'{"error": "", "value": 9}',
    b'{"status": "value", "error": "9", "value": 9}',
    b'{"status": "passed", "error": ""}',
    b"\xff",
    b'{"value": NaN}',
    b'{"value": "9"}',
    b'{"value": 9, "status": "passed"}',
    b"",
]
"""What a program may write in place of the line that holds the value of its function."""


async def test_no_forged_line_passes_a_function_test(judge):
    program = (
        f"import os, stat\nLINES = {LINES!r}\ndef f(n):\n    for fd in range(3, 64):\n"
        "        try:\n            if stat.S_ISFIFO(os.fstat(fd).st_mode):\n"
        "                line = LINES[n] + b'\\n'\n"
        "                while line: line = line[os.write(fd, line):]\n"
        "        except OSError: pass\n    os._exit(0)"
    )
    tests = [FunctionTest("f", [n], 9) for n in range(len(LINES))]
    for verdict in await judge(stop_at_failure=False, timeout=20.0).judge(program, tests):
        assert verdict.status in (VerdictStatus.WRONG, VerdictStatus.ERROR), verdict


async def test_endless_reply_is_cut(judge):
    program = (
        "import os, stat\ndef f():\n    for fd in range(3, 64):\n"
        "        try:\n            while stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, b'[' * 60000)\n"
        "        except OSError: pass\n"
    )
    [verdict] = await judge(timeout=20.0).judge(program, [FunctionTest("f", [], 9)])
    assert verdict.status is VerdictStatus.LIMIT, verdict


async def test_names_of_a_tuple_replace_no_methods(judge):
    for code in ("assert f(1).count(9) == 3", "assert f(1).index(9) == 7", "assert f(1).count == 3"):
        [verdict] = await judge().judge(NAMED, [AssertTest(code)])
        assert not verdict.passed


SCRIPTS = {
    "ends early": "import os\nos._exit(0)",
    "prints a report": 'print(\'{"test": 0, "status": "output", "code": 0, "stdout": "9"}\')',
    "writes to all descriptors": "import os\nfor fd in range(64):\n"
    "    try: os.write(fd, b'9\\n')\n    except OSError: pass\n"
    "os._exit(3)",
    "fails after the answer": "print(9)\nraise SystemExit(1)",
    "is killed after the answer": "import os\nprint(9, flush=True)\nos.kill(os.getpid(), 9)",
    "kills its loader": "import os\nos.kill(os.getppid(), 9)\nprint(1)",
    "looks for the answer in files": "import os\nfor at, _, names in os.walk('.'):\n    for name in names:\n"
    "        print(open(os.path.join(at, name), errors='replace').read())",
    "reads all descriptors": "import os\nfor fd in range(3, 64):\n    try:\n        os.set_blocking(fd, False)\n"
    "        print(os.read(fd, 9999))\n    except OSError: pass",
}


@pytest.mark.parametrize("what", SCRIPTS)
async def test_no_output_is_right_by_deceit(judge, what):
    verdicts = await judge(stop_at_failure=False).judge(SCRIPTS[what], [StdioTest("4", "9"), StdioTest("5", "9")])
    assert not any(verdict.passed for verdict in verdicts), verdicts
