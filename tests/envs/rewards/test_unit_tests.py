from __future__ import annotations

import asyncio
import shutil

import pytest

from toolgym.envs.rewards.base import Outcome
from toolgym.envs.rewards.unit_tests import UnitTests, final_program
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import EpisodeFailedError, PolicyFaultError, StopReason
from toolgym.tools.concurrency.deadline import DeadlineError
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.message import user
from toolgym.tools.sandbox import ExecutionResult, ExecutionStatus, Sandbox, SharedSandbox
from toolgym.tools.sandbox.local.host import languages

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler is installed")

TRUTH = {"inputs": ["1\n", "2\n", "3\n", "4\n"], "outputs": ["2", "4", "6", "8"]}
RIGHT = "```python\nprint(int(input()) * 2)\n```"
HALF = "```python\nn = int(input())\nprint(n * 2 if n < 3 else 0)\n```"


def outcome(text, truth=TRUTH, reason=StopReason.ANSWERED):
    return Outcome(Task((user("?"),), truth), (), 1, (), text, reason)


@pytest.fixture
async def sandbox():
    async with SharedSandbox(preload=()) as made:
        yield made


@pytest.mark.parametrize(
    ("text", "reward", "value", "passed"),
    [(RIGHT, "all", 1.0, 1.0), (RIGHT, "fraction", 1.0, 1.0), (HALF, "all", 0.0, 0.5), (HALF, "fraction", 0.5, 0.5)],
)
async def test_all_tests_or_the_fraction_that_passes(sandbox, text, reward, value, passed):
    score = await UnitTests(sandbox, reward=reward)(outcome(f"See:\n{text}"))
    assert score.value == value
    nonzero = {name: number for name, number in score.components.items() if number}
    assert nonzero == {"tests_passed": passed, "tests": 4.0, "has_program": 1.0}


@pytest.mark.parametrize(
    ("program", "language", "component"),
    [
        ("1 / 0", "python", "error"),
        ("while True: pass", "python", "timed_out"),
        ("print('x' * (1 << 22))", "python", "over_limit"),
        pytest.param("int main() {", "cpp", "compile_error", marks=needs_compiler),
    ],
)
async def test_components_tell_why_a_program_failed(sandbox, program, language, component):
    scorer = UnitTests(sandbox, timeout=0.5, language=language)
    score = await scorer(outcome(f"```{language}\n{program}\n```"))
    shares = {"no_program", "error", "timed_out", "over_limit", "compile_error", "too_slow"}
    assert score.value == 0.0
    assert {name for name in shares if score.components[name]} == {component}


async def test_a_language_that_is_not_installed_is_no_score(sandbox, monkeypatch):
    monkeypatch.setattr(languages, "SEARCH_PATH", "/nowhere")
    with pytest.raises(ConfigError, match="language 'rust' needs rustc"):
        await UnitTests(sandbox, language="rust")(outcome("```rust\nfn main() {}\n```"))


@pytest.mark.parametrize(
    "text",
    ["", "print(int(input()) * 2)", f"<think>{RIGHT}</think>I do not know.", RIGHT.removesuffix("```")],
)
async def test_a_turn_without_a_closed_block_scores_nothing(sandbox, text):
    score = await UnitTests(sandbox)(outcome(text))
    assert (score.value, score.components["has_program"], score.components["no_program"]) == (0.0, 0.0, 1.0)


async def test_an_episode_that_ended_otherwise_scores_nothing(sandbox):
    assert (await UnitTests(sandbox)(outcome(RIGHT, reason=StopReason.MAX_TURNS))).value == 0.0


def test_the_last_block_is_the_program():
    assert final_program(f"{HALF}\nBetter:\n{RIGHT}") == "print(int(input()) * 2)"


async def test_a_program_that_is_too_slow_in_all_has_failed(sandbox):
    scorer = UnitTests(sandbox, total_timeout=0.5, reward="fraction")
    score = await scorer(outcome("```python\nwhile True: pass\n```"))
    assert (score.value, score.components["too_slow"]) == (0.0, 1.0)


class Broken(Sandbox):
    async def execute(self, request):
        return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message="no room")


async def test_a_sandbox_that_fails_is_no_score():
    with pytest.raises(SandboxError, match="no room"):
        await UnitTests(Broken())(outcome(RIGHT))


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"code": "assert f(1) == ("}, "SyntaxError"),
        ({"code": "assert f(1) == 1", "setup": "import no_such_module"}, "no_such_module"),
        ({"code": "assert f(1) == 1", "setup": "LIMIT = nothing"}, "NameError"),
        ({"code": "assert f(1) == 1", "helpers": "1 / 0"}, "ZeroDivisionError"),
        ({"code": "class Tree: pass\nassert f(Tree()) == 1"}, "an object of Tree cannot be handed"),
    ],
)
@pytest.mark.parametrize("program", ["def f(x): return 1", "1 / 0"])
async def test_a_test_that_cannot_be_judged_is_no_score(sandbox, test, said, program):
    if "Tree" in said and "/" in program:  # a program that does not begin has failed before
        assert (await UnitTests(sandbox)(outcome(f"```python\n{program}\n```", [test]))).value == 0.0
        return
    with pytest.raises(EpisodeFailedError, match=f"test 1 cannot be judged: .*{said}") as caught:
        await UnitTests(sandbox, reward="fraction")(outcome(f"```python\n{program}\n```", [test]))
    assert not caught.value.stop_reason.in_group_statistics


@pytest.mark.parametrize(
    "returned",
    ["object()", "[object()]", "10 ** 5000", "{((1,), 2): 3}", "{((1,),): {frozenset(): 1}}", "lambda: 1", "'\\ud800'",
     "float('nan')", "eval('[' * 60 + ']' * 60)", "__import__('sys')", "10 ** 4000", "range(10 ** 30)", "nested(440)",
     "nested(30000)", "type('E', (Exception,), {})()", "1j", "b''", "__import__('decimal').Decimal('sNaN')",
     "__import__('datetime').date.today()", "{1: {2: {(3, (4,)): 5}}}", "range", "[ValueError('x'), KeyError]",
     "__import__('sys').setrecursionlimit(9 ** 6) or nested(400)", "__import__('numpy').longdouble(1)",
     "__import__('pandas').Series([1, 2], dtype='Int64')",
     pytest.param("__import__('pandas').interval_range(0, 3)", marks=pytest.mark.long)],
)  # fmt: skip
async def test_no_value_that_a_program_chooses_lets_it_off_a_score_of_0(sandbox, returned):
    nested = "def nested(n):\n    made = []\n    for _ in range(n): made = [made]\n    return made"
    program = f"{nested}\ndef f(*x): return {returned}"
    tests = [
        {"function": "f", "args": [1], "expected": 0.5, "tolerance": 1e-5},
        {"function": "f", "args": [1], "expected": [[1], {"a": 2}]},
        {"code": "assert f(1) == 5"},
        {"code": "assert abs(f(1) - 5) < 1"},
        {"code": "assert f(f(1)) == 5"},
        {"code": "x = [f(1)]\nassert f(x, *x) == 5"},
    ]
    score = await UnitTests(sandbox, reward="fraction")(outcome(f"```python\n{program}\n```", tests))
    assert score.value == 0.0


async def test_a_tolerance_of_ones_own(sandbox):
    truth = {"inputs": [""], "outputs": ["3.1"]}
    for tolerance, value in ((None, 0.0), (0.1, 1.0), (0, 0.0)):
        score = await UnitTests(sandbox, tolerance=tolerance)(outcome("```python\nprint(3.14)\n```", truth))
        assert score.value == value


async def test_its_own_sandbox_is_made_once_and_closed():
    async with UnitTests() as scorer:
        assert scorer._made is None
        scores = await asyncio.gather(*(scorer(outcome(RIGHT)) for _ in range(3)))
        assert [score.value for score in scores] == [1.0] * 3
        sandbox = scorer._made
    assert scorer._made is None
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("1")


async def test_wrong_arguments_and_ground_truths(sandbox):
    with pytest.raises(ConfigError, match="reward must be"):
        UnitTests(reward="most")
    with pytest.raises(ConfigError, match="total_timeout"):
        UnitTests(total_timeout=0)
    with pytest.raises(ConfigError, match="tolerance"):
        UnitTests(tolerance=2)
    with pytest.raises(ConfigError, match="tests must be"):
        await UnitTests(sandbox)(outcome(RIGHT, truth=7))


STOPS = """```python
import os
for pid in range(1, 40):
    try:
        pid != os.getpid() and os.kill(pid, 19)
    except OSError:
        pass
```"""


@pytest.mark.parametrize("sandbox_works", [True, False])
async def test_a_program_that_stops_the_processes_that_watch_it_is_to_blame(sandbox, monkeypatch, sandbox_works):
    monkeypatch.setattr("toolgym.envs.rewards.unit_tests.WALL_GRACE", 0.0)
    scorer = UnitTests(sandbox, total_timeout=0.2)
    assert scorer.score_timeout > scorer.wall_timeout + 60
    if not sandbox_works:
        run = SharedSandbox.run

        async def run_no_control(self, code, **options):
            return (
                ExecutionResult(ExecutionStatus.SANDBOX_ERROR) if code == "pass" else await run(self, code, **options)
            )

        monkeypatch.setattr(SharedSandbox, "run", run_no_control)
    with pytest.raises(PolicyFaultError if sandbox_works else DeadlineError):
        await scorer(outcome(STOPS))
