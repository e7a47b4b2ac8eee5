"""The real skyrl-gym: its own envs, wrapped, and rolled out by the runner with the tiny policy."""

from __future__ import annotations

import pytest

from tests.envs.foreign.sums import CALL, PROMPTS
from toolgym.envs import StopReason, wrap


@pytest.fixture
def skyrl_gym():
    return pytest.importorskip("skyrl_gym")


def extras(task, **more):
    return {"reward_spec": {"ground_truth": str(task.ground_truth), "method": "rule"}, **more}


async def test_skyrl_gym_scores_and_replies(skyrl_gym):
    make = lambda task: skyrl_gym.make("gsm8k_multi_turn", extras=extras(task, max_turns=3))  # noqa: E731
    async with wrap(make, tasks=PROMPTS) as env:
        await env.reset(options={"task": PROMPTS[0]})
        result = await env.step("I think it is #### 1")
        assert "#### ANSWER" in result.obs[0]["content"]
        result = await env.step(f"#### {PROMPTS[0].ground_truth}")
        assert (result.reward, result.done, result.stop_reason) == (1.0, True, StopReason.ANSWERED)
        assert result.info["metrics"]["env/steps"] == 2
        await env.reset(options={"task": PROMPTS[0]})  # another object
        assert not (await env.step("#### 1")).done


async def test_skyrl_gym_rolls_out(skyrl_gym, exact_rollout):
    make = lambda task: skyrl_gym.make("gsm8k_multi_turn", extras=extras(task, max_turns=3))  # noqa: E731
    done = await exact_rollout(lambda: wrap(make, tasks=PROMPTS))
    assert {one.task_id for one in done} == {task.id for task in PROMPTS}


async def test_skyrl_gyms_tool_groups_are_tools(skyrl_gym, exact_rollout):
    def write_call(call):
        return f"<tool><python>{call.arguments['code']}</python></tool>"

    def make(task):
        return skyrl_gym.make("searchcode", extras=extras(task, max_turns=4))

    async with wrap(make, tasks=PROMPTS, write_call=write_call) as env:
        _, info = await env.reset(options={"task": PROMPTS[0]})
        assert [one["function"]["name"] for one in info["tools"]] == ["search", "python"]
        result = await env.step(CALL.replace("code_interpreter", "python"))
        assert result.obs == [{"role": "tool", "content": "42", "tool_call_id": "call_0", "name": "python"}]
        result = await env.step(f"<solution>#### {PROMPTS[0].ground_truth}</solution>")
        assert (result.reward, result.done) == (1.0, True)
    await exact_rollout(lambda: wrap(make, tasks=PROMPTS, write_call=write_call))
