"""`Math-v0`: answers compared as mathematics."""

from __future__ import annotations

import importlib.util
import json

import pytest

import toolgym
from toolgym.envs import Task, load_tasks
from toolgym.envs.library.math_env import math_tasks
from toolgym.tools.errors import ConfigError

pytestmark = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs the extra math")


def task(truth):
    return Task(({"role": "user", "content": "q"},), ground_truth=truth, id="t")


async def reward(env, truth, answer):
    await env.reset(options={"task": task(truth)})
    return (await env.step(answer)).reward


async def test_answers_in_other_forms_are_right():
    async with toolgym.make("Math-v0") as env:
        assert await reward(env, r"\frac{1}{2}", r"It is \boxed{0.5}.") == 1.0
        assert await reward(env, ["3", r"\sqrt{2}"], r"\boxed{2^{1/2}}") == 1.0
        assert await reward(env, 3, "#### 3.0") == 1.0
        assert await reward(env, 3, r"\boxed{4}") == 0.0


@pytest.mark.parametrize("one", math_tasks().tasks, ids=lambda one: one.id)
async def test_each_embedded_answer_is_mathematics(one):
    """An answer without a box goes to math-verify, and a ground truth that it cannot read would raise."""
    async with toolgym.make("Math-v0") as env:
        await env.reset(options={"task": one})
        assert (await env.step(f"The answer is ${one.ground_truth}$.")).reward == 1.0
        await env.reset(options={"task": one})
        assert (await env.step(r"\boxed{-123456}")).reward == 0.0


async def test_an_interpreter_if_asked_for():
    async with toolgym.make("Math-v0", code_interpreter=True) as env:
        await env.reset(options={"task": task("42")})
        call = {"name": "code_interpreter", "arguments": {"code": "print(6*7)"}}
        result = await env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert result.obs[0]["content"] == "42"
        assert (await env.step(r"\boxed{42}")).reward == 1.0


@pytest.mark.parametrize(("truth", "said"), [(None, "no ground truth"), ([], "no ground truth"), ({"a": 1}, "'a'")])
async def test_a_task_that_it_cannot_use_is_the_users_error(truth, said):
    async with toolgym.make("Math-v0") as env:
        with pytest.raises(ConfigError, match=said):
            await env.reset(options={"task": task(truth)})


def test_the_problems_are_rows_of_verls():
    tasks = math_tasks().tasks
    assert len({one.messages[-1]["content"] for one in tasks}) == 40
    assert [load_tasks([one.to_row()]).tasks[0] for one in tasks] == list(tasks)
