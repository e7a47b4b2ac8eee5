"""`wrap` on objects shaped like those of aviary, which `real/test_aviary.py` has for real."""

from __future__ import annotations

import json
import sys
import types

import pydantic
import pytest

from tests.actors import call
from tests.envs.foreign.shapes import class_of, contents
from toolgym.envs import StopReason, seed_tasks, wrap
from toolgym.tools.errors import ConfigError


class AviaryMessage(pydantic.BaseModel):
    role: str = "user"
    content: str | None = None

    @property
    def deserialized_content(self):
        return json.loads(self.content) if self.content and self.content.startswith("[{") else self.content


class AviaryFunction(pydantic.BaseModel):
    name: str
    arguments: dict


class AviaryCall(pydantic.BaseModel):
    id: str
    function: AviaryFunction


class AviaryRequest(AviaryMessage):
    role: str = "assistant"
    tool_calls: list[AviaryCall] = []


class AviaryResponse(AviaryMessage):
    role: str = "tool"
    name: str
    tool_call_id: str


class AviaryInfo(pydantic.BaseModel):
    name: str
    description: str
    parameters: dict | None


class AviaryEnv(class_of("aviary.env", "Environment")):
    def __init__(self, number=42):
        self.number, self.closed, self.heard = number, 0, []

    async def reset(self):
        parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
        tools = [
            types.SimpleNamespace(info=AviaryInfo(name="code_interpreter", description="Run.", parameters=parameters)),
            types.SimpleNamespace(info=AviaryInfo(name="stop", description="Stop.", parameters=None)),
        ]
        return [AviaryMessage(content=f"Find {self.number}.")], tools

    async def step(self, action):
        self.heard.append(action)
        if not isinstance(action, AviaryRequest):
            return [AviaryMessage(content="Call a tool.")], 0.0, False, False
        calls = action.tool_calls
        answers = [
            AviaryResponse(name=one.function.name, tool_call_id=one.id, content=str(one.function.arguments.get("code")))
            for one in calls
        ]
        if any(one.content == "picture" for one in answers):
            answers[0].content = json.dumps([{"type": "image_url", "image_url": {"url": "data:,"}}])
        stopped = any(one.function.name == "stop" for one in calls)
        return answers[::-1], 0.5 * len(calls), stopped, False

    async def close(self):
        self.closed += 1


@pytest.fixture
def aviary(monkeypatch):
    core = types.ModuleType("aviary.core")
    core.Message, core.ToolCall, core.ToolRequestMessage = AviaryMessage, AviaryCall, AviaryRequest
    monkeypatch.setitem(sys.modules, "aviary", types.ModuleType("aviary"))
    monkeypatch.setitem(sys.modules, "aviary.core", core)


async def test_aviary_gets_calls_and_answers_them_in_order(aviary):
    made = AviaryEnv()
    async with wrap(made) as env:
        obs, info = await env.reset(seed=0)
        assert obs == [{"role": "user", "content": "Find 42."}]
        assert [one["function"]["name"] for one in info["tools"]] == ["code_interpreter", "stop"]
        assert contents(await env.step("hello")) == ["Call a tool."]
        two = call("code_interpreter", code="1") + "<tool_call>{</tool_call>" + call("code_interpreter", code="2")
        result = await env.step("So: " + two)
        assert [one["tool_call_id"] for one in result.obs] == ["call_0", "call_1", "call_2"]
        assert [contents(result)[0], contents(result)[2]] == ["1", "2"]
        assert (result.reward, result.info["metrics"]["bad_calls"]) == (1.0, 1)
        assert made.heard[-1].content == "So:"
        result = await env.step(call("stop"))
        assert (result.reward, result.stop_reason) == (0.5, StopReason.ANSWERED)
        await env.reset(seed=0)
        with pytest.raises(ConfigError, match="expected an image as a data URL"):
            await env.step(call("code_interpreter", code="picture"))
    assert made.closed == 1


async def test_aviary_rolls_out_with_exact_tokens(aviary, exact_rollout):
    def make(task):
        return AviaryEnv(int(task.id))

    done = await exact_rollout(
        lambda: wrap(make, tasks=seed_tasks(range(4))), max_new_tokens=16, max_response_tokens=50
    )
    assert {one.messages[0]["content"] for one in done} == {f"Find {n}." for n in range(4)}
    assert all(
        [one["function"]["name"] for one in trajectory.tools] == ["code_interpreter", "stop"] for trajectory in done
    )
