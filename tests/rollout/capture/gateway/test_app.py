"""The gateway's server over real HTTP: identity, streams, ends, the control API."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json

import aiohttp
import pytest

from tests.actors import until
from tests.rollout.capture.gateway.stand_ins import Episode, Kept, LineWire
from toolgym.envs.types import StopReason
from toolgym.rollout.capture.gateway.app import CaptureApp
from toolgym.rollout.capture.gateway.captured_run import CapturedRun
from toolgym.rollout.capture.gateway.config import CaptureConfig
from toolgym.rollout.capture.gateway.server import listening
from toolgym.tools.errors import ConfigError

TOKEN = {"Authorization": "Bearer the-servers"}


class Gateway:
    """A server, and a client of it that has the server's token."""

    def __init__(self, app, http, episodes, kept):
        self.app, self.http, self.episodes, self.kept = app, http, episodes, kept

    async def control(self, method, path, body=None, *, headers=TOKEN):
        async with self.http.request(method, path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def open(self, **body):
        status, session = await self.control("POST", "/sessions", body)
        assert status == 200, session
        return session

    async def ask(self, path, text, headers, **body):
        """The status and the body of an answer to an agent."""
        async with self.http.post(path, json={"text": text, **body}, headers=headers) as response:
            return response.status, await response.json()


@contextlib.asynccontextmanager
async def gateway(*, kept=None, **settings):
    config = CaptureConfig(**{"port": 0, "token": "the-servers", **settings})
    episodes, kept = [], kept or Kept()

    def begin(*arguments):
        episodes.append(Episode(*arguments))
        return episodes[-1]

    app = CaptureApp(config, CapturedRun(kept, "run"), begin, [LineWire()])
    async with listening(app) as url, aiohttp.ClientSession(url) as http:
        yield Gateway(app, http, episodes, kept)


def key_of(session):
    return {"Authorization": f"Bearer {session['key']}"}


async def test_an_episode_from_its_opening_to_its_figures():
    async with gateway() as server:
        session = await server.open(task={"id": "t1", "data_source": "mine", "reward_model": {"ground_truth": 7}})
        host = str(server.http._base_url).rstrip("/")
        assert session["openai_url"] == f"{host}/sessions/{session['id']}/v1"
        assert session["anthropic_url"] == f"{host}/sessions/{session['id']}"
        assert (session["group_id"], session["task_index"], session["sample_index"]) == ("run-0", 0, 0)
        path = f"/sessions/{session['id']}/v1/lines?beta=true"
        assert await server.ask(path, "hello", key_of(session)) == (200, {"id": "r0", "text": "HELLO", "agent": ""})
        status, figures = await server.control("GET", f"/sessions/{session['id']}")
        assert (status, figures["calls"], figures["answering"]) == (200, 1, 0)
        status, listed = await server.control("GET", "/sessions")
        assert [each["id"] for each in listed["sessions"]] == [session["id"]]
        finish = f"/sessions/{session['id']}/finish"
        status, summary = await server.control("POST", finish, {"reward": 0.5, "metrics": {"tests": 3}})
        assert (status, summary["reward"], summary["stop_reason"], summary["turns"]) == (200, 0.5, "answered", 1)
        assert "trajectory" not in summary
        again = await server.control("POST", f"{finish}?full=1", {"reward": 0.5, "metrics": {"tests": 3}})
        assert again[1]["reward"] == 0.5
        assert again[1]["trajectory"]["gts"] == 7
        [written] = server.kept.trajectories
        assert (written.task_id, written.source, written.settings["group"]) == ("t1", "mine", "t1")
        assert written.metrics == {"tests": 3}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"reward": 0.5, "metrics": {"tests": 3}}, 200),
        ({"reward": 0.5}, 409),
        ({"reward": 1.0, "metrics": {"tests": 3}}, 409),
        ({"reward": 0.5, "error": "the container died"}, 409),
        ({}, 409),
    ],
)
async def test_a_second_finish_is_refused_unless_it_says_the_same(body, status):
    async with gateway() as server:
        session = await server.open()
        finish = f"/sessions/{session['id']}/finish"
        await server.control("POST", finish, {"reward": 0.5, "metrics": {"tests": 3}})
        answered, told = await server.control("POST", finish, body)
        assert (answered, told["reward"], told["error"]) == (status, 0.5, None), "both say what holds"
        assert told.get("reason") == (None if status == 200 else "ended_otherwise")
        assert [trajectory.reward for trajectory in server.kept.trajectories] == [0.5]


class FullOnce(Kept):
    """A sink whose disk is full at the first write."""

    error = OSError(errno.ENOSPC, "No space left on device")

    def write(self, trajectory):
        error, self.error = self.error, None
        if error is not None:
            raise ConfigError("cannot append") from error
        super().write(trajectory)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_finish_that_could_not_be_written_changes_nothing_and_may_be_repeated(number):
    sink = FullOnce()
    sink.error = OSError(number, "no")
    async with gateway(kept=sink) as server:
        session = await server.open()
        finish = f"/sessions/{session['id']}/finish"
        async with server.http.post(finish, json={"reward": 1.0}, headers=TOKEN) as response:
            assert (response.status, response.headers["Retry-After"]) == (500, "5")
            assert (await response.json())["reason"] == "not_written"
        assert (await server.ask("/v1/lines", "x", key_of(session)))[0] == 200, "the session is still open"
        # Nothing was recorded, so another reward is not a contradiction.
        answered, told = await server.control("POST", finish, {"reward": 0.25})
        assert (answered, told["reward"], told["turns"]) == (200, 0.25, 1)
        assert [trajectory.reward for trajectory in sink.trajectories] == [0.25]


async def test_an_idle_session_whose_end_could_not_be_written_ends_later():
    sink = FullOnce()
    async with gateway(kept=sink, session_idle_timeout=0.1) as server:
        await server.open()
        await until(lambda: sink.trajectories)
        assert sink.trajectories[0].stop_reason is StopReason.EPISODE_TIMEOUT


async def test_without_a_token_the_control_api_is_closed_by_a_random_one():
    async with gateway(token=None) as server:
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer None"}):
            assert (await server.control("POST", "/sessions", {}, headers=headers))[0] == 401
        secret = server.app.settings.secret
        assert (await server.control("POST", "/sessions", {}, headers={"Authorization": f"Bearer {secret}"}))[0] == 200


async def test_an_ended_episode_is_gone_for_its_agent_and_clients_do_not_ask_again():
    async with gateway() as server:
        session = await server.open()
        await server.control("POST", f"/sessions/{session['id']}/finish", {"reward": 1})
        for path in (f"/sessions/{session['id']}/v1/lines", "/v1/lines"):
            async with server.http.post(path, json={"text": "x"}, headers=key_of(session)) as response:
                assert (response.status, response.headers["x-should-retry"]) == (410, "false")
                told = await response.json()
                assert (told["wire"], told["code"]) == ("lines", "episode_ended")
        assert (await server.control("POST", "/sessions", {"id": session["id"]}))[0] == 409


@pytest.mark.parametrize("where", ["path", "bearer", "x-api-key", "x-episode"])
async def test_the_episode_is_named_by_path_key_or_header(where):
    async with gateway() as server:
        await server.open()
        session = await server.open(id="ep-2")
        headers = {"x-api-key": session["key"]} if where == "x-api-key" else key_of(session)
        if where == "x-episode":
            headers |= {"x-episode": "ep-2"}
        path = "/sessions/ep-2/v1/lines" if where == "path" else "/v1/lines"
        assert (await server.ask(path, "hi", headers))[0] == 200
        assert [len(episode.calls) for episode in server.episodes] == [0, 1]


async def test_a_tenant_sees_no_session_of_another():
    async with gateway() as server:
        mine, other = await server.open(), await server.open(id="other")
        unknown = await server.ask("/sessions/nobodys/v1/lines", "x", key_of(mine))
        for headers in (key_of(mine), {}, {"Authorization": "Bearer x"}, {"x-api-key": "é"}):
            refused = await server.ask("/sessions/other/v1/lines", "x", headers)
            assert refused[0] == 404
            assert refused[1]["text"].replace("other", "nobodys") == unknown[1]["text"]
            assert (await server.ask("/sessions/other/v1/lines/count", "x", headers))[0] == 404
            assert (await server.control("GET", "/sessions/other", headers=headers))[0] == 401
            assert (await server.control("DELETE", "/sessions/other", headers=headers))[0] == 401
            assert (await server.control("POST", "/sessions/other/finish", {"reward": 1}, headers=headers))[0] == 401
            assert (await server.control("POST", "/sessions", {}, headers=headers))[0] == 401
            assert (await server.control("GET", "/sessions", headers=headers))[0] == 401
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/finish")):  # of its own session neither
            assert (await server.control(method, f"/sessions/{mine['id']}{path}", headers=key_of(mine)))[0] == 401
        await server.control("POST", "/sessions/other/finish", {"reward": 1})
        assert (await server.ask("/sessions/other/v1/lines", "x", key_of(mine)))[0] == 404
        assert (await server.ask("/sessions/other/v1/lines", "x", key_of(other)))[0] == 410
        assert (await server.ask("/v1/lines", "x", {"x-episode": "other", **key_of(mine)}))[0] == 200  # its own
        assert len(server.episodes[1].calls) == 0


async def test_a_client_without_a_known_key_is_told_what_to_do():
    async with gateway() as server:
        assert await server.ask("/v1/lines", "x", {"Authorization": "Bearer x"}) == (
            401,
            {
                "wire": "lines",
                "code": "invalid_api_key",
                "text": "this key belongs to no session: name one by the base URL, /sessions/ID/v1, or its key",
            },
        )


@pytest.mark.parametrize("path", ["/sessions/any", "/sessions/any/v1", "/v1", "/"])
async def test_an_agent_may_look_whether_its_base_is_there(path):
    async with gateway() as server, server.http.head(path) as response:
        assert response.status == 200


@pytest.mark.parametrize("body", [b"{", b"[1]", b"", b'{"text"', b"[" * 100_000, b"\xff"])
async def test_what_is_no_request_is_told_in_the_wires_words(body):
    async with gateway() as server:
        session = await server.open()
        async with server.http.post("/v1/lines", data=body, headers=key_of(session)) as response:
            told = await response.json()
            assert (response.status, told["code"]) == (400, "invalid_json"), told
            assert response.headers["x-should-retry"] == "false"
        assert (await server.ask("/v1/lines", "\ud800", key_of(session)))[0] == 200
        async with server.http.post("/v1/lines", json={}, headers=key_of(session)) as response:
            assert (response.status, (await response.json())["code"]) == (400, "no_text")


async def test_a_stream_lives_while_the_policy_speaks():
    async with gateway(heartbeat=0.05) as server:
        session = await server.open()
        gate = server.episodes[0].wait["slow words"] = asyncio.Event()
        body = {"text": "slow words", "stream": True}
        async with server.http.post("/v1/lines", json=body, headers=key_of(session)) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            for _ in range(2):
                assert await response.content.readuntil(b"\n\n") == b": alive\n\n"
            gate.set()
            rest = (await response.read()).decode()
        events = [event for event in rest.split("\n\n") if event and event != ": alive"]
        assert events[:2] == ["data: SLOW", "data: WORDS"]
        assert int(events[2].removeprefix("data: [END ").rstrip("]")) >= 2
        assert server.episodes[0].lost == []


async def test_a_refusal_before_the_first_event_has_its_status_and_one_behind_it_is_an_event():
    async with gateway(heartbeat=0.02) as server:
        session = await server.open(rules={"max_calls": 1})
        await server.ask("/v1/lines", "first", key_of(session))
        body = {"text": "second", "stream": True}
        async with server.http.post("/v1/lines", json=body, headers=key_of(session)) as response:
            assert (response.status, (await response.json())["code"]) == (410, "max_turns")
        gate = server.episodes[0].wait["second"] = asyncio.Event()
        async with server.http.post("/v1/lines", json=body, headers=key_of(session)) as response:
            assert await response.content.readuntil(b"\n\n") == b": alive\n\n"
            gate.set()
            assert (await response.read()).endswith(b"data: !max_turns\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_of_ours_is_told_by_its_mark(stream, caplog):
    async with gateway() as server:
        session = await server.open()
        status, told = await server.ask("/v1/lines", "bug", key_of(session), stream=stream)
        assert status == 500
        assert "ZeroDivision" not in json.dumps(told)
        assert "ZeroDivisionError" in caplog.text
        assert (await server.ask("/v1/lines", "good", key_of(session)))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_whose_agent_leaves_is_aborted(stream):
    async with gateway(heartbeat=0.02) as server:
        session = await server.open()
        server.episodes[0].wait["long"] = asyncio.Event()
        body = {"stream": stream}
        asking = asyncio.create_task(server.ask("/v1/lines", "long", key_of(session), **body))
        await until(lambda: server.app.episodes.table.find(session["id"]).busy)
        await asyncio.sleep(0.1)
        asking.cancel()
        await until(lambda: server.episodes[0].cancelled == 1)
        assert server.episodes[0].lost == []
        _, figures = await server.control("GET", f"/sessions/{session['id']}")
        assert (figures["answering"], figures["calls"]) == (0, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_the_agent_does_not_read_is_undelivered(stream):
    async with gateway(write_timeout=0.2) as server:
        session = await server.open()
        text = "x " * 5_000_000
        body = json.dumps({"text": text, "stream": stream}).encode()
        _, writer = await asyncio.open_connection(server.http._base_url.host, server.http._base_url.port)
        head = f"POST /v1/lines HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {session['key']}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: server.episodes[0].lost == ["r0"])
        writer.close()


async def test_a_call_under_way_when_the_episode_ends_gets_410():
    async with gateway() as server:
        session = await server.open()
        server.episodes[0].wait["long"] = asyncio.Event()
        asking = asyncio.create_task(server.ask("/v1/lines", "long", key_of(session)))
        await until(lambda: server.app.episodes.table.find(session["id"]).busy)
        await server.control("POST", f"/sessions/{session['id']}/finish", {"reward": 1.0})
        assert (await asking)[0] == 410
        assert [trajectory.reward for trajectory in server.kept.trajectories] == [1.0]


async def test_a_dropped_session_leaves_nothing_and_its_place():
    async with gateway() as server:
        session = await server.open(group="g", sample=0)
        await server.ask("/v1/lines", "x", key_of(session))
        assert await server.control("DELETE", f"/sessions/{session['id']}") == (200, {"dropped": True})
        assert await server.control("DELETE", f"/sessions/{session['id']}") == (200, {"dropped": True})
        assert (await server.ask("/v1/lines", "x", key_of(session)))[0] == 410
        assert (await server.control("POST", f"/sessions/{session['id']}/finish", {"reward": 1}))[0] == 410
        assert (await server.control("DELETE", "/sessions/unknown"))[0] == 404
        again = await server.open(group="g", sample=0)
        assert again["sample_index"] == 0
        await server.control("POST", f"/sessions/{again['id']}/finish", {"reward": 1})
        assert (await server.control("DELETE", f"/sessions/{again['id']}"))[0] == 409
        assert len(server.kept.trajectories) == 1


async def test_groups_and_samples_are_places_of_a_run():
    async with gateway() as server:
        first = [await server.open(task="a") for _ in range(2)]
        other = await server.open(task="b")
        nameless = [await server.open() for _ in range(2)]
        places = [(each["task_index"], each["sample_index"]) for each in (*first, other, *nameless)]
        assert places == [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0)]
        assert (await server.open(task="c", group="a"))["sample_index"] == 2
        status, told = await server.control("POST", "/sessions", {"group": "a", "sample": 1})
        assert (status, "sample 1 of group 'a' is there already" in told["detail"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"limits": {"max_response_tokens": 0}}, 400, "max_response_tokens"),
        ({"limits": {"max_turn": 3}}, 400, "max_turn"),
        ({"rules": {"max_calls": 0}}, 400, "max_calls"),
        ({"sampling": {"temprature": 1}}, 400, "temperature"),
        ({"task": {"prompt": "text"}}, 400, "prompt"),
        ({"id": "a/b"}, 422, "id"),
        ({"sampel": 1}, 422, "sampel"),
    ],
)
async def test_a_session_that_cannot_be_is_refused_by_its_field(body, status, told):
    async with gateway() as server:
        answered = await server.control("POST", "/sessions", body)
        assert (answered[0], told in json.dumps(answered[1])) == (status, True), answered
        assert (await server.open(task="after"))["task_index"] == 0


async def test_settings_are_those_of_the_session_or_else_of_the_server():
    async with gateway(max_new_tokens=7, temperature=0.5, max_calls=3, untrained=["retracted"]) as server:
        await server.open()
        other = {"limits": {"max_response_tokens": 9}, "sampling": {"temperature": 0.0, "stop_token_ids": [1]}}
        await server.open(**other, rules={"max_calls": None, "untrained": []}, training_step=4)
        first, second = server.episodes
        assert (first.config.sampling.max_new_tokens, first.config.sampling.temperature) == (7, 0.5)
        assert (first.rules.max_calls, first.rules.untrained) == (3, ("retracted",))
        assert (second.config.sampling.temperature, second.config.sampling.stop_token_ids) == (0.0, (1,))
        assert (second.rules.max_calls, second.rules.untrained, second.config.training_step) == (None, (), 4)
        assert second.config.limits.max_response_tokens == 9


async def test_an_idle_session_ends_as_failed_by_name():
    async with gateway(session_idle_timeout=0.2) as server:
        session = await server.open()
        await server.ask("/v1/lines", "x", key_of(session))
        await until(lambda: server.kept.trajectories)
        [trajectory] = server.kept.trajectories
        assert (trajectory.stop_reason, trajectory.error.turn) == (StopReason.EPISODE_TIMEOUT, 1)
        assert "the agent made no call for" in trajectory.error.message
        assert (await server.ask("/v1/lines", "x", key_of(session)))[0] == 410


async def test_a_harness_that_broke_says_so():
    async with gateway() as server:
        session = await server.open()
        body = {"reward": 1.0, "error": "the container died"}
        _, summary = await server.control("POST", f"/sessions/{session['id']}/finish", body)
        assert (summary["reward"], summary["stop_reason"], summary["trainable"]) == (0.0, "env_failed", False)
        assert summary["error"] == "the container died"


async def test_what_is_open_at_the_end_is_written_as_aborted():
    async with gateway() as server:
        session = await server.open()
        await server.ask("/v1/lines", "x", key_of(session))
        kept = server.kept
    assert [trajectory.stop_reason for trajectory in kept.trajectories] == [StopReason.ABORTED]


async def test_a_server_that_drains_takes_ends_and_no_calls():
    async with gateway() as server:
        session = await server.open()
        server.app.drain()
        assert (await server.ask("/v1/lines", "x", key_of(session)))[0] == 503
        status, _ = await server.control("POST", f"/sessions/{session['id']}/finish", {"reward": 1})
        assert (status, len(server.kept.trajectories)) == (200, 1)


async def test_more_sessions_than_allowed_are_refused():
    async with gateway(max_sessions=1) as server:
        await server.open()
        assert (await server.control("POST", "/sessions", {"group": "g", "sample": 0}))[0] == 429
        run = server.app.episodes.run
        assert run.place(server.episodes[0].job.task, "g", 0).key.sample_index == 0, "the place is free"


async def test_what_a_refused_call_asks_for_in_vain_is_counted():
    async with gateway(max_concurrency=1, queue_timeout=0.1) as server:
        session = await server.open(rules={"max_calls": 1})
        gate = server.episodes[0].wait["long"] = asyncio.Event()
        asking = asyncio.create_task(server.ask("/v1/lines", "long", key_of(session)))
        await until(lambda: server.app.gate.running)
        assert (await server.ask("/v1/lines", "x", key_of(session), left_out=["a"]))[0] == 429
        gate.set()
        assert (await asking)[0] == 200
        assert (await server.ask("/v1/lines", "x", key_of(session), left_out=["b"]))[0] == 410
        assert server.episodes[0].noted == [(), ("a",), ("b",)]


async def test_agents_may_open_sessions_by_their_first_request():
    async with gateway(open_by="agents", token=None) as server:
        mine = {"Authorization": "Bearer sk-mine"}
        for _ in range(2):
            assert (await server.ask("/v1/lines", "a", mine))[0] == 200
        named = {"Authorization": "Bearer dummy"}
        for name in ("x", "y", "x"):
            assert (await server.ask(f"/sessions/{name}/v1/lines", "b", named))[0] == 200
            assert (await server.ask("/v1/lines", "b", {**named, "x-episode": name}))[0] == 200
        assert (await server.ask("/sessions/x/v1/lines", "b", mine))[0] == 404
        assert (await server.ask("/v1/lines", "b", {}))[0] == 401
        assert [len(episode.calls) for episode in server.episodes] == [2, 4, 2]
        assert (await server.ask("/sessions/a:b/v1/lines", "b", named))[0] == 400


async def test_agents_open_sessions_with_the_agents_key_and_not_with_the_control_token():
    async with gateway(open_by="agents", agents_key="the-agents") as server:
        agents = {"Authorization": "Bearer the-agents"}
        assert (await server.ask("/sessions/x/v1/lines", "b", {"x-api-key": "dummy"}))[0] == 404
        assert (await server.ask("/v1/lines", "b", agents))[0] == 401, "it names no session"
        for name in ("x", "y"):
            assert (await server.ask("/v1/lines", "b", {**agents, "x-episode": name}))[0] == 200
        assert (await server.ask("/v1/lines", "b", {**TOKEN, "x-episode": "z"}))[0] == 404
        assert (await server.control("GET", "/sessions", headers=agents))[0] == 401
        assert [len(episode.calls) for episode in server.episodes] == [1, 1]


async def test_sub_agents_are_told_apart():
    async with gateway() as server:
        session = await server.open()
        codex = {"thread-id": "t2", "x-codex-parent-thread-id": "t1"}
        for headers, agent in (({"thread-id": "t1"}, ""), (codex, "t2"), ({"x-claude-code-agent-id": "a"}, "a")):
            answered = await server.ask("/v1/lines", "x", {**key_of(session), **headers})
            assert answered[1]["agent"] == agent


async def test_the_models_of_a_gateway():
    async with gateway() as server:
        for path in ("/v1/models", "/sessions/x/v1/models"):
            async with server.http.get(path) as response:
                assert [model["id"] for model in (await response.json())["data"]] == ["policy"]
