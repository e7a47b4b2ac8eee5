"""`wrap` on objects shaped like those of OpenEnv, which `real/test_openenv.py` has for real."""

from __future__ import annotations

import json
import sys
import types

import pydantic
import pytest

from tests.actors import call
from tests.envs.foreign.shapes import TASK, class_of, contents
from toolgym.envs import StopReason, wrap
from toolgym.tools import ToolSchema
from toolgym.tools.errors import ConfigError


class Action(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    metadata: dict = {}


class CodeInterpreterAction(Action):
    """Run a program."""

    code: str

    @pydantic.field_validator("code")
    @classmethod
    def short(cls, code):
        if len(code) > 20:
            raise ValueError("programs have at most 20 characters")
        return code


class Observation(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    done: bool = False
    reward: float | None = None
    metadata: dict = {}


class ListToolsAction(Action):
    pass


class CallToolAction(Action):
    tool_name: str
    arguments: dict = {}


OpenEnvBase = class_of("openenv.core.env_server.interfaces", "Environment")


class TypedEnv(OpenEnvBase):
    def __init__(self):
        self.steps = self.closed = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(prompt=f"seed {seed}", metadata=kwargs)

    def step(self, action: CodeInterpreterAction, timeout_s=None):
        self.steps += 1
        return Observation(output=action.code, lines=[self.steps], reward=0.5, done=self.steps == 3)

    def close(self):
        self.closed += 1


class MCPEnvironment(OpenEnvBase):
    def reset(self):
        return Observation()

    async def step_async(self, action):
        if isinstance(action, ListToolsAction):
            schema = {"type": "object", "properties": {"code": {"type": "string"}}}
            return Observation(tools=[types.SimpleNamespace(name="run", description=None, input_schema=schema)])
        code = action.arguments.get("code")
        if code == "fail":
            return Observation(result=None, error=types.SimpleNamespace(message="it failed"))
        kind = "image" if code == "picture" else "text"
        return Observation(result={"content": [{"type": kind, "text": code}], "data": code}, error=None, reward=1.0)


class Client(class_of("openenv.core.env_client", "EnvClient")):
    def __init__(self):
        self.closed, self.actions = 0, []

    async def reset(self, **kwargs):
        return types.SimpleNamespace(observation={"text": f"seed {kwargs['seed']}"}, reward=None, done=False)

    async def step(self, action):
        self.actions.append(action)
        return types.SimpleNamespace(observation={"text": "ok"}, reward=2, done=True)

    async def close(self):
        self.closed += 1


@pytest.fixture
def openenv(monkeypatch):
    module = types.ModuleType("openenv.core.env_server.mcp_types")
    module.ListToolsAction, module.CallToolAction = ListToolsAction, CallToolAction
    for name in ("openenv", "openenv.core", "openenv.core.env_server"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


async def test_openenvs_types_of_actions_are_tools():
    made = TypedEnv()
    async with wrap(made, action_type=CodeInterpreterAction) as env:
        obs, info = await env.reset(seed=4, options={"split": "test"})
        assert obs == [{"role": "user", "content": "seed 4"}]
        assert info["env_info"] == {"split": "test"}
        assert info["tools"][0]["function"] == {
            "name": "code_interpreter",
            "description": "Run a program.",
            "parameters": {
                "additionalProperties": False,
                "properties": {"code": {"type": "string"}},
                "required": ["code"],
                "type": "object",
            },
        }
        result = await env.step(call("code_interpreter", code="1" * 21) + call("code_interpreter", code="1"))
        assert "at most 20 characters" in contents(result)[0]
        assert json.loads(contents(result)[1]) == {"output": "1", "lines": [1]}
        assert [one.status for one in result.info["tool_calls"]] == ["error", "ok"]
        result = await env.step(call("code_interpreter", code="1") * 3)
        assert (result.reward, result.done, made.steps) == (1.0, True, 3)
    assert made.closed == 1
    async with wrap(TypedEnv, to_action=lambda turn: CodeInterpreterAction(code=turn.text)) as env:
        await env.reset(seed=0)
        assert env.tool_schemas == []
        assert "at most 20" in contents(await env.step("1" * 21))[0]
        assert (await env.step("1")).reward == 0.5
    with pytest.raises(ConfigError, match="action_type="):
        wrap(Client())


async def test_openenvs_mcp_tools_take_calls(openenv):
    async with wrap(MCPEnvironment, tasks=[TASK]) as env:
        obs, _ = await env.reset(seed=0)
        assert obs == list(TASK.messages)
        result = await env.step(call("run", code="1") + call("run", code="fail"))
        assert (contents(result), result.reward) == (["1", "it failed"], 1.0)
        assert [one.status for one in result.info["tool_calls"]] == ["ok", "error"]
        assert (await env.step("#### 42")).stop_reason is StopReason.ANSWERED
        await env.reset(seed=0)
        with pytest.raises(ConfigError, match="type 'image'"):
            await env.step(call("run", code="picture"))
    async with wrap(MCPEnvironment) as env:
        with pytest.raises(ConfigError, match="empty observation"):
            await env.reset(seed=0)


async def test_openenvs_client_is_awaited():
    made = Client()
    async with wrap(made, action_type=ToolSchema("move", "Move.")) as env:
        obs, _ = await env.reset(seed=2**40 + 3)
        assert obs[0]["content"] == "seed 3"
        result = await env.step(call("move"))
        assert (result.reward, result.done, made.actions) == (2.0, True, [{}])
    assert made.closed == 1
