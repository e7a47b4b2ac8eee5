from __future__ import annotations

import pytest

from toolgym.tools.errors import ConfigError
from toolgym.tools.judge.run_tests import RunTestsTool
from toolgym.tools.sandbox import SharedSandbox

TESTS = [{"stdin": f"{n}\n", "expected": str(n * 2)} for n in range(6)]


@pytest.fixture
async def tool():
    async with SharedSandbox(preload=()) as sandbox:
        made = RunTestsTool(sandbox=sandbox)
        yield made
        await made.close()


async def call(tool, code, tests=TESTS):
    instance = await tool.create(tests=tests)
    result = await tool.execute(instance, {"code": code})
    await tool.release(instance)
    return result


async def test_it_says_that_all_pass(tool):
    result = await call(tool, "print(int(input()) * 2)")
    assert result.text == "6 of 6 tests passed."
    assert result.metrics == {"passed": 6, "tests": 6}


async def test_it_shows_the_first_failures_cut_short(tool):
    result = await call(tool, "import sys\nn = int(input())\nprint('x' * 5000 if n == 1 else 0)")
    assert result.text.startswith("1 of 6 tests passed.\n\nTest 2: wrong\nInput:\n1\n")
    assert "expected 2" in result.text
    assert result.text.endswith("[2 more failures]")
    assert len(result.text) < 2500
    result = await call(tool, "1 / 0")
    assert "ZeroDivisionError" in result.text


async def test_it_shows_calls_and_assertions(tool):
    tests = [{"function": "f", "args": [1, "a"], "expected": 2}, {"code": "assert f(1, 'b') == 3"}]
    result = await call(tool, "def f(a, b): return 5", tests)
    assert "f(1, 'a')\ngot 5, expected 2" in result.text
    assert "assert f(1, 'b') == 3\ngot 5, expected 3" in result.text


async def test_a_task_without_tests(tool):
    assert (await call(tool, "1", None)).text == "[This task has no example tests]"


async def test_a_fork_has_the_same_tests(tool):
    instance = await tool.create(tests=TESTS)
    twin = await tool.fork(instance)
    assert (await tool.execute(twin, {"code": "print(int(input()) * 2)"})).text == "6 of 6 tests passed."
    await tool.release(instance)
    await tool.release(twin)


async def test_wrong_options_and_tests(tool):
    with pytest.raises(ConfigError, match="unknown option 'timeout'"):
        RunTestsTool({"timeout": 1})
    with pytest.raises(ConfigError, match="must have the argument 'code'"):
        RunTestsTool({}, {"type": "function", "function": {"name": "t", "description": "", "parameters": {}}})
    with pytest.raises(ConfigError, match="a test cannot be used"):
        await tool.create(tests=[{"a": 1}])
