"""The real aviary: its own envs, wrapped, and rolled out by the runner with the tiny policy."""

from __future__ import annotations

import pytest

from tests.envs.foreign.sums import CALL, PROMPTS, printed
from toolgym.envs import StopReason, seed_tasks, wrap


@pytest.fixture
def aviary_env():
    core = pytest.importorskip("aviary.core")

    class SumsEnv(core.Environment):
        def __init__(self, task):
            self.task, self.closed = task, 0

        async def reset(self):
            def code_interpreter(code: str) -> str:
                """Run a program.

                Args:
                    code: the program
                """
                return printed(code)

            self.tools = [core.Tool.from_function(code_interpreter)]
            self.state = None
            return [core.Message(role=one["role"], content=one["content"]) for one in self.task.messages], self.tools

        async def step(self, action):
            if not isinstance(action, core.ToolRequestMessage):
                return [], float(action.content.strip() == f"#### {self.task.ground_truth}"), True, False
            return await self.exec_tool_calls(action, handle_tool_exc=True), 0.0, False, False

        async def close(self):
            self.closed += 1

    return SumsEnv


async def test_aviary_runs_the_tools(aviary_env):
    made = aviary_env(PROMPTS[0])
    async with wrap(made) as env:
        obs, info = await env.reset(seed=0)
        assert obs == list(PROMPTS[0].messages)
        assert info["tools"][0]["function"]["parameters"]["required"] == ["code"]
        result = await env.step(CALL + CALL.replace("6 * 7", "1 + 1") + CALL.replace("code_interpreter", "no"))
        assert [one["content"] for one in result.obs[:2]] == ["42", "2"]
        assert "Unknown tool 'no'" in result.obs[2]["content"]
        assert [one.status for one in result.info["tool_calls"]] == ["ok", "ok", "unknown_tool"]
        result = await env.step(f"#### {PROMPTS[0].ground_truth}")
        assert (result.reward, result.stop_reason) == (1.0, StopReason.ANSWERED)
    assert made.closed == 1


async def test_aviary_rolls_out(aviary_env, exact_rollout):
    make = lambda task: aviary_env(PROMPTS[int(task.id)])  # noqa: E731
    done = await exact_rollout(lambda: wrap(make, tasks=seed_tasks(range(4))))
    assert any(record.status == "ok" for one in done for record in one.tool_calls)
    assert {one.reward for one in done} <= {0.0, 1.0}


async def test_aviarys_own_env(aviary_env):
    from aviary.core import DummyEnv

    async with wrap(DummyEnv()) as env:
        await env.reset(seed=0)
        result = await env.step("hello")
        assert "No tool calls received" in result.obs[0]["content"]
        result = await env.step('<tool_call>{"name": "print_story", "arguments": {"story": "a"}}</tool_call>')
        assert (result.reward, result.done) == (1.0, True)
