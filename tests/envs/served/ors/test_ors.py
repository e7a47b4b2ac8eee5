"""The Open Reward Standard: tasks, sessions, tool calls."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from tests.actors import until
from tests.envs.served.environments.toy import SECRET, TASKS, SumEnv
from toolgym.envs.served.ors import api
from toolgym.envs.tasks.arithmetic import ArithmeticTasks
from toolgym.envs.tasks.sources import TaskList
from toolgym.tools.serving import app as serving_app
from toolgym.tools.serving import session_table

SID = "session-0001"


async def created(ask, url, index=3, sid=SID):
    status, answer = await ask.post(f"{url}/create", {"split": "train", "index": index}, X_Session_ID=sid)
    assert (status, answer) == (200, {"sid": sid})


async def test_tasks_are_listed_without_their_ground_truth(serve, ask):
    service = await serve("tests/Sum-v0", "Other-v0", "CodeInterpreter-v0", num_tasks=7)
    url = service.url
    assert (await ask.get(f"{url}/list_environments"))[1] == ["tests/Sum-v0", "Other-v0", "CodeInterpreter-v0"]
    assert (await ask.get(f"{url}/splits"))[1] == [{"name": "train", "type": "train"}]
    specs = [{"split": "train", "index": place, "id": f"sum-{place}", "source": "sums"} for place in range(5)]
    assert (await ask.post(f"{url}/num_tasks", {"split": "train"}))[1] == {"num_tasks": 5}
    tasks = (await ask.post(f"{url}/tasks", {"split": "train"}))[1]
    assert tasks == {"tasks": specs, "env_name": "tests/Sum-v0"}
    assert (await ask.post(f"{url}/task", {"split": "train", "index": 2}))[1]["task"] == specs[2]
    for bounds, some in [({"start": -2}, specs[-2:]), ({"stop": 1}, specs[:1]), ({"start": 3, "stop": 9}, specs[3:])]:
        assert (await ask.post(f"{url}/task_range", {"split": "train", **bounds}))[1]["tasks"] == some
    assert (await ask.post(f"{url}/task", {"split": "train", "index": 5}))[0] == 400
    assert (await ask.post(f"{url}/task", {"split": "train", "index": -1}))[0] == 400
    assert "Splits: train" in (await ask.post(f"{url}/tasks", {"split": "dev"}))[1]["detail"]
    # Another env by its path, or by the header of clients that know no paths.
    assert len((await ask.get(f"{url}/CodeInterpreter-v0/splits"))[1]) == 2
    named = {"X_Deployment": "codeinterpreter-v0"}
    assert (await ask.post(f"{url}/num_tasks", {"split": "test"}, **named))[1] == {"num_tasks": 7}
    generated = (await ask.post(f"{url}/tasks", {"split": "test"}, **named))[1]
    assert [one["id"] for one in generated["tasks"]] == [ArithmeticTasks("test").task(place).id for place in range(7)]
    assert SECRET not in f"{tasks}{generated}"
    assert "no env 'Nothing'" in (await ask.get(f"{url}/splits", X_Deployment="Nothing"))[1]["detail"]


async def test_columns_are_told_that_the_settings_name(serve, ask):
    service = await serve(task_fields=("level", "kind", "split", "nothing"))
    told = (await ask.post(f"{service.url}/task", {"split": "train", "index": 3}))[1]["task"]
    assert told == {
        "level": 3, "kind": "easy", "nothing": None, "id": "sum-3", "source": "sums", "split": "train", "index": 3
    }  # fmt: skip
    status, _ = await ask.post(f"{service.url}/create", {"task_spec": told}, X_Session_ID=SID)
    assert status == 200


@pytest.mark.parametrize(("rewards", "given"), [("episode", [None, 2.5]), ("step", [1.5, 1.0])])
async def test_a_calls_reward_is_the_steps_or_the_episodes(serve, ask, monkeypatch, rewards, given):
    step = SumEnv.step

    async def rewarded(self, action):
        result = await step(self, action)
        return result._replace(reward=result.reward + (0.0 if result.done else 1.5))

    monkeypatch.setattr(SumEnv, "step", rewarded)
    service = await serve(rewards=rewards)
    await created(ask, service.url)
    _, first = await ask.call(service.url, "add", {"a": 1, "b": 2}, SID)
    _, last = await ask.call(service.url, "submit_answer", {"answer": "4"}, SID)
    assert [one["output"]["reward"] for one in (first, last)] == given
    assert last["output"]["metadata"]["episode_reward"] == 2.5


def test_the_task_of_a_place_is_always_the_same():
    tasks = ArithmeticTasks()
    assert [tasks.task(place) for place in range(20)] == [ArithmeticTasks().task(place) for place in range(20)]
    assert len({tasks.task(place).id for place in range(20)}) == 20
    assert {name: source.split for name, source in tasks.splits().items()} == {"train": "train", "test": "test"}
    listed = TaskList(TASKS)
    assert (listed.size, listed.task(4), list(listed.splits())) == (5, TASKS[4], ["train"])
    for source, place in ((listed, 5), (listed, -1), (tasks, -1)):
        with pytest.raises(IndexError):
            source.task(place)


async def test_an_episode(serve, ask, http):
    service = await serve()
    async with http.post(f"{service.url}/create_session") as response:
        assert response.content_type == "text/event-stream"
        sid = (await response.text()).split("\n")[1].removeprefix("data: ")
    await created(ask, service.url, sid=sid)
    mine = {"X_Session_ID": sid}
    assert [one["text"] for one in (await ask.get(f"{service.url}/prompt", **mine))[1]] == ["Add.\n\nWhat is 3 + 1?"]
    assert [one["role"] for one in (await ask.get(f"{service.url}/messages", **mine))[1]] == ["system", "user"]
    _, tools = await ask.get(f"{service.url}/task_tools", **mine)
    assert (await ask.get(f"{service.url}/tools"))[1] == tools
    assert [one["name"] for one in tools["tools"]] == ["add", "hang", "unreachable", "submit_answer"]
    assert (tools["terminal_tool"]["name"], tools["terminal_tool"]["arg"]) == ("submit_answer", "answer")

    _, result = await ask.call(service.url, "add", {"a": 1, "b": 2}, sid)
    assert (result["ok"], result["output"]["blocks"][0]["text"]) == (True, "3")
    assert (result["output"]["reward"], result["output"]["finished"]) == (None, False)
    _, result = await ask.call(service.url, "sub", {}, sid)
    assert "Unknown tool 'sub'" in result["output"]["blocks"][0]["text"]
    _, result = await ask.call(service.url, "submit_answer", {"text": "4"}, sid)
    assert (result["ok"], result["reason"]) == (False, "input_validation")
    _, result = await ask.call(service.url, "submit_answer", {"answer": "4"}, sid)
    assert (result["output"]["reward"], result["output"]["finished"]) == (1.0, True)
    assert {"stop_reason": "answered", "in_group_statistics": True}.items() <= result["output"]["metadata"].items()
    _, result = await ask.call(service.url, "add", {"a": 1, "b": 2}, sid)
    assert (result["ok"], result["reason"]) == (False, "episode_finished")
    assert SumEnv.open == 1
    assert (await ask.post(f"{service.url}/delete", **mine))[1] == {"sid": sid}
    assert (SumEnv.open, len(service.app.sessions)) == (0, 0)
    assert (await ask.post(f"{service.url}/delete_session", **mine))[0] == 200
    assert (await ask.post(f"{service.url}/ping", **mine))[0] == 404


async def test_what_cannot_be_created_is_refused(serve, ask):
    service = await serve("tests/Sum-v0", "Other-v0", max_sessions=1)
    url, mine = service.url, {"X_Session_ID": SID}
    for body, status in [
        ({}, 422),
        ({"split": "train"}, 422),
        ({"split": "train", "index": 5}, 400),
        ({"split": "dev", "index": 0}, 400),
        ({"task_spec": {"question": "?"}}, 400),
        ({"task_spec": {"split": "train", "index": 3, "id": "sum-4"}}, 400),
        ({"split": "train", "index": 3, "env_name": "Nothing-v0"}, 400),
        ({"split": "train", "index": 3, "toolset_name": "codex"}, 400),
    ]:
        assert (await ask.post(f"{url}/create", body, **mine))[0] == status, body
    assert (await ask.post(f"{url}/create_session", {"env": {"PATH": "/"}}))[0] == 400
    assert (await ask.post(f"{url}/create", {"split": "train", "index": 3}))[0] == 400, "no name"
    assert len(service.app.sessions) == 0

    told = (await ask.post(f"{url}/task", {"split": "train", "index": 3}))[1]
    body = {"task_spec": told["task"], "env_name": told["env_name"]}
    assert (await ask.post(f"{url}/create", body, **mine))[0] == 200
    assert "What is 3 + 1?" in (await ask.get(f"{url}/prompt", **mine))[1][0]["text"]
    status, error = await ask.post(f"{url}/create", body, **mine)
    assert (status, "already" in error["detail"]) == (400, True)
    assert (await ask.post(f"{url}/create", body, X_Session_ID="another-one"))[0] == 429


async def test_a_reset_that_fails_may_be_tried_again(serve, ask, monkeypatch):
    service = await serve()

    async def failing(self, **options):
        raise ConnectionError("10.1.2.3 refused")

    with monkeypatch.context() as patch:
        patch.setattr(SumEnv, "reset", failing)
        status, error = await ask.post(f"{service.url}/create", {"split": "train", "index": 3}, X_Session_ID=SID)
    assert (status, error["reason"], "10.1.2.3" in error["detail"]) == (503, "reset_failed", False)
    await created(ask, service.url)


async def test_a_client_that_is_gone_leaves_no_session(serve, ask, http, monkeypatch):
    service = await serve()

    async def cut(request, response, timeout):
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(serving_app, "send", cut)
        with pytest.raises(aiohttp.ClientError):
            await created(ask, service.url)
    await until(lambda: (len(service.app.sessions), SumEnv.open) == (0, 0))

    begun = asyncio.Event()

    async def slow(self, **options):
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(SumEnv, "reset", slow)
        creating = asyncio.create_task(created(ask, service.url))
        await asyncio.wait_for(begun.wait(), 60)
        creating.cancel()
        await until(lambda: len(service.app.sessions) == 0)
    await created(ask, service.url)


async def test_failures_are_errors_and_no_rewards(serve, ask):
    patient, strict = await serve(), await serve(step_timeout=0.2)
    for service, name, arguments, reason in [
        (patient, "submit_answer", {"answer": "crash"}, "score_failed"),
        (patient, "submit_answer", {"answer": "lost"}, "sandbox_failed"),
        (strict, "hang", {}, "env_timeout"),
    ]:
        await created(ask, service.url)
        _, error = await ask.call(service.url, name, arguments, SID)
        assert isinstance(error, str)
        assert f"({reason}) and has no reward" in error
        assert "10.1.2.3" not in error
        await ask.post(f"{service.url}/delete", X_Session_ID=SID)


async def test_a_lost_connection_loses_no_call(serve, ask, http):
    service = await serve()
    await created(ask, service.url)
    body = {"name": "hang", "input": {}}
    response = await http.post(f"{service.url}/call", json=body, headers={"X-Session-ID": SID})
    await response.content.readline()
    task_id = (await response.content.readline()).decode().split()[1]
    response.close()
    await until(lambda: service.app.in_flight == 0)
    assert service.app.gate.running == 1, "it goes on"

    again = asyncio.create_task(ask.call(service.url, "hang", {}, SID, task_id))
    await until(lambda: service.app.in_flight == 1)
    await ask.post(f"{service.url}/delete", X_Session_ID=SID)
    assert await again == (task_id, "the session was closed")
    assert service.app.gate.running == 0

    await created(ask, service.url)
    task_id, result = await ask.call(service.url, "add", {"a": 1, "b": 2}, SID)
    assert await ask.call(service.url, "add", {"a": 1, "b": 2}, SID, task_id) == (task_id, result)
    assert (await ask.get(f"{service.url}/state", X_Session_ID=SID))[1]["step_count"] == 1, "it ran once"
    _, error = await ask.call(service.url, "add", {"a": 1, "b": 2}, SID, "unknown")
    assert "has no call 'unknown'" in error["detail"]


async def test_calls_of_a_session_run_one_after_the_other(serve, ask):
    service = await serve()
    await created(ask, service.url)
    results = await asyncio.gather(*(ask.call(service.url, "add", {"a": n, "b": 1}, SID) for n in range(4)))
    assert [result["output"]["blocks"][0]["text"] for _, result in results] == ["1", "2", "3", "4"]
    calls = [result["output"]["metadata"]["tool_calls"][0]["id"] for _, result in results]
    assert sorted(calls) == [f"call_{n}" for n in range(4)]


async def test_idle_sessions_are_closed_and_pings_keep_them(serve, ask, stop_clock):
    clock = stop_clock(session_table)
    service = await serve(session_idle_timeout=0.4)
    await created(ask, service.url, sid="kept-0001")
    await created(ask, service.url, sid="left-0001")
    clock.now += 0.3
    assert (await ask.post(f"{service.url}/ping", X_Session_ID="kept-0001"))[0] == 200
    clock.now += 0.3
    await until(lambda: len(service.app.sessions) < 2)
    assert (await ask.post(f"{service.url}/ping", X_Session_ID="kept-0001"))[0] == 200
    assert (await ask.post(f"{service.url}/ping", X_Session_ID="left-0001"))[0] == 404
    clock.now += 0.5
    await until(lambda: len(service.app.sessions) == 0)


async def test_a_token_comes_as_bearer_or_as_api_key(serve, ask):
    service = await serve(token="open-sesame")
    path = f"{service.url}/list_environments"
    assert (await ask.get(path))[0] == 401
    assert (await ask.get(path, X_API_Key="wrong"))[0] == 401
    assert (await ask.get(path, X_API_Key="open-sesame"))[0] == 200
    assert (await ask.get(path, Authorization="Bearer open-sesame"))[0] == 200
    assert (await ask.get(path, Authorization="Bearer wrong", X_API_Key="open-sesame"))[0] == 401
    assert (await ask.get(f"{service.url}/health"))[0] == 200


def test_a_long_result_comes_in_chunks_whose_blanks_survive():
    result = {"text": "x" + " " * (3 * api.CHUNK) + "é"}
    events = api.chunks(result)
    assert [kind for kind, _ in events] == ["chunk"] * 3 + ["end"]
    assert json.loads("".join(part.lstrip() for _, part in events)) == result


async def test_a_call_that_takes_long_gives_signs_of_life(monkeypatch):
    monkeypatch.setattr(api, "PING", 0.02)
    done = asyncio.Event()

    async def work():
        await done.wait()
        return 7

    events = api.events_of("call-1", asyncio.create_task(work()))
    assert await anext(events) == ("task_id", "call-1")
    assert await anext(events) == ("", "")
    done.set()
    assert [event async for event in events if event != ("", "")] == [("end", "7")]
