"""The real tau2-bench: its own envs, wrapped, and rolled out by the runner with the tiny policy."""

from __future__ import annotations

import threading

import pytest

from toolgym.envs import wrap
from toolgym.envs.types import EpisodeFailedError


@pytest.fixture
def tau2():
    gym_agent = pytest.importorskip("tau2.gym.gym_agent")
    pytest.importorskip("tau2.registry")
    return gym_agent


async def test_tau2s_solo_tasks(tau2, exact_rollout):
    make = lambda: tau2.AgentGymEnv(domain="mock", task_id="create_task_1", solo_mode=True)  # noqa: E731
    async with wrap(make) as env:
        obs, _ = await env.reset(seed=0)
        assert obs[0]["role"] == "system"
        assert "create_task" in [one.name for one in env.tool_schemas]
        call = '{"name": "create_task", "arguments": {"user_id": "user_1", "title": "Important Meeting"}}'
        result = await env.step(f"<tool_call>{call}</tool_call>")
        assert result.obs[0]["role"] == "tool"
        assert "Important Meeting" in result.obs[0]["content"]
        result = await env.step('<tool_call>{"name": "done", "arguments": {}}</tool_call>')
        assert (result.done, result.reward) == (True, 1.0)
    await exact_rollout(lambda: wrap(make))


async def test_tau2s_users_reply_and_its_threads_end(tau2):
    model = {"user_llm": "gpt-4o", "user_llm_args": {"mock_response": "Please create the task Important Meeting."}}
    async with wrap(lambda: tau2.AgentGymEnv(domain="mock", task_id="create_task_1", **model)) as env:
        obs, _ = await env.reset(seed=0)
        assert obs[1] == {"role": "user", "content": "Please create the task Important Meeting."}
        result = await env.step("<think>Who is it?</think>What do you want?")
        assert result.obs == [obs[1]]
        simulations = [one for one in threading.enumerate() if "_run_orchestrator" in one.name]
        assert simulations
    for one in simulations:
        one.join(20)
        assert not one.is_alive()
    model["user_llm_args"] = {"mock_response": RuntimeError("no model"), "num_retries": 0}
    async with wrap(lambda: tau2.AgentGymEnv(domain="mock", task_id="create_task_1", **model)) as env:
        with pytest.raises(EpisodeFailedError, match="ended at once"):
            await env.reset(seed=0)


async def test_tau2s_policy_may_be_the_user(tau2):
    model = {"agent_llm": "gpt-4o", "agent_llm_args": {"mock_response": "Done!"}}
    async with wrap(lambda: tau2.UserGymEnv(domain="mock", task_id="create_task_1", **model)) as env:
        obs, _ = await env.reset(seed=0)
        assert "Important Meeting" in obs[0]["content"]
        assert obs[1]["content"] == "Hi! How can I help you today?"
        assert (await env.step("Please make a task.")).obs[0]["content"] == "Done!"
