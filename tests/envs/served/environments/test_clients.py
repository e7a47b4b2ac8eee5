"""The trainers' own clients, where they are installed, against the server as a user starts it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
import urllib.request

import jsonschema
import pytest

from tests.serve_command import running
from toolgym.envs.tasks.arithmetic import ArithmeticTasks

pytestmark = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("openenv", "openreward"))), reason="needs openenv or openreward"
)

CODE = {"code": "print(6*7)"}


@pytest.fixture(scope="module")
def url():
    """A server of CodeInterpreter-v0."""
    with running("openenv", "CodeInterpreter-v0", "--num-tasks", "6") as server:
        yield server.url


@pytest.fixture
def openreward(url, monkeypatch):
    """The client of the Open Reward Standard. It looks for sessions at `sessions.HOST`, unless it is told where."""
    monkeypatch.setenv("OPENREWARD_SESSION_URL", url)
    return pytest.importorskip("openreward")


@pytest.fixture
def errors(openreward):
    """Its exceptions."""
    return pytest.importorskip("openreward.api.errors")


def sessions(url):
    with urllib.request.urlopen(f"{url}/health", timeout=60) as response:
        return json.load(response)["sessions"]


def none_is_left(url, seconds=60):
    """Whether all sessions end: a client may be gone before its server has closed what it had."""
    deadline = time.monotonic() + seconds
    while sessions(url) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sessions(url) == 0


def truth(index, split="train"):
    return f"#### {ArithmeticTasks(split).task(index).ground_truth}"


async def test_openenvs_generic_client(url):
    openenv = pytest.importorskip("openenv.core.generic_client")
    async with openenv.GenericEnvClient(base_url=url) as env:
        begun = await env.reset(split="train", index=2)
        assert begun.observation["messages"][1]["content"] == ArithmeticTasks().task(2).messages[1]["content"]
        text = f'<tool_call>{{"name": "code_interpreter", "arguments": {json.dumps(CODE)}}}</tool_call>'
        stepped = await env.step({"text": text})
        assert (stepped.observation["messages"][0]["content"], stepped.reward, stepped.done) == ("42", 0.0, False)
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            await env.step({"code": "print(1)"})
        stepped = await env.step({"text": truth(2)})
        assert (stepped.reward, stepped.done, stepped.metadata["stop_reason"]) == (1.0, True, "answered")
        assert (await env.state())["step_count"] == 2
        with pytest.raises(RuntimeError, match="is over"):
            await env.step({"text": "more"})
    assert none_is_left(url)


def test_openenvs_sync_client(url):
    openenv = pytest.importorskip("openenv.core.generic_client")
    with openenv.GenericEnvClient(base_url=f"{url}/codeinterpreter-v0").sync() as env:
        first, again = (env.reset(seed=4).observation["messages"] for _ in range(2))
        assert first == again
        stepped = env.step({"type": "call_tool", "tool_name": "code_interpreter", "arguments": CODE})
        assert stepped.observation["result"] == "42"


async def test_openenvs_mcp_client(url):
    mcp = pytest.importorskip("openenv.core.mcp_client")
    async with mcp.MCPToolClient(base_url=url) as env:
        assert [tool.name for tool in await env.list_tools()] == ["code_interpreter", "submit_answer"]
        begun = await env.reset(split="train", index=2)
        assert begun.observation.messages[0]["role"] == "system"
        assert await env.call_tool("code_interpreter", **CODE) == "42"
        stepped = await env.step(mcp.CallToolAction(tool_name="submit_answer", arguments={"answer": truth(2)}))
        assert (stepped.reward, stepped.done, stepped.observation.tool_name) == (1.0, True, "submit_answer")
        assert (await env.state()).step_count == 2
    assert none_is_left(url)


def test_openenvs_own_validation_of_a_url(url):
    validation = pytest.importorskip("openenv.cli._validation")
    report = validation.validate_running_environment(url)
    assert report["passed"], [one for one in report["criteria"] if not one["passed"]]


def test_openenvs_runtime_validation(url):
    """What it collects of an episode: every answer fits the schema that the server published."""
    pytest.importorskip("openenv.core")
    from openenv.validation.runtime.collector import collect_runtime_evidence
    from openenv.validation.runtime.contracts import RuntimePlan

    plan = RuntimePlan.model_validate(
        {
            "plan_schema_version": "1",
            "reset": {"episode_id": "e-1", "seed": 4, "options": {"split": "train", "index": 2}},
            "actions": [{"type": "call_tool", "tool_name": "code_interpreter", "arguments": CODE}, {"text": truth(2)}],
        }
    )
    found = collect_runtime_evidence(url, plan, episode_timeout_s=60)
    assert found.failure_phase is None, found.failure_reason
    answers = [json.loads(one.response_json)["data"] for one in found.exchanges]
    assert [one.operation for one in found.exchanges] == ["reset", "state", "step", "state", "step", "state"]
    schema = json.loads(found.observation_schema_json)
    for answer in answers[::2]:
        told = answer["observation"] | {"reward": answer["reward"], "done": answer["done"]}
        jsonschema.validate(told, schema)
    assert [one["episode_id"] for one in answers[1::2]] == ["e-1"] * 3
    assert (answers[-2]["reward"], answers[-2]["done"]) == (1.0, True)


async def test_openrewards_client(url, openreward, errors):
    client = openreward.AsyncOpenReward(base_url=url, api_key="none")
    env = client.environments.get("anything")
    try:
        assert await env.list_splits() == ["train", "test"]
        assert (await env.num_tasks("test"), len(await env.list_tasks("train"))) == (6, 6)
        assert [task.task_spec["index"] for task in await env.get_task_range("train", start=-2)] == [4, 5]
        task = await env.get_task("test", 1)
        async with env.session(task=task) as session:
            [prompt] = await session.get_prompt()
            assert prompt.text.endswith(ArithmeticTasks("test").task(1).messages[1]["content"])
            assert [message["role"] for message in await session.get_messages("openai")] == ["system", "user"]
            assert await session.is_assistant_message_final()
            called = await session.call_tool("code_interpreter", CODE)
            assert (called.blocks[0].text, called.reward, called.finished) == ("42", None, False)
            with pytest.raises(errors.ToolCallError, match="Missing required"):
                await session.call_tool("submit_answer", {})
            called = await session.call_terminal_tool(truth(1, "test"))
            assert (called.reward, called.finished, called.metadata["trainable"]) == (1.0, True, True)
            with pytest.raises(errors.ToolCallError, match="is over"):
                await session.call_tool("code_interpreter", CODE)
        assert none_is_left(url)
        async with env.session(split="train", index=0) as one, env.session(split="train", index=1) as other:
            code = {"code": "print('x' + ' ' * 4060 + 'y')"}
            called = await asyncio.gather(*(session.call_tool("code_interpreter", code) for session in (one, other)))
            assert [len(result.blocks[0].text) for result in called] == [4062, 4062]
    finally:
        await client.environments.aclose()
    assert none_is_left(url)


def test_trls_openreward_spec(url, openreward):
    """A rollout through TRL's own code: data set, environment, tools, reward."""
    trl = pytest.importorskip("trl.experimental.openreward")
    pytest.importorskip("datasets")
    spec = trl.OpenRewardSpec(url, num_tasks=4)
    rows = spec.train_dataset
    assert rows["task_index"] == [0, 1, 2, 3]
    assert not any("truth" in name or "answer" in name for name in rows.column_names)
    env = spec.environment_factory()
    assert ArithmeticTasks().task(3).messages[1]["content"] in env.reset(**rows[3])
    assert (env.code_interpreter(**CODE), env.reward, env.finished) == ("42", None, False)
    assert "ZeroDivisionError" in env.code_interpreter(code="1/0")
    env.submit_answer(answer=truth(3))
    assert (env.reward, env.finished) == (1.0, True)
    assert spec.reward_funcs(environments=[env]) == [1.0]
    env.reset(**rows[1])
    assert (env.reward, sessions(url)) == (None, 1), "the session before was closed"
    env.submit_answer(answer="#### -1")
    assert env.reward == 0.0
    env._close()
    assert none_is_left(url)
