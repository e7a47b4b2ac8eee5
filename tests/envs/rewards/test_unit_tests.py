from __future__ import annotations

import asyncio

import pytest

from toolgym.envs.rewards.base import Outcome
from toolgym.envs.rewards.unit_tests import UnitTests, final_program
from toolgym.envs.tasks.task import Task
from toolgym.envs.types import StopReason
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.message import user
from toolgym.tools.sandbox import ExecutionResult, ExecutionStatus, Sandbox, SharedSandbox

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
    assert score.components == {"tests_passed": passed, "tests": 4.0, "has_program": 1.0}


@pytest.mark.parametrize(
    "text",
    ["", "print(int(input()) * 2)", f"<think>{RIGHT}</think>I do not know.", RIGHT.removesuffix("```")],
)
async def test_a_turn_without_a_closed_block_scores_nothing(sandbox, text):
    score = await UnitTests(sandbox)(outcome(text))
    assert (score.value, score.components["has_program"]) == (0.0, 0.0)


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


async def test_its_own_sandbox_is_made_once_and_closed():
    async with UnitTests() as scorer:
        assert scorer._own is None
        scores = await asyncio.gather(*(scorer(outcome(RIGHT)) for _ in range(3)))
        assert [one.value for one in scores] == [1.0] * 3
        own = scorer._own
    assert scorer._own is None
    with pytest.raises(SandboxError, match="closed"):
        await own.run("1")


async def test_wrong_arguments_and_ground_truths(sandbox):
    with pytest.raises(ConfigError, match="reward must be"):
        UnitTests(reward="most")
    with pytest.raises(ConfigError, match="total_timeout"):
        UnitTests(total_timeout=0)
    with pytest.raises(ConfigError, match="tests must be"):
        await UnitTests(sandbox)(outcome(RIGHT, truth=7))
