"""Limits of programs, and what one test leaves for the next."""

from __future__ import annotations

import asyncio
import shutil
import sys
from dataclasses import replace

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.judge import AssertTest, FunctionTest, Judge, StdioTest, VerdictStatus
from toolgym.tools.judge.running import runs, verdicts
from toolgym.tools.sandbox import LocalSandbox, ProcessSandbox
from toolgym.tools.sandbox.local.host import languages

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler is installed")
COMPUTE = "import time\nbegan = time.process_time()\nwhile time.process_time() - began < {}: pass\n"


def statuses(judged):
    return [verdict.status.value for verdict in judged]


@pytest.fixture
def count_runs(judge, monkeypatch):
    """Count the runs of the sandbox that a judge makes."""
    seen = []
    run = runs._run

    async def counted(*args, **options):
        seen.append(len(args[3]))
        return await run(*args, **options)

    monkeypatch.setattr(runs, "_run", counted)
    return seen


async def test_verdicts_do_not_depend_on_how_many_programs_are_judged(judge):
    program = COMPUTE.format(0.2) + "print(int(input()) * 2)"
    tests = [StdioTest("1", "2"), StdioTest("2", "4")]
    judged = await asyncio.gather(*(judge(timeout=0.5).judge(program, tests) for _ in range(8)))
    assert all(verdict.passed for verdicts in judged for verdict in verdicts)


async def test_all_tests_of_a_program_share_one_run(judge, count_runs):
    function = [FunctionTest("f", [n], n + 1) for n in range(12)]
    assert all(verdict.passed for verdict in await judge().judge("def f(n): return n + 1", function))
    script = [StdioTest(str(n), str(n + 1)) for n in range(12)]
    assert all(verdict.passed for verdict in await judge().judge("print(int(input()) + 1)", script))
    assert count_runs == [12, 12]


LEFTOVERS = {
    "names": "COUNT = [0]\ndef f(n):\n    COUNT[0] += 1\n    return COUNT[0]",
    "modules": "import math\ndef f(n):\n    math.left = getattr(math, 'left', 0) + 1\n    return math.left",
    "files": "import os\ndef f(n):\n    new = not os.path.exists('left')\n    open('left', 'w').close()\n"
    "    return int(new)",
    "folders": "import os\ndef f(n):\n    new = not os.path.exists('a')\n    os.makedirs('a/b', exist_ok=True)\n"
    "    return int(new)",
    "its own source": "import os\nSIZE = os.path.getsize('main.py')\ndef f(n):\n"
    "    with open('main.py', 'a') as file: file.write('#')\n    return os.path.getsize('main.py') - SIZE",
    "the environment": "import os\ndef f(n):\n    os.environ['LEFT'] = os.environ.get('LEFT', '') + 'x'\n"
    "    return len(os.environ['LEFT'])",
    "the folder that it is in": "import os\nTOP = os.getcwd()\ndef f(n):\n    here = os.getcwd() == TOP\n"
    "    os.chdir('/')\n    return int(here)",
    "signals": "import signal\ndef f(n):\n    old = signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
    "    return int(old == signal.SIG_DFL)",
    "processes": "import os, time\ndef f(n):\n    if os.fork() == 0:\n        time.sleep(99)\n    return 1",
    "a process in a session of its own": "import os, time\ndef f(n):\n    if os.fork() == 0:\n        os.setsid()\n"
    "        time.sleep(99)\n    return 1",
    "threads": "import threading\nE = threading.Event()\ndef f(n):\n"
    "    threading.Thread(target=E.wait, daemon=True).start()\n    return threading.active_count() - 1",
    "a thread that was there before": "import threading, time\nN = []\n"
    "def work():\n    while True: N.append(1); time.sleep(.01)\n"
    "threading.Thread(target=work, daemon=True).start()\ndef f(n):\n    time.sleep(.05)\n    return int(len(N) > 1)",
}


@pytest.mark.parametrize("what", LEFTOVERS)
async def test_no_test_sees_what_another_one_left(judge, what):
    tests = [FunctionTest("f", [n], 1) for n in range(3)]
    judged = await judge(timeout=5.0).judge(LEFTOVERS[what], tests)
    assert statuses(judged) == ["passed"] * 3, judged


async def test_a_script_starts_each_test_as_the_interpreter_would(judge):
    program = (
        "import sys\nassert __name__ == '__main__' and sys.argv == [__file__] or sys.argv == ['main.py']\n"
        "assert 'toolgym.tools.judge.inside.link' not in sys.modules and 'main' not in globals(), list(globals())\n"
        "def depth(n):\n    try:\n        return depth(n + 1)\n    except RecursionError:\n        return n\n"
        "print(input(), depth(1))"
    )
    tests = [StdioTest(name, [f"{name} {depth}" for depth in range(990, 1001)]) for name in "ab"]
    assert statuses(await judge().judge(program, tests)) == ["passed", "passed"]


async def test_an_error_of_a_script_is_shown_without_the_judge(judge):
    for program, said in (("def f():\n    1 / 0\nf()", "ZeroDivisionError"), ("def f(:", "SyntaxError")):
        [verdict] = await judge().judge(program, [StdioTest("", "")])
        assert verdict.status is VerdictStatus.ERROR
        assert said in verdict.detail
        assert "<judge>" not in verdict.detail
        assert "exec(main" not in verdict.detail


async def test_limits_of_one_test_replace_those_of_the_judge(judge):
    tests = [StdioTest("1", "1", cpu_seconds=0.3), StdioTest("1", "1", cpu_seconds=60)]
    program = COMPUTE.format(1) + "print(input())"
    assert statuses(await judge(stop_at_failure=False).judge(program, tests)) == ["timeout", "passed"]
    tests = [StdioTest("1", "1", memory_mb=60), StdioTest("1", "1", memory_mb=400)]
    program = "x = bytearray(200 << 20)\nprint(input())"
    assert statuses(await judge(stop_at_failure=False).judge(program, tests)) == ["limit", "passed"]


async def test_time_of_children_counts(judge):
    child = COMPUTE.format(0.3)
    program = f"import subprocess, sys\nfor _ in range(4): subprocess.run([sys.executable, '-c', {child!r}])\nprint(1)"
    [verdict] = await judge(timeout=0.8).judge(program, [StdioTest("", "1")])
    assert verdict.status is VerdictStatus.TIMEOUT


async def test_a_program_that_sleeps_ends(judge):
    for program, test in (
        ("import time\ntime.sleep(999)", StdioTest("", "")),
        ("import time\ndef f(): time.sleep(999)", FunctionTest("f", [], 1)),
    ):
        [verdict] = await judge(timeout=0.5).judge(program, [test])
        assert (verdict.status, "slept" in verdict.detail) == (VerdictStatus.TIMEOUT, True)


@pytest.mark.parametrize(
    ("seconds", "first"),
    [
        ({0: 0.5, 1: 0.5, 2: 0.1}, 2),
        ({0: 0.8}, sys.maxsize),
        ({1: 9.0, 2: 9.0}, sys.maxsize),  # the first test has not ended: it may fail
        ({0: 9.0, 2: 9.0}, 1),
    ],
)
def test_tests_are_late_after_those_before_them(seconds, first):
    assert runs._first_late(seconds, 0.8) == first


async def test_the_total_of_all_tests_is_limited(judge):
    program = COMPUTE.format(0.3) + "print(input())"
    tests = [StdioTest(str(n), str(n)) for n in range(9)]
    judged = await judge(total_timeout=0.8, stop_at_failure=False).judge(program, tests)
    count = statuses(judged).count("passed")
    assert 2 <= count <= 3
    assert statuses(judged) == ["passed"] * count + ["timeout"] * (9 - count)
    assert "all tests together used more than 0.8 s" in judged[-1].detail


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later Pythons limit calls between C functions")
async def test_recursion_is_limited_by_memory(judge):
    program = (
        "import sys, functools\nsys.setrecursionlimit(10 ** 6)\n"
        "@functools.lru_cache(None)\ndef f(n): return n and f(n - 1) + 1\n"
    )
    assert statuses(await judge().judge(program, [FunctionTest("f", [40_000], 40_000)])) == ["passed"]
    script = program + "print(f(int(input())))"
    assert statuses(await judge().judge(script, [StdioTest("40000", "40000")])) == ["passed"]


async def test_integers_may_be_long(judge):
    tests = [FunctionTest("f", [7**9000, 3], 7**27000), AssertTest("assert f(7 ** 9000, 3) == 7 ** 27000")]
    assert statuses(await judge().judge("def f(n, k): return n ** k", tests)) == ["passed", "passed"]
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        script = [StdioTest(str(7**9000), str(7**27000))]
    finally:
        sys.set_int_max_str_digits(limit)
    assert statuses(await judge().judge("print(int(input()) ** 3)", script)) == ["passed"]
    [verdict] = await judge().judge("def f(n, k): return n ** k + 1", tests[:1])
    assert (verdict.status, verdict.detail) == ("wrong", "got a very large number, expected a very large number")


async def test_keys_of_arguments_stay_numbers(judge):
    test = FunctionTest("f", [{1: [2], (3, 4): 5}], {"1": 1, "3": 2})
    program = "def f(d): return {k if isinstance(k, int) else k[0]: n + 1 for n, k in enumerate(d)}"
    assert statuses(await judge().judge(program, [test])) == ["passed"]
    with pytest.raises(ConfigError, match="an argument of 'f' is not a JSON value"):
        await judge().judge("def f(x): return 1", [FunctionTest("f", [object()], 1)])


async def test_long_outputs_are_compared_in_the_sandbox(judge, monkeypatch):
    monkeypatch.setattr(verdicts, "MAX_COMPARED", 100)
    printed = StdioTest("", "\n".join(["0.5"] * 60), close=True)
    for program, status in (("print('0.50\\n' * 60)", "passed"), ("print('0.50\\n' * 59, 1)", "wrong")):
        assert statuses(await judge().judge(program, [printed])) == [status]
    value = FunctionTest("f", [], [{"a": 0.5, "b": (10**5000,)}] * 60, close=True)
    for end, status in (("", "passed"), (" + [1]", "wrong")):
        program = f"def f(): return [{{'a': 0.500000001, 'b': [10 ** 5000]}}] * 60{end}"
        assert statuses(await judge().judge(program, [value])) == [status]


async def test_files_in_place_of_standard_streams(judge):
    tests = [StdioTest(n, n * 2, input_file="in/data.txt", output_file="result.txt") for n in "ab"]
    program = "open('result.txt', 'w').write(open('in/data.txt').read() * 2)\nprint('noise')"
    assert statuses(await judge().judge(program, tests)) == ["passed", "passed"]
    assert statuses(await judge().judge("print('aa')", tests)) == ["wrong", "not_run"]


@needs_compiler
async def test_a_program_is_compiled_once_and_may_recurse_deeply(judge, count_runs):
    code = (
        "#include <iostream>\nint f(int n) { volatile char b[64]; b[0] = n; return n ? f(n - 1) + 1 : b[0]; }\n"
        "int main() { int n; std::cin >> n; std::cout << f(n); }"
    )
    tests = [StdioTest(str(n), str(n)) for n in (5, 6, 500_000)]
    assert statuses(await judge(language="cpp", timeout=20).judge(code, tests)) == ["passed"] * 3
    assert count_runs == [3]


async def test_a_language_that_is_not_installed_is_no_verdict(monkeypatch):
    async with ProcessSandbox() as sandbox:
        with pytest.raises(ConfigError, match="unknown language"):
            await Judge(sandbox, language="brainfuck").judge("", [StdioTest("", "")])
    language = languages.Language("cobol", "{main}.cob", ("no-such-cobol", "{main}.cob"), needs=("no-such-cobol",))
    monkeypatch.setitem(languages.LANGUAGES, "cobol", language)
    async with LocalSandbox(preload=(), warm=0) as sandbox:
        with pytest.raises(ConfigError, match="'cobol' needs no-such-cobol: not installed"):
            await Judge(sandbox, language="cobol").judge("", [StdioTest("", "")])
        monkeypatch.setattr(
            languages.Language, "lacks", lambda *_: ()
        )  # as if only the machine of the sandbox lacked it
        with pytest.raises(ConfigError, match="needs no-such-cobol, which is not installed where the sandbox runs"):
            await Judge(sandbox, language="cobol").judge("", [StdioTest("", "")])
        language = replace(language, needs=(), modules=("no_such_module",))
        monkeypatch.setitem(languages.LANGUAGES, "cobol", language)
        with pytest.raises(ConfigError, match="needs no_such_module, which is not installed where the sandbox runs"):
            await Judge(sandbox, language="cobol").judge("", [StdioTest("", "")])
