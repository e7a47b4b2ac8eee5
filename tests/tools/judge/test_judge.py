from __future__ import annotations

import asyncio

import pytest

from toolgym.tools.errors import ConfigError, SandboxError, SandboxUnsupportedError
from toolgym.tools.judge import AssertTest, FunctionTest, Judge, StdioTest, VerdictStatus
from toolgym.tools.judge.running import runs
from toolgym.tools.sandbox import ExecutionResult, ExecutionStatus, LocalSandbox, ProcessSandbox, Sandbox

DOUBLE = "print(int(input()) * 2)"


def statuses(verdicts):
    return [one.status.value for one in verdicts]


async def test_a_program_that_reads_and_prints(judge):
    tests = [StdioTest("4\n", "8"), StdioTest("5", ["ten", " 10 \n"]), StdioTest("6", "13")]
    verdicts = await judge().judge(DOUBLE, tests)
    assert statuses(verdicts) == ["passed", "passed", "wrong"]
    assert verdicts[2].detail == "got 12, expected 13"
    assert verdicts[0].run.stdout == "8\n"


async def test_behind_a_failure_nothing_is_run_unless_all_is_asked_for(judge):
    tests = [StdioTest("1", "3"), StdioTest("2", "4"), StdioTest("x", "4")]
    assert statuses(await judge().judge(DOUBLE, tests)) == ["wrong", "not_run", "not_run"]
    assert statuses(await judge(stop_at_failure=False).judge(DOUBLE, tests)) == ["wrong", "passed", "error"]


async def test_tests_behind_a_failure_are_stopped_and_those_before_it_are_not(judge):
    code = "import time\nn = input()\ntime.sleep({'before': 0.3, 'wrong': 0, 'behind': 60}[n])\nprint(n)"
    tests = [StdioTest("before", "before"), StdioTest("wrong", "right"), StdioTest("behind", "behind")]
    started = asyncio.get_running_loop().time()
    assert statuses(await judge(timeout=120.0).judge(code, tests)) == ["passed", "wrong", "not_run"]
    assert asyncio.get_running_loop().time() - started < 60


async def test_each_test_has_limits_of_its_own(judge):
    code = "n = int(input())\nwhile n == 1: pass\nx = bytearray(n << 20)\nprint(n)"
    tests = [StdioTest("0", "0"), StdioTest("1", "1"), StdioTest("900", "900")]
    verdicts = await judge(stop_at_failure=False, timeout=2.0, memory_mb=200).judge(code, tests)
    assert statuses(verdicts) == ["passed", "timeout", "limit"]


async def test_compiled_languages(judge):
    code = "#include <iostream>\nint main() { long n; std::cin >> n; std::cout << n * 2; }"
    assert statuses(await judge(language="cpp", timeout=120.0).judge(code, [StdioTest("4", "8")])) == ["passed"]
    verdicts = await judge(language="cpp", timeout=120.0).judge("int main() {", [StdioTest("4", "8")])
    assert verdicts[0].status is VerdictStatus.COMPILE_ERROR
    assert "error" in verdicts[0].detail
    with pytest.raises(ConfigError, match="FunctionTest is for Python programs, not for 'cpp'"):
        await judge(language="cpp").judge(code, [FunctionTest("f", [], 0)])


async def test_a_function_or_a_method_of_solution_is_called(judge):
    function = "def add(a, b):\n    print('noise')\n    return a + b"
    method = "class Solution:\n    def add(self, a: int, b: int) -> List[int]:\n        return (a, Counter([b])[b])"
    tests = [FunctionTest("add", [1, 2], 3), FunctionTest("add", [[1], [2]], [1, 2])]
    assert statuses(await judge().judge(function, tests)) == ["passed", "passed"]
    assert statuses(await judge().judge(method, [FunctionTest("add", [5, 7], [5, 1])])) == ["passed"]
    verdicts = await judge().judge(function, [FunctionTest("add", [1, 2], 4)])
    assert verdicts[0].detail == "got 3, expected 4"
    verdicts = await judge().judge(function, [FunctionTest("sub", [1, 2], 4)])
    assert (verdicts[0].status, verdicts[0].detail) == ("error", "NameError: name 'sub' is not defined")


@pytest.mark.parametrize(
    ("returned", "expected", "tolerance", "passed"),
    [
        ("(1, [2, (3,)])", [1, [2, [3]]], None, True),
        ("{1: 'a'}", {"1": "a"}, None, True),
        ("0.1 + 0.2", 0.3, None, False),
        ("0.1 + 0.2", 0.3, 1e-9, True),
        ("[1e9 + 1]", [1e9], 1e-6, True),
        ("{1, 2}", [1, 2], None, False),
        ("True", 1, None, True),
        ("'1'", 1, None, False),
        ("None", None, None, True),
        ("float('nan')", 1.0, 0.5, False),
        ("__import__('fractions').Fraction(1, 2)", 0.5, None, True),
        ("__import__('decimal').Decimal('2.0')", 2, None, True),
        ("__import__('decimal').Decimal('0.1')", 0.1, None, False),
        ("10 ** 5000", 1, None, False),
        ("object()", 1, None, False),
        ("'a' * (1 << 21)", "a", None, False),
    ],
)
async def test_what_a_function_returns_is_compared_outside(judge, returned, expected, tolerance, passed):
    test = FunctionTest("f", [], expected, tolerance=tolerance)
    [verdict] = await judge().judge(f"def f():\n    return {returned}", [test])
    assert verdict.passed is passed


async def test_a_right_answer_may_be_long(judge):
    long = StdioTest("", "12345\n" * 500_000)  # 3 MB, where the sandbox keeps 1 MiB
    assert statuses(await judge().judge("print('12345\\n' * 500_000)", [long])) == ["passed"]
    value = FunctionTest("f", [], [12345] * 400_000)
    assert statuses(await judge().judge("def f(): return [12345] * 400_000", [value])) == ["passed"]
    [verdict] = await judge().judge("print('12345\\n' * 500_000)", [StdioTest("", "12345")])
    assert (verdict.status, verdict.detail) == (
        "limit",
        "the program printed more than the sandbox keeps of its output",
    )


async def test_one_of_many_values_may_be_right(judge):
    test = FunctionTest("f", [3], [9], or_expected=[9])
    assert statuses(await judge().judge("def f(n):\n    return n * n", [test])) == ["passed"]


CROSSING = {
    "a list that is changed in place": ("def f(x): x.sort()", "x = [3, 1]\nf(x)\nassert x == [1, 3]"),
    "a dictionary that is changed in place": ("def f(x): x['b'] = (2,)", "x = {'a': 1}\nf(x)\nassert x['b'] == (2,)"),
    "a function as an argument": (
        "def f(g): return [g(n) for n in range(3)]",
        "assert f(lambda n: n * n) == [0, 1, 4]",
    ),
    "a function of the tests that calls the program": (
        "def f(g): return g(2) + 1\ndef h(n): return n * 10",
        "assert f(lambda n: h(n)) == 21",
    ),
    "a generator": ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2] and sum(f(4)) == 6"),
    "an endless generator": ("import itertools\ndef f(): return itertools.count()", "assert next(f()) == 0"),
    "a class with a state": (
        "class Stack:\n    def __init__(self): self.items = []\n"
        "    def push(self, x): self.items.append(x); return self\n"
        "    def __len__(self): return len(self.items)",
        "s = Stack()\ns.push(1).push(2)\nassert len(s) == 2 and s.items == [1, 2] and s.push(3) == s",
    ),
    "an exception": (
        "def f(n):\n    raise ValueError('bad')",
        "try:\n    f(1)\nexcept ValueError as error:\n    assert str(error) == 'bad'\nelse:\n    assert False",
    ),
    "sets, bytes, complex numbers": (
        "def f(): return {1, 2}, frozenset('a'), b'x', 1j, range(3), 2 ** 70",
        "assert f() == ({1, 2}, frozenset('a'), b'x', 1j, range(3), 2 ** 70)",
    ),
    "fractions and decimals": (
        "from fractions import Fraction\nfrom decimal import Decimal\n"
        "def f(): return [Fraction(1, 3), Decimal('0.10')]",
        "from fractions import Fraction\nassert f()[0] == Fraction(1, 3) and str(f()[1]) == '0.10'",
    ),
    "a module that the program has imported": (
        "import math\ndef f(): return 0.1 + 0.2",
        "assert math.isclose(f(), 0.3)",
    ),
    "a variable": ("LIMIT = 7", "assert LIMIT == 7"),
    "counters": ("from collections import Counter\ndef f(): return Counter('aab')", "assert f() == {'a': 2, 'b': 1}"),
    "dates and times": (
        "import datetime as d\n"
        "UTC = d.timezone.utc\n"
        "def f(x): return [d.date(2020, 1, 2), d.datetime(2020, 1, 2, 3, tzinfo=UTC), x + d.timedelta(1, 2, 3)]",
        "import datetime as d\n"
        "assert f(d.datetime(2020, 1, 2)) == [d.date(2020, 1, 2), d.datetime(2020, 1, 2, 3, tzinfo=d.timezone.utc), "
        "d.datetime(2020, 1, 3, 0, 0, 2, 3)]\nassert isinstance(f(d.datetime.now())[0], d.date)",
    ),
    "a class under isinstance": (
        "class P: pass\nclass Q(P): pass\ndef mk(): return Q()",
        "assert isinstance(mk(), P) and isinstance(mk(), (int, Q)) and not isinstance(3, P)",
    ),
    "an exception of the program's own": (
        "class E(ValueError):\n    def __init__(self, code):\n        super().__init__(f'bad {code}')\n"
        "        self.code = code\n"
        "class E2(E): pass\ndef f(): raise E2(3)",
        "try:\n    f()\nexcept E as e:\n    assert (e.code, str(e), isinstance(e, ValueError)) == (3, 'bad 3', True)\n"
        "else:\n    assert False",
    ),
    "exceptions of Python's, with what they hold": (
        "import json\ndef f(n): return {}['a'] if n else json.loads('{')\ndef g(): return b'\\xff'.decode()",
        "import json\ntry:\n    f(1)\nexcept KeyError as e:\n    assert e.args == ('a',)\ntry:\n    f(0)\n"
        "except json.JSONDecodeError:\n    pass\n"
        "try:\n    g()\nexcept UnicodeDecodeError as e:\n    assert e.start == 0\nelse:\n    assert False",
    ),
    "an exit": (
        "import sys\ndef f(): sys.exit(3)",
        "try:\n    f()\nexcept SystemExit as e:\n    assert e.code == 3\nelse:\n    assert False",
    ),
    "objects that the program compares and adds": (
        "class V:\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return self.x == o.x\n"
        "    def __add__(self, o): return V(self.x + o.x)\n    def __hash__(self): return hash(self.x)",
        "assert V(1) + V(2) == V(3) and V(1) != V(2) and {V(1), V(1)} == {V(1)} and V(1) != 1",
    ),
    "a tuple with names": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
        "assert f().x == 1 and f() == (1, 2)",
    ),
    "an enumeration": (
        "import enum\nclass C(enum.Enum):\n    RED = 1\ndef f(): return C.RED",
        "assert f() == C.RED and f() is C.RED and f().value == 1",
    ),
    "a type as an argument": ("def f(x, t): return isinstance(x, t)", "assert f(3, int) and not f(3, str)"),
    "arguments by their names": (
        "def f(x, operation=1): x.sort(); return operation",
        "x = [2, 1]\nassert f(x=x, operation=5) == 5 and x == [1, 2]",
    ),
    "a queue that is changed": (
        "def f(d): d.append(3)",
        "from collections import deque\nd = deque([1])\nf(d)\nassert list(d) == [1, 3]",
    ),
    "membership": (
        "class Odd:\n    def __iter__(self): return iter([1, 3])\ndef f(): return Odd()",
        "assert 3 in f() and 2 not in f()",
    ),
    "data frames": (
        "import pandas as pd\ndef f(df): return df.groupby('a').b.sum()\n"
        "def g(): return pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, float('nan')], "
        "'d': pd.to_datetime(['2020-01-01', None])})",
        "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2, 1], 'b': [3, 4, 5]})\n"
        "pd.testing.assert_series_equal(f(df), df.groupby('a').b.sum())\n"
        "df = pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, float('nan')], "
        "'d': pd.to_datetime(['2020-01-01', None])})\n"
        "pd.testing.assert_frame_equal(g(), df)\nassert g().equals(df) and not g().equals(df.iloc[:1])",
    ),
    "what the program prints": ("def f(): print('hello'); return 1", "assert f() == 1"),
}


@pytest.mark.parametrize("what", CROSSING)
async def test_what_goes_between_the_program_and_its_assertions(judge, what):
    program, code = CROSSING[what]
    [verdict] = await judge().judge(program, [AssertTest(code)])
    assert verdict.passed, verdict.detail


async def test_a_failed_assertion_says_what_came(judge):
    program = "def f(n): return n + 1"
    tests = [AssertTest("assert f(1) == 2"), AssertTest("assert f(1) == 3"), AssertTest("assert f(1) > 9, 'small'")]
    verdicts = await judge(stop_at_failure=False).judge(program, tests)
    assert [one.detail for one in verdicts] == ["", "got 2, expected 3", "small"]
    assert statuses(verdicts) == ["passed", "wrong", "wrong"]


async def test_setup_stands_before_the_program_and_helpers_before_the_tests(judge):
    test = AssertTest(
        "assert f(3) == helper(3) and math.floor(2.5) == 2",
        setup="import math\nBASE = 10",
        helpers="def helper(n): return n + 10",
        entry_points=("f",),
    )
    assert statuses(await judge().judge("def f(n): return n + BASE", [test])) == ["passed"]


async def test_a_function_may_have_the_name_of_a_builtin_if_that_is_said(judge):
    tests = [AssertTest("assert sum(1, 2) == 3", entry_points=("sum",))]
    assert statuses(await judge().judge("def sum(a, b): return a + b", tests)) == ["passed"]


async def test_a_program_that_does_not_begin(judge):
    for program, said in (
        ("def f(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit", "SystemExit"),
    ):
        [verdict] = await judge().judge(program, [AssertTest("assert f(1) == 1")])
        assert (verdict.status, verdict.detail.partition(":")[0]) == (VerdictStatus.ERROR, said)


async def test_a_program_that_never_answers_is_stopped(judge):
    [verdict] = await judge(timeout=0.5).judge("def f():\n    while True: pass", [AssertTest("assert f() == 1")])
    assert verdict.status is VerdictStatus.TIMEOUT


async def test_a_plain_process_can_judge_too():
    async with ProcessSandbox() as sandbox:
        verdicts = await Judge(sandbox).judge("def f(n): return n", [AssertTest("assert f(2) == 2")])
    assert statuses(verdicts) == ["passed"]


@pytest.mark.parametrize("length", [0, 60_000])
async def test_long_arguments_and_values_cross_whole(judge, length):
    numbers = [*range(length)]
    tests = [FunctionTest("f", [numbers, {"key": [1, 2]}], [numbers, {"key": [2, 1]}])] * 2
    program = "def f(numbers, pairs):\n    pairs['key'].reverse()\n    return numbers, pairs"
    assert all(verdict.passed for verdict in await judge().judge(program, tests))


@pytest.mark.parametrize("form", runs._FORMS)
async def test_code_reaches_a_sandbox_in_each_form(judge, monkeypatch, form):
    monkeypatch.setattr(runs, "_FORMS", (form,))  # with only one form, one that the sandbox refuses is an error
    assert all(verdict.passed for verdict in await judge().judge("print(input())", [StdioTest("1", "1")] * 2))
    assert all(verdict.passed for verdict in await judge().judge("def f(n): return n", [FunctionTest("f", [1], 1)]))


async def test_where_a_program_has_one_process_the_sandbox_is_to_blame():
    async with LocalSandbox(level="landlock", preload=(), warm=0) as sandbox:
        with pytest.raises(SandboxUnsupportedError, match="use the isolation level namespaces or uid"):
            await Judge(sandbox).judge("def f(): return 1", [AssertTest("assert f() == 1")])
        assert statuses(await Judge(sandbox).judge(DOUBLE, [StdioTest("1", "2")])) == ["passed"]


async def test_wrong_arguments_are_refused(judge):
    with pytest.raises(ConfigError, match="at least one test"):
        await judge().judge("", [])
    with pytest.raises(ConfigError, match="a test is a StdioTest"):
        await judge().judge("", ["assert True"])
    with pytest.raises(ConfigError, match="timeout must be a positive"):
        judge(timeout=0)
    with pytest.raises(ConfigError, match="tolerance"):
        StdioTest("", "", tolerance=-1)


class Failing(Sandbox):
    """A sandbox that fails, or never answers."""

    def __init__(self, answers):
        self.answers, self.cancelled = answers, 0

    async def execute(self, request):
        if self.answers:
            return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message="no room")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_a_sandbox_that_fails_is_no_verdict():
    with pytest.raises(SandboxError, match="no room"):
        await Judge(Failing(True)).judge(DOUBLE, [StdioTest("1", "2")] * 3)


async def test_cancelling_the_judge_cancels_its_runs():
    sandbox = Failing(False)
    task = asyncio.create_task(Judge(sandbox).judge(DOUBLE, [StdioTest("1", "2")] * 3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sandbox.cancelled == 1
