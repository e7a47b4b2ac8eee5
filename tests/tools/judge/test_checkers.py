"""Checkers and interactors of data sets."""

from __future__ import annotations

import shutil

import pytest

from toolgym.tools.errors import SandboxUnsupportedError
from toolgym.tools.judge import CheckerTest, InteractiveTest, Judge
from toolgym.tools.sandbox import ProcessSandbox

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler is installed")

SUM = """import sys
given, answer, output = (open(path).read().split() for path in sys.argv[1:])
print(int(sum(map(int, output)) == int(given[0])))
"""
"""Accepts numbers whose sum is the input. Raises if the output has something else."""

TESTLIB = """#include <fstream>
#include "helper.h"
int main(int, char** paths) {
    std::ifstream given(paths[1]), output(paths[2]);
    long n, a, b;
    given >> n;
    if (!(output >> a >> b)) return 2;
    return a + b == n ? ACCEPTED : 1;
}
"""

GUESS = """import sys
secret = int(open(sys.argv[1]).read())
for line in sys.stdin:
    kind, number = line.split()
    if kind == "!":
        sys.exit(0 if int(number) == secret else 1)
    print("<" if secret < int(number) else ">=", flush=True)
sys.exit(2)
"""

SEARCH = """low, high = 0, 1024
while high - low > 1:
    middle = (low + high) // 2
    print("?", middle, flush=True)
    if input() == "<": high = middle
    else: low = middle
print("!", low, flush=True)
"""


def statuses(judged):
    return [verdict.status.value for verdict in judged]


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("print(1, int(input()) - 1)", "passed"),
        ("print(1, input())", "wrong"),
        ("print('no number')", "wrong"),
        ("print()", "wrong"),
        ("1 / 0", "error"),
        ("import os\nprint(5, 5)\nos.makedirs('solution_output.txt')", "passed"),
        ("open('checker.py', 'w').write('print(1)')\nprint(3)", "wrong"),
    ],
)
async def test_a_checker_decides(judge, program, status):
    tests = [CheckerTest("10\n", SUM, "10 0\n"), CheckerTest("10\n", SUM)]
    assert statuses(await judge().judge(program, tests))[0] == status


@pytest.mark.parametrize(
    "checker", ["import no_such_module", "def f(:", "print('hello')", "1 / 0", "print(0)", "exit(3)"]
)
async def test_a_checker_that_fails_on_the_reference_is_at_fault(judge, checker):
    for program in ("print(1, int(input()) - 1)", "print('nonsense')"):
        [verdict] = await judge().judge(program, [CheckerTest("10\n", checker, "10 0\n")])
        assert verdict.status == "not_judgeable"
        assert "reference output" in verdict.detail


async def test_a_score_above_0_accepts(judge):
    for printed, status in (("0.5", "passed"), ("100", "passed"), ("0", "wrong"), ("-1", "wrong")):
        checker = f"import sys\nprint({printed} if open(sys.argv[3]).read() == 'x\\n' else 1)"
        [verdict] = await judge().judge("print('x')", [CheckerTest("", checker, "reference")])
        assert verdict.status == status


@needs_compiler
async def test_a_checker_for_testlib(judge):
    helper = {"helper.h": "const int ACCEPTED = 0;\n"}
    for program, status in (("print(1, int(input()) - 1)", "passed"), ("print(1, 1)", "wrong"), ("print()", "wrong")):
        test = CheckerTest("10\n", TESTLIB, "10 0", "cpp", "testlib", helper)
        assert statuses(await judge().judge(program, [test])) == [status]
    [verdict] = await judge().judge("print(1)", [CheckerTest("10\n", TESTLIB, "10 0", "cpp", "testlib")])
    assert (verdict.status, "helper.h" in verdict.detail) == ("not_judgeable", True)


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (SEARCH, "passed"),
        ("print('!', 5)", "wrong"),
        ("", "wrong"),
        ("print('? nonsense')", "wrong"),
        (SEARCH + "raise SystemExit(1)", "error"),
        ("while True: pass", "timeout"),
        ("import os\nfor at, _, names in os.walk('/tmp'):\n    for name in names:\n        if name == 'input.txt':\n"
         "            print('!', open(os.path.join(at, name)).read(), flush=True)", "wrong"),
    ],
)  # fmt: skip
async def test_an_interactor_talks_to_the_program(judge, program, status):
    judged = await judge(timeout=1.0).judge(program, [InteractiveTest("777", GUESS), InteractiveTest("3", GUESS)])
    assert statuses(judged)[0] == status, judged


async def test_an_interactor_that_fails_by_itself_is_at_fault(judge):
    [verdict] = await judge().judge(SEARCH, [InteractiveTest("", "raise SystemExit(3)")])
    assert verdict.status in ("not_judgeable", "wrong")
    [verdict] = await judge().judge("input()", [InteractiveTest("", "raise SystemExit(3)")])
    assert verdict.status == "not_judgeable"


KILLS = "import os; os.kill(-1, 9)"


async def test_a_program_that_ends_its_session_is_to_blame(judge):
    [verdict] = await judge().judge(KILLS, [InteractiveTest("777", GUESS)])
    assert (verdict.status, "its session" in verdict.detail) == ("error", True)


@pytest.mark.parametrize(("reads", "status"), [("input(); ", "wrong"), ("", "not_judgeable")])
async def test_an_interactor_that_ends_its_session_is_at_fault_unless_the_program_spoke(judge, reads, status):
    [verdict] = await judge().judge(
        "print(1, flush=True)\ninput()" if reads else "input()", [InteractiveTest("", f"{reads}{KILLS}")]
    )
    assert (verdict.status, "the interactor" in verdict.detail) == (status, True)


async def test_interactors_need_sessions():
    async with ProcessSandbox() as sandbox:
        with pytest.raises(SandboxUnsupportedError, match="has no sessions"):
            await Judge(sandbox).judge(SEARCH, [InteractiveTest("777", GUESS)])
