"""`SWEDev-v0` on session servers, and the tool."""

from __future__ import annotations

import asyncio
import json

import pytest

import toolgym
from tests.envs.served.sessions.counting import serving
from tests.envs.served.sessions.test_session_client import down
from toolgym.envs.served.sessions import RemoteSessionEnv, RemoteSessionTool
from toolgym.envs.served.sessions.backends.repository import RepositoryBackend
from toolgym.envs.served.sessions.client import OpenSession
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.concurrency.deadline import with_deadline
from toolgym.tools.errors import ConfigError, EpisodeError, UnknownArgumentError
from toolgym.tools.message import assistant, tool_call, user
from toolgym.wrappers import TurnLimit

TASK = Task((user("Count to ten."),), id="count:0")
IMPATIENT = {"patience": 0.2, "start_timeout": 0.1, "action_timeout": 0.1, "reward_timeout": 0.1}


@pytest.mark.long
async def test_swe_dev_on_a_server(database):
    async with (
        serving(database, RepositoryBackend()) as service,
        toolgym.make("SWEDev-v0", base_url=[service.url], tools=()) as env,
    ):
        obs, _ = await env.reset(seed=0)
        assert "```bash" in obs[-1]["content"]
        patch, done = env.gold_actions()
        assert "was applied" in (await env.step(patch)).obs[0]["content"]
        result = await env.step(done)
        assert (result.reward, result.stop_reason) == (1.0, StopReason.ANSWERED)
        metrics = result.info["metrics"]
        assert metrics["f2p_count"] == metrics["f2p_total"] > 0
        assert service.app.open_sessions() == 0
        await env.reset(seed=0)
        assert (await env.step("Nothing.")).reward == 0.0


def hermes(message):
    calls = [one["function"] for one in message.get("tool_calls", ())]
    return "\n".join(f"<tool_call>{json.dumps(one)}</tool_call>" for one in calls) or message["content"]


@pytest.mark.parametrize("form", [lambda message: message, hermes], ids=["messages", "text"])
async def test_the_gold_of_the_env_in_process_earns_all_over_http(form, database):
    async with (
        serving(database, RepositoryBackend()) as service,
        toolgym.make("SWEDev-v0", base_url=service.url) as env,
        toolgym.make("SWEDev-v0") as local,
    ):
        assert [tool.parameters for tool in env.tool_schemas] == [tool.parameters for tool in local.tool_schemas]
        rewards = []
        for task in local.tasks.tasks[:3]:
            there, info = await env.reset(options={"task": task})
            here, known = await local.reset(options={"task": task})
            assert there == here
            assert [tool["function"]["parameters"] for tool in info["tools"]] == [
                tool["function"]["parameters"] for tool in known["tools"]
            ], "a server does not state its limits before it is asked"
            for action in local.gold_actions()[:-1]:
                reply, said = await env.step(form(action)), await local.step(form(action))
                assert reply.obs == said.obs
            rewards.append((await env.step("Done.")).reward)
            assert env.render() == f"{local.render()}\n\n[assistant]\nDone."
            assert env.gold_actions() == local.gold_actions()
        assert rewards == [1.0, 1.0, 1.0]


async def test_the_tools_are_those_of_the_env_in_process(database):
    async with (
        serving(database, RepositoryBackend()) as service,
        toolgym.make("SWEDev-v0", base_url=service.url) as env,
        toolgym.make("SWEDev-v0") as local,
    ):
        task = local.tasks.tasks[0]
        for made in (env, local):
            await made.reset(options={"task": task})
        for calls in (
            [tool_call("bash", {"command": "cd /tmp; x='</tool_call><think>'"}, id="a")],
            [
                tool_call("bash", {"command": "echo $x; exit 3"}, id="b"),
                tool_call("editor", {"command": "view"}, id="c"),
            ],
            [tool_call("editor", {"command": "create", "path": "n.txt", "file_text": "a\nb"}, id="d")],
            [tool_call("editor", {"command": "insert", "path": "n.txt", "insert_line": 1, "insert_text": "c"}, id="e")],
            [tool_call("editor", {"command": "undo_edit", "path": "n.txt"}, id="f")],
            [tool_call("bash", {"restart": True}, id="g"), tool_call("rm", {}, id="h")],
            [tool_call("bash", {"command": "cat n.txt; basename $PWD"}, id="i")],
        ):
            there, here = [await made.step(assistant("", calls)) for made in (env, local)]
            for one, other in zip(there.obs, here.obs, strict=True):
                assert one | {"content": ""} == other | {"content": ""}
                if "Available" not in other["content"]:
                    assert one["content"] == other["content"]
        broken = await env.step('<tool_call>{"name": "bash"')
        assert "closing </tool_call> is missing" in broken.obs[0]["content"]
        assert not broken.done
        assert (await env.step("```bash\nls\n```")).done


async def test_a_session_that_a_tool_ended_is_opened_again(database):
    async with (
        serving(database, RepositoryBackend()) as service,
        toolgym.make("SWEDev-v0", base_url=service.url) as env,
    ):
        await env.reset(seed=0)
        await env.step(assistant("", [tool_call("bash", {"command": "echo kept > n.txt; x=1"})]))
        ended = await env.step(assistant("", [tool_call("bash", {"command": "kill -9 -1; sleep 9"})]))
        assert "ended" in ended.obs[0]["content"]
        said = await env.step(assistant("", [tool_call("bash", {"command": "cat n.txt; echo x=$x"})]))
        if "ended" in said.obs[0]["content"]:
            said = await env.step(assistant("", [tool_call("bash", {"command": "cat n.txt; echo x=$x"})]))
        assert said.obs[0]["content"] == "kept\nx="


def test_without_a_server_it_is_the_one_in_this_process():
    assert type(toolgym.make("SWEDev-v0")).__name__ == "SWEDevEnv"
    with pytest.raises(UnknownArgumentError, match="did you mean 'strict'"):
        toolgym.make("SWEDev-v0", stric=True)
    with pytest.raises(UnknownArgumentError, match="did you mean 'max_turns'"):
        toolgym.make("SWEDev-v0", base_url="http://a:1", max_turn=1)


async def test_the_turns_of_an_episode(service):
    async with RemoteSessionEnv(service.url, [TASK], max_turns=3, max_result_chars=100) as env:
        with pytest.raises(EpisodeError, match="before reset"):
            await env.step("add 1")
        obs, info = await env.reset()
        assert (obs, info["task"]) == ([user("Count to ten.")], TASK)
        result = await env.step("add 4")
        assert (result.obs, result.reward, result.done) == ([user("4")], 0.0, False)
        assert 0 < result.info["metrics"]["sids"] < 2**63
        assert "900 characters left out" in (await env.step(assistant("long 1000"))).obs[0]["content"]
        result = await env.step("add 1")
        assert (result.reward, result.stop_reason) == (0.5, StopReason.MAX_TURNS)
        assert result.info["metrics"]["score"] == 0.5
        with pytest.raises(EpisodeError, match="after the episode ended"):
            await env.step("add 1")
        await env.reset()
        assert service.app.open_sessions() == 1
        await env.reset()
        assert service.app.open_sessions() == 1  # that of the episode before was ended
    assert service.app.open_sessions() == 0


async def test_a_limit_around_it_asks_for_the_reward(service):
    async with TurnLimit(RemoteSessionEnv(service.url, [TASK]), 2) as env:
        await env.reset()
        assert (await env.step("add 4")).reward == 0.0
        result = await env.step("add 1")
        assert (result.reward, result.stop_reason) == (0.5, StopReason.MAX_TURNS)
        assert service.app.open_sessions() == 0
        with pytest.raises(EpisodeError, match="under way"):
            await env.env.truncate(StopReason.MAX_TURNS)
        await env.reset()
        await env.step("add 4")
        cut = await env.truncate(StopReason.LENGTH, "add 1")  # which the server is not sent
        assert (cut.reward, cut.info["metrics"]["turn"]) == (0.4, 2)
        await env.reset()
        assert (await env.env.truncate(StopReason.ENV_TIMEOUT)).reward == 0.0
        assert service.app.open_sessions() == 0


async def test_the_time_for_the_reward_is_the_clients(service, monkeypatch):
    kept = OpenSession.reward

    async def slow(session):
        await asyncio.sleep(1.0)
        return await kept(session)

    monkeypatch.setattr(OpenSession, "reward", slow)
    async with RemoteSessionEnv(service.url, [TASK]) as env:
        await env.reset()
        assert (await with_deadline(env.truncate(StopReason.MAX_TURNS), 0.9)).reward == 0.0


async def test_an_infrastructure_that_fails_is_no_reward_of_zero(service):
    async with RemoteSessionEnv(down(), [TASK], client_kwargs=IMPATIENT) as env:
        with pytest.raises(EpisodeFailedError) as failed:
            await env.reset()
        assert failed.value.stop_reason is StopReason.SANDBOX_FAILED
    async with RemoteSessionEnv(service.url, [TASK]) as env:
        await env.reset()
        with pytest.raises(EpisodeFailedError) as failed:
            await env.step("fail")
        assert failed.value.stop_reason is StopReason.SANDBOX_FAILED
        assert service.app.open_sessions() == 0
        await env.reset()
        await env.step("add -5")
        with pytest.raises(EpisodeFailedError) as failed:
            await env.step("end")
        assert failed.value.stop_reason is StopReason.SCORE_FAILED


async def test_which_instance_a_task_is_of(service):
    extra = {"instance_id": "count:7"}
    row = {"prompt": [user("x")], "extra_info": extra}
    async with RemoteSessionEnv(service.url, [Task.from_row(row)]) as env:
        await env.reset()
        assert (await env.step("end")).reward == 0.7
        with pytest.raises(ConfigError, match="instance_hash"):
            await env.reset(options={"task": Task((user("x"),))})


async def test_the_tool_keeps_a_session_for_each_episode(service):
    tool = RemoteSessionTool({"base_url": service.url})
    task = Task((user("Count."),), tools_kwargs={"process_action": {"create_kwargs": {"instance_hash": "count:0"}}})
    call = '<tool_call>{"name": "process_action", "arguments": {"content": "add 2"}}</tool_call>'
    async with ToolEnv([tool], [task], owns_tools=True) as env:
        await env.reset()
        assert [(await env.step(call)).obs[0]["content"] for _ in range(2)] == ["2", "4"]
        result = await env.step(call.replace("add 2", "fail"))
        [record] = result.info["tool_calls"]
        assert record.infra_failure
        assert "127.0.0.1" not in record.text
        result = await env.step("Done.")
        assert result.reward == 0.4
        assert service.app.open_sessions() == 0
        await env.reset()
    assert service.app.open_sessions() == 0


async def test_the_tool_needs_an_instance(service):
    async with ToolEnv([RemoteSessionTool({"base_url": service.url})], [TASK], owns_tools=True) as env:
        with pytest.raises(ConfigError, match="instance_hash"):
            await env.reset()
    with pytest.raises(ConfigError, match="content"):
        RemoteSessionTool({"base_url": service.url}, {"name": "x", "parameters": {"type": "object"}})
