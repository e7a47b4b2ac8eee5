"""The real OpenEnv: its own envs, wrapped, and rolled out by the runner with the tiny policy."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from tests.envs.foreign.sums import CALL, PROMPTS, printed
from toolgym.envs import StopReason, wrap
from toolgym.tools import ToolSchema


@pytest.fixture
def openenv_classes():
    interfaces = pytest.importorskip("openenv.core.env_server.interfaces")
    from fastmcp import FastMCP
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.types import Action, Observation, State

    class ToolsEnv(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            server = FastMCP("sums")

            @server.tool
            def code_interpreter(code: str) -> str:
                """Run a program."""
                return printed(code)

            super().__init__(server)

        def reset(self, seed=None, episode_id=None, **kwargs):
            return Observation(metadata={"seed": seed})

        def _step_impl(self, action, timeout_s=None, **kwargs):
            return Observation()

        @property
        def state(self):
            return State()

    class CodeInterpreterAction(Action):
        """Run a program."""

        code: str

    class CodeObservation(Observation):
        output: str = ""

    class TypedEnv(interfaces.Environment[CodeInterpreterAction, CodeObservation, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self.steps = 0

        def reset(self, seed=None, episode_id=None, **kwargs):
            self.steps = 0
            task = PROMPTS[(seed or 0) % 4]
            return CodeObservation(output=task.messages[-1]["content"])

        def step(self, action, timeout_s=None, **kwargs):
            self.steps += 1
            return CodeObservation(output=printed(action.code), reward=0.5, done=self.steps == 3)

        @property
        def state(self):
            return State(step_count=self.steps)

    return {"tools": ToolsEnv, "typed": TypedEnv, "action": CodeInterpreterAction, "observation": CodeObservation}


async def test_openenvs_mcp_tools(openenv_classes, exact_rollout):
    async with wrap(openenv_classes["tools"], tasks=PROMPTS) as env:
        await env.reset(options={"task": PROMPTS[0]})
        assert [one.name for one in env.tool_schemas] == ["code_interpreter"]
        result = await env.step(CALL)
        assert [one["content"] for one in result.obs] == ["42"]
        assert (await env.step("#### 42")).stop_reason is StopReason.ANSWERED
    done = await exact_rollout(lambda: wrap(openenv_classes["tools"], tasks=PROMPTS))
    assert any(record.status == "ok" for one in done for record in one.tool_calls)


async def test_openenvs_typed_actions(openenv_classes, exact_rollout):
    async with wrap(openenv_classes["typed"]) as env:
        obs, _ = await env.reset(seed=1)
        assert obs == [PROMPTS[1].messages[-1]]
        result = await env.step(CALL + CALL)
        assert ([one["content"] for one in result.obs], result.reward) == (["42", "42"], 1.0)
        result = await env.step(CALL + CALL)
        assert (result.reward, result.done) == (0.5, True)
    done = await exact_rollout(lambda: wrap(openenv_classes["typed"]))
    assert any(one.reward >= 0.5 for one in done)


@contextlib.contextmanager
def served(app):
    """A server of the app in a thread; gives its address."""
    import uvicorn

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        for _ in range(1200):
            if server.started:
                break
            threading.Event().wait(0.05)
        assert server.started
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


async def test_openenvs_clients(openenv_classes, exact_rollout):
    from openenv.core import GenericEnvClient
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.mcp_client import MCPToolClient

    kinds = openenv_classes
    typed = create_fastapi_app(kinds["typed"], kinds["action"], kinds["observation"], max_concurrent_envs=16)
    with served(typed) as url:
        parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
        schema = ToolSchema("code_interpreter", "Run a program.", parameters)
        async with wrap(lambda: GenericEnvClient(base_url=url), action_type=schema) as env:
            obs, _ = await env.reset(seed=1)
            assert obs == [PROMPTS[1].messages[-1]]
            result = await env.step(CALL)
            assert (result.obs[0]["content"], result.reward) == ("42", 0.5)
        async with wrap(lambda: GenericEnvClient(base_url=url).sync(), action_type=schema) as env:
            await env.reset(seed=1)
            assert (await env.step(CALL)).obs[0]["content"] == "42"
        await exact_rollout(lambda: wrap(lambda: GenericEnvClient(base_url=url), action_type=schema))
    tools = create_fastapi_app(kinds["tools"], CallToolAction, CallToolObservation, max_concurrent_envs=16)
    with served(tools) as url:
        async with wrap(lambda: MCPToolClient(base_url=url), tasks=PROMPTS) as env:
            await env.reset(options={"task": PROMPTS[0]})
            assert (await env.step(CALL)).obs[0]["content"] == "42"
        await exact_rollout(lambda: wrap(lambda: MCPToolClient(base_url=url), tasks=PROMPTS))
