"""OpenEnv's API: HTTP and WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json

import aiohttp
import pytest

from tests.actors import until
from tests.envs.served.environments.toy import SECRET, SumEnv
from toolgym.envs.served.openenv import api

CALL = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1, "b": 2}}
HANG = {"type": "call_tool", "tool_name": "hang"}
TURN = '<tool_call>{"name": "add", "arguments": {"a": 20, "b": 22}}</tool_call>'


class Socket:
    """A WebSocket whose messages are JSON."""

    def __init__(self, socket):
        self.socket = socket

    async def ask(self, kind, data=None):
        await self.socket.send_str(json.dumps({"type": kind} | ({} if data is None else {"data": data})))
        return await self.read()

    async def read(self):
        message = await self.socket.receive(timeout=60)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        assert SECRET not in message.data
        answer = json.loads(message.data)
        return answer["type"], answer["data"]

    async def step(self, **action):
        kind, data = await self.ask("step", action)
        assert kind == "observation", data
        return data

    async def error(self, kind, data=None):
        kind, data = await self.ask(kind, data)
        assert kind == "error", data
        return data


@pytest.fixture
async def connect(http):
    async with contextlib.AsyncExitStack() as stack:

        async def open(url, path="/ws", **options):
            return Socket(await stack.enter_async_context(http.ws_connect(url + path, **options)))

        yield open


async def test_an_episode_over_a_websocket(serve, connect):
    service = await serve()
    socket = await connect(service.url)
    kind, state = await socket.ask("state")
    assert (kind, state["episode_id"], state["step_count"], state["env"]) == ("state", None, 0, "tests/Sum-v0")
    kind, begun = await socket.ask("reset", {"seed": 1, "episode_id": "e-1", "split": "train", "index": 3})
    assert (kind, begun["reward"], begun["done"]) == ("observation", None, False)
    assert [one["content"] for one in begun["observation"]["messages"]] == ["Add.", "What is 3 + 1?"]
    assert begun["metadata"]["task"] == {"split": "train", "index": 3, "id": "sum-3", "source": "sums"}
    assert [one["function"]["name"] for one in begun["metadata"]["tools"]] == ["add", "hang", "unreachable"]

    stepped = await socket.step(text=TURN)
    assert [one["content"] for one in stepped["observation"]["messages"]] == ["42"]
    assert (stepped["reward"], stepped["done"]) == (0.0, False)
    stepped = await socket.step(**CALL)
    assert (stepped["observation"]["tool_name"], stepped["observation"]["result"]) == ("add", "3")
    calls = [
        {"function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}},
        {"function": {"name": "add", "arguments": "{"}},
    ]
    stepped = await socket.step(message={"content": "", "tool_calls": calls})
    assert stepped["observation"]["messages"][0]["content"] == "2"
    assert "not JSON" in stepped["observation"]["messages"][1]["content"]
    assert [one["id"] for one in stepped["metadata"]["tool_calls"]] == ["call_1", "call_2"]

    stepped = await socket.step(text="4")
    assert (stepped["reward"], stepped["done"], stepped["observation"]["messages"]) == (1.0, True, [])
    assert {"stop_reason": "answered", "trainable": True, "episode_reward": 1.0}.items() <= stepped["metadata"].items()
    kind, state = await socket.ask("state")
    assert (state["episode_id"], state["step_count"], state["done"], state["reward"]) == ("e-1", 4, True, 1.0)
    assert "is over" in (await socket.error("step", {"text": "5"}))["message"]
    assert (await socket.ask("reset"))[0] == "observation"


async def test_what_a_client_does_wrong_is_told_and_the_socket_goes_on(serve, connect):
    service = await serve()
    socket = await connect(service.url)
    await socket.socket.send_str("{")
    assert (await socket.read())[1]["code"] == "INVALID_JSON"
    assert (await socket.error("dance"))["code"] == "UNKNOWN_TYPE"
    assert "reset first" in (await socket.error("step", {"text": "5"}))["message"]
    for data in (
        {"idx": 1},
        {"seed": -1},
        {"split": "train"},
        {"split": "dev", "index": 0},
        {"split": "train", "index": 5},
    ):
        assert (await socket.error("reset", data))["code"] == "VALIDATION_ERROR"
    await socket.ask("reset")
    for action in ({}, {"text": "a", "message": {"content": "b"}}, {"type": "call_tool"}, {"code": "print(1)"}, "text"):
        assert (await socket.error("step", action))["code"] == "VALIDATION_ERROR"
    assert (await socket.step(text="go on"))["observation"]["messages"] == [{"role": "user", "content": "Yes?"}]


async def test_what_a_model_does_wrong_is_an_observation(serve, connect):
    service = await serve()
    socket = await connect(service.url)
    await socket.ask("reset")
    for action, said in [
        ({"tool_name": "sub", "arguments": {}}, "Unknown tool 'sub'"),
        ({"tool_name": "add", "arguments": {"a": "x"}}, "Missing required argument 'b'"),
        ({"tool_name": "submit_answer", "arguments": {}}, "Missing required argument 'answer'"),
    ]:
        stepped = await socket.step(type="call_tool", **action)
        assert said in stepped["observation"]["result"]
        assert stepped["done"] is False
    stepped = await socket.step(type="call_tool", tool_name="submit_answer", arguments={"answer": TURN})
    assert (stepped["done"], stepped["reward"]) == (True, 0.0), "the answer is no turn with calls"


async def test_failures_have_no_reward(serve, connect, caplog):
    service = await serve()
    socket = await connect(service.url)
    failures = {"crash": "score_failed", "lost": "sandbox_failed", "no host": "sandbox_failed", "nan": "score_failed"}
    for answer, reason in failures.items():
        await socket.ask("reset")
        error = await socket.error("step", {"text": answer})
        assert (error["code"], error["stop_reason"], error["trainable"]) == ("EXECUTION_ERROR", reason, False)
        assert "10.1.2.3" not in error["message"]
        assert (await socket.ask("state"))[1]["stop_reason"] == reason
        assert "is over" in (await socket.error("step", {"text": "4"}))["message"]
    assert (await socket.error("reset", {"seed": 13}))["stop_reason"] == "reset_failed"
    assert "10.1.2.3" in caplog.text
    await socket.ask("reset")
    stepped = await socket.step(type="call_tool", tool_name="unreachable")
    assert "not available now" in stepped["observation"]["result"]
    assert stepped["metadata"]["tool_calls"][0]["infra_failure"] is True


async def test_a_hung_tool_is_bounded_by_the_env_and_a_hung_env_by_the_server(serve, connect):
    service = await serve(kwargs={"tool_timeout": 0.1})
    socket = await connect(service.url)
    await socket.ask("reset")
    stepped = await socket.step(type="call_tool", tool_name="hang")
    assert "did not finish within 0.1 seconds" in stepped["observation"]["result"]

    service = await serve(step_timeout=0.1)
    socket = await connect(service.url)
    await socket.ask("reset")
    error = await socket.error("step", {"type": "call_tool", "tool_name": "hang"})
    assert error["stop_reason"] == "env_timeout"
    assert (await socket.ask("reset"))[0] == "observation"


@pytest.mark.parametrize("how", ["closed", "cut", "cut while a tool hangs"])
async def test_a_socket_that_ends_frees_its_env(serve, connect, how):
    service = await serve()
    socket = await connect(service.url)
    await socket.ask("reset")
    assert (SumEnv.open, len(service.app.sessions)) == (1, 1)
    if how == "closed":
        await socket.socket.send_str('{"type": "close"}')
    else:
        if how == "cut while a tool hangs":
            await socket.socket.send_str('{"type": "step", "data": {"type": "call_tool", "tool_name": "hang"}}')
            await until(lambda: service.app.gate.running == 1)
        socket.socket._response.connection.transport.abort()
    await until(lambda: (SumEnv.open, len(service.app.sessions), service.app.gate.running) == (0, 0, 0))


async def test_an_idle_socket_is_closed(serve, connect):
    service = await serve(session_idle_timeout=0.2)
    sockets = service.app.faces[0].sockets
    given, sockets._idle_timeout = sockets._idle_timeout, 60.0  # the first message may come late
    socket = await connect(service.url)
    await socket.ask("state")
    sockets._idle_timeout = given  # from the next message on
    await socket.ask("reset")
    assert (await socket.socket.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE
    await until(lambda: SumEnv.open == 0)


async def test_there_are_no_more_sessions_than_allowed(serve, connect, ask):
    service = await serve(max_sessions=1)
    first = await connect(service.url)
    await first.ask("reset")
    kind, data = await (second := await connect(service.url)).read()
    assert (kind, data["code"], data["active_sessions"], data["max_sessions"]) == ("error", "CAPACITY_REACHED", 1, 1)
    assert (await second.socket.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE
    assert (await ask.post(f"{service.url}/reset"))[0] == 429
    await first.socket.close()
    await until(lambda: len(service.app.sessions) == 0)
    assert (await ask.post(f"{service.url}/reset"))[0] == 200


async def test_a_server_that_stops_closes_its_sockets(serve, connect):
    service = await serve()
    socket, waiting = await connect(service.url), await connect(service.url)
    await socket.ask("reset")
    await waiting.ask("reset")
    service.app.drain()
    async with asyncio.timeout(60):
        message = await socket.socket.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
        await waiting.socket.receive()
        await service.app.quiet()
    assert SumEnv.open == 0


async def test_pages_of_other_sites_open_no_sockets(serve, http):
    service = await serve()
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        await http.ws_connect(f"{service.url}/ws", headers={"Origin": "https://evil.example"})
    async with http.ws_connect(f"{service.url}/ws", headers={"Origin": service.url}) as socket:
        assert not socket.closed


async def test_a_message_that_is_too_long_ends_the_socket(serve, connect):
    service = await serve(body_limit_mb=0.01)
    socket = await connect(service.url)
    await socket.socket.send_str(json.dumps({"type": "step", "data": {"text": "x" * 20_000}}))
    message = await socket.socket.receive(timeout=60)
    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.MESSAGE_TOO_BIG)


async def test_http_keeps_an_env_for_a_named_session_alone(serve, ask):
    service = await serve()
    status, begun = await ask.post(f"{service.url}/reset", {"seed": 1})
    assert (status, len(begun["observation"]["messages"]), SumEnv.open) == (200, 2, 0)
    assert (await ask.post(f"{service.url}/step", {"action": {"text": "4"}}))[0] == 409
    assert (await ask.get(f"{service.url}/state"))[1]["episode_id"] is None

    mine = {"X_Session_ID": "my-session"}
    assert (await ask.post(f"{service.url}/reset", {"split": "train", "index": 3}, **mine))[0] == 200
    assert (await ask.post(f"{service.url}/step", {"action": CALL}, **mine))[1]["observation"]["result"] == "3"
    status, error = await ask.post(f"{service.url}/step", {"action": HANG, "timeout_s": 0.1}, **mine)
    assert (status, error["reason"], error["trainable"]) == (500, "env_timeout", False)
    assert (await ask.get(f"{service.url}/state", **mine))[1]["stop_reason"] == "env_timeout"
    assert (await ask.post(f"{service.url}/reset", {"split": "train", "index": 3}, **mine))[0] == 200
    status, answer = await ask.post(f"{service.url}/step", {"action": {"text": "4"}}, **mine)
    assert (answer["reward"], answer["done"]) == (1.0, True)
    assert (await ask.post(f"{service.url}/reset", **mine))[0] == 200
    hung = asyncio.create_task(ask.post(f"{service.url}/step", {"action": HANG}, **mine))
    await until(lambda: service.app.gate.running == 1)
    assert (await ask.post(f"{service.url}/delete", **mine))[0] == 200
    assert (await hung)[0] == 404, "a session is closed also while a call runs in it"
    assert (await ask.post(f"{service.url}/step", {"action": {"text": "4"}}, **mine))[0] == 404
    assert (await ask.post(f"{service.url}/reset", X_Session_ID="no name"))[0] == 400


async def test_the_env_is_described(serve, ask):
    service = await serve("tests/Sum-v0", "Other-v0")
    assert (await ask.get(f"{service.url}/health"))[1]["status"] == "healthy"
    metadata = {"name": "tests/Sum-v0", "description": "Add numbers.", "version": importlib.metadata.version("toolgym")}
    assert (await ask.get(f"{service.url}/metadata"))[1] == metadata
    assert (await ask.get(f"{service.url}/other-v0/metadata"))[1]["name"] == "Other-v0"
    assert (await ask.get(f"{service.url}/tests/Sum-v0/metadata"))[1]["name"] == "tests/Sum-v0"
    assert (await ask.get(f"{service.url}/tests%2FSum-v0/metadata"))[1]["name"] == "tests/Sum-v0"
    status, error = await ask.get(f"{service.url}/Othr-v0/metadata")
    assert (status, "did you mean 'Other-v0'?" in error["detail"]) == (400, True)
    _, schema = await ask.get(f"{service.url}/schema")
    assert set(schema) == {"action", "observation", "reset_observation", "state"}
    _, description = await ask.get(f"{service.url}/openapi.json")
    assert {"/reset", "/step", "/state", "/{env}/call"} <= set(description["paths"])
    assert description["info"]["version"] == importlib.metadata.version("toolgym")


async def test_observations_fit_their_schema(serve, connect, ask):
    jsonschema = pytest.importorskip("jsonschema")
    service = await serve()
    _, schema = await ask.get(f"{service.url}/schema")
    socket = await connect(service.url)
    _, begun = await socket.ask("reset")
    for data in (begun, await socket.step(**CALL), await socket.step(type="list_tools"), await socket.step(text="4")):
        told = data["observation"] | {"reward": data["reward"], "done": data["done"]}
        jsonschema.validate(told, schema["observation"])
    _, state = await socket.ask("state")
    jsonschema.validate(state, schema["state"])


async def test_json_rpc_over_http_shares_its_session_with_a_websocket(serve, connect, ask):
    service = await serve()

    async def rpc(method, **params):
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        status, answer = await ask.post(f"{service.url}/mcp", body)
        assert (status, answer["id"], answer["jsonrpc"]) == (200, 7, "2.0")
        return answer.get("result", answer.get("error"))

    name = (await rpc("openenv/session/create"))["session_id"]
    tools = (await rpc("tools/list", session_id=name))["tools"]
    assert [one["name"] for one in tools] == ["add", "hang", "unreachable", "submit_answer"]
    assert tools[0]["inputSchema"]["required"] == ["a", "b"]
    assert (await rpc("tools/call", session_id=name, name="add", arguments={"a": 1, "b": 2}))["code"] == -32600
    socket = await connect(service.url, f"/ws?session_id={name}")
    await socket.ask("reset", {"split": "train", "index": 3})
    called = await rpc("tools/call", session_id=name, name="add", arguments={"a": 1, "b": 2})
    assert (called["data"], called["isError"], called["_meta"]["done"]) == ("3", False, False)
    called = await rpc("tools/call", session_id=name, name="submit_answer", arguments={"answer": "4"})
    assert (called["_meta"]["reward"], called["_meta"]["done"]) == (1.0, True)
    assert (await socket.ask("state"))[1]["step_count"] == 2
    await socket.socket.close()
    assert (await rpc("tools/list", session_id=name))["tools"], "the socket did not own the session"
    assert (await rpc("openenv/session/close", session_id=name))["closed"] is True
    assert (await rpc("openenv/session/close", session_id=name))["code"] == -32602
    assert (await rpc("dance"))["code"] == -32601
    assert (await ask.post(f"{service.url}/mcp", {"jsonrpc": "1.0"}))[1]["error"]["code"] == -32600


async def test_json_rpc_over_websockets(serve, connect, http):
    service = await serve()
    async with http.ws_connect(f"{service.url}/mcp") as socket:
        await socket.send_str('{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}')
        assert len((await socket.receive_json(timeout=60))["result"]["tools"]) == 4
        await socket.send_str("{")
        assert (await socket.receive_json(timeout=60))["error"]["code"] == -32700
    socket = await connect(service.url)
    await socket.ask("reset")
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    kind, data = await socket.ask("mcp", call)
    assert (kind, data["result"]["data"]) == ("mcp", "3")


async def test_a_client_that_answers_no_ping_is_gone(serve, connect, monkeypatch):
    monkeypatch.setattr(api, "PING", 0.4)  # the reset must be sent before the first ping is missed
    service = await serve()
    socket = await connect(service.url, autoping=False)
    await socket.ask("reset")
    await until(lambda: SumEnv.open == 0)


async def test_a_step_may_take_longer_than_pings(serve, connect, monkeypatch):
    monkeypatch.setattr(api, "PING", 0.5)  # which leaves the client 0.25 seconds to answer
    service = await serve(kwargs={"tool_timeout": 1.0})
    socket = await connect(service.url)
    await socket.ask("reset")
    assert "did not finish" in (await socket.step(**HANG))["observation"]["result"]


async def test_a_client_that_does_not_read_is_cut_off(serve, connect):
    service = await serve(write_timeout=0.2, kwargs={"max_turns": 100_000})
    message = json.dumps({"type": "step", "data": {"text": "go on" + "." * 100_000}})
    socket = await connect(service.url)
    await socket.ask("reset")
    socket.socket._response.connection.transport.pause_reading()

    async def flood():
        while True:
            await socket.socket.send_str(message)

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(flood(), 60)
    await until(lambda: (SumEnv.open, len(service.app.sessions), service.app.in_flight) == (0, 0, 0))
