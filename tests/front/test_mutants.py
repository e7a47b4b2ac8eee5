"""Mutants of known solutions: how they are made, which ones tests miss, and what `check_env` says of them."""

from __future__ import annotations

import ast

import pytest

import toolgym
from toolgym.envs import Task
from toolgym.envs.tasks.row_fields import verl_row
from toolgym.testing import ConformanceError
from toolgym.testing.env_checks import EnvSubject
from toolgym.testing.mutants import mutants_of, surviving_mutants
from toolgym.testing.mutants.check import check_mutants
from toolgym.testing.mutants.inputs import calls_of, similar_calls, similar_stdin
from toolgym.tools.errors import ConfigError
from toolgym.tools.judge import AssertTest, FunctionTest, StdioTest
from toolgym.tools.message import user

CLAMP = "def clamp(n, low, high):\n    return max(low, min(n, high))"
WEAK = [FunctionTest("clamp", [5, 0, 9], 5), FunctionTest("clamp", [-3, 0, 9], 0)]
STRONG = [*WEAK, FunctionTest("clamp", [12, 0, 9], 9), FunctionTest("clamp", [9, 0, 7], 7)]


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = 3", ["x = 2", "x = 4", "pass"]),
        ("x = a < b", ["x = a <= b", "x = a >= b", "pass"]),
        ("x = a + b", ["x = a - b", "pass"]),
        ("x = a and b", ["x = a or b", "x = a", "x = b", "pass"]),
        ("x = not a", ["x = not not a", "pass"]),
        ("x = max(a)", ["x = min(a)", "pass"]),
        ("x = a[-1]", ["x = a[+1]", "x = a[-2]", "x = a[-0]", "pass"]),
        ("x = a[b:]", ["x = a[b + 1:]", "pass"]),
        ("x = range(a)", ["x = range(a + 1)", "x = range(a - 1)", "pass"]),
        ("if a:\n    f()", ["if True:\n    f()", "if False:\n    f()", "if a:\n    pass"]),
        ("def f():\n    return a", ["def f():\n    return None"]),
        ("def f():\n    'Doc.'\n    return", []),
    ],
)
def test_each_kind_of_change(source, changed):
    sources = {mutant.source for mutant in mutants_of(source)}
    assert {ast.unparse(ast.parse(text)) for text in changed} <= sources
    assert ast.unparse(ast.parse(source)) not in sources
    if not changed:
        assert not {text for text in sources if "Doc." not in text}


def test_mutants_say_where_they_differ():
    [mutant] = [mutant for mutant in mutants_of("a = 1\nb = a * 2\n") if mutant.source.startswith("a = 2")]
    assert (mutant.line, mutant.diff) == (1, "-a = 1\n+a = 2")
    assert {mutant.line for mutant in mutants_of("a = 1\nb = a * 2\n")} == {1, 2}
    assert len(mutants_of("x = [" + "1, " * 100 + "]", most=7)) == 7
    with pytest.raises(SyntaxError):
        mutants_of("def")


async def test_weak_tests_let_wrong_mutants_pass():
    survivors = await surviving_mutants(CLAMP, WEAK)
    assert "-    return max(low, min(n, high))" in survivors[0].report()
    assert all(survivor.expected != survivor.actual for survivor in survivors)
    assert await surviving_mutants(CLAMP, STRONG) == []


async def test_mutants_of_programs_that_print():
    program = "n = int(input())\nprint('big' if n >= 10 else 'small')"
    tests = [StdioTest("3\n", "small"), StdioTest("50\n", "big")]
    survivors = await surviving_mutants(program, tests)
    assert any("n >= 11" in survivor.mutant.source for survivor in survivors)
    bounds = [StdioTest("9\n", "small"), StdioTest("10\n", "big"), StdioTest("11\n", "big")]
    assert await surviving_mutants(program, [*tests, *bounds]) == []


async def test_equal_mutants_are_not_reported():
    same = "def f(n):\n    if n > 0:\n        n = n + 0\n    return n"
    assert await surviving_mutants(same, [FunctionTest("f", [n], n) for n in (-5, 0, 5)], most=40) == []


async def test_a_solution_that_fails_is_an_error():
    with pytest.raises(ConfigError, match="the known solution does not pass its tests: wrong"):
        await surviving_mutants("def clamp(*a): return 1", WEAK)


def test_inputs_are_like_those_of_the_tests():
    code = "assert candidate([1, 2], 'ab') == 3\nassert other(5)\nassert f(x) == 1"
    assert calls_of([AssertTest(code, entry_points=("f",))]) == [("f", [[1, 2], "ab"])]
    calls = [("f", [5, "abc", [1, 2, 3], {"a": 1}, True]), ("f", [9, "x", [0], {}, False])]
    for name, args in similar_calls(calls, 200):
        assert name == "f"
        assert [type(value) for value in args] == [int, str, list, dict, bool]
        assert 0 <= args[0] <= 9
        assert all(0 <= number <= 9 for number in args[2])
    words = {word for text in similar_stdin(["2\n10 20\n", "2\n30 5\n"], 200) for word in text.split()}
    assert {int(word) for word in words} <= set(range(2, 31))
    assert len(words) > 12
    times = [text.strip() for text in similar_stdin(["03:15\n", "12:40\n"], 200) if text.count(":") == 1]
    assert all(3 <= int(time[:2]) <= 12 and 15 <= int(time[3:]) <= 40 for time in times)
    assert all("  " not in args[0] for _, args in similar_calls([("f", ["a b c"])], 100))


async def checked(tests, solution=CLAMP, truth=None):
    rows = [{"function": test.function, "args": list(test.args), "expected": test.expected} for test in tests]
    task = Task.from_row(verl_row("own", [user("Write clamp.")], truth or rows, {"solution": solution}))
    env = toolgym.make("CodeJudge-v0", tasks=[task])
    try:
        return await check_mutants(EnvSubject(env))
    finally:
        await env.close()


async def test_check_env_names_the_mutants_that_are_paid(monkeypatch):
    monkeypatch.setattr("toolgym.testing.mutants.check.SEEDS", (0,))
    with pytest.raises(ConformanceError, match=r"wrong programs earn the full reward: \d+ of \d+ mutants") as error:
        await checked(WEAK)
    assert "+    return" in str(error.value)
    assert await checked(STRONG) is None


async def test_an_env_without_a_program_says_so(monkeypatch):
    monkeypatch.setattr("toolgym.testing.mutants.check.SEEDS", (0,))
    env = toolgym.make("GSM8K-v0")
    try:
        assert "is not a Python program" in await check_mutants(EnvSubject(env))
    finally:
        await env.close()
