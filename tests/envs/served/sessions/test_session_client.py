"""The client against servers that are down, slow, full or strange, and against several of ours."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import time

import pytest
from aiohttp import web

from tests.envs.served.sessions.counting import serving
from toolgym.envs.served.sessions.client import SessionClient
from toolgym.envs.served.sessions.protocol import new_sid
from toolgym.tools.errors import ConfigError, EpisodeError, RemoteSessionError, UnknownNameError


@contextlib.asynccontextmanager
async def scripted(**answers):
    """A server with an answer for each path, or a function from the body to one. Gives its URL and what it was sent."""
    sent = []

    async def handle(request):
        name = request.path.strip("/")
        if name not in answers:
            return web.Response(text="ok")
        body = await request.json()
        sent.append((name, body))
        answer = answers[name](body) if callable(answers[name]) else answers[name]
        answer = await answer if asyncio.iscoroutine(answer) else answer
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", sent
    finally:
        await runner.cleanup()


def started(body):
    return {"sid": "77"}


@functools.cache
def down():
    """The address of a server that is down. Its port stays taken to the end of the tests: no other server gets it."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    taken.detach()
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def quick_retries(monkeypatch):
    """A call has no more attempts long before its time is up, also on a machine that is busy."""
    monkeypatch.setattr("toolgym.envs.served.sessions.client.MAX_DELAY", 0.01)


async def test_an_episode(service):
    async with SessionClient(service.url) as client:
        session = await client.start("count:0")
        assert session.greeting == "Count."
        assert await session.act("add 4") == ("4", False)
        assert await session.act("end") == ("4", True)
        await session.postprocess()
        assert (await session.reward()).value == 0.4
        value, answer = await client.reward(int(session.sid))
        assert (value, answer["f2p_count"]) == (0.4, 4)
        with pytest.raises(EpisodeError, match="no more actions"):
            await session.act("add 1")
        with pytest.raises(UnknownNameError, match="no such task"):
            await client.start("nothing")
        with pytest.raises(RemoteSessionError, match="no server has the session"):
            await client.reward(new_sid())


async def test_sessions_are_spread_and_stay(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(tmp_path / f"{n}.db")) for n in range(2)]
        client = await stack.enter_async_context(SessionClient([one.url for one in servers]))
        sessions = await asyncio.gather(*(client.start("count:0") for _ in range(20)))
        assert {one.app.open_sessions() for one in servers} == {10}
        for _ in range(2):
            await asyncio.gather(*(one.act("add 1") for one in sessions))
        assert {(await one.act("add 0")).content for one in sessions} == {"2"}
        # By its id alone a session is found on whichever server it is.
        assert {(await client.reward(one.sid)).value for one in sessions} == {0.2}


async def test_a_server_that_is_down(quick_retries):
    url = down()
    async with SessionClient(url, patience=0.3, start_timeout=60) as client:
        with pytest.raises(RemoteSessionError, match=f"/start_instance: .*{url.removeprefix('http://')}"):
            await client.start("count:0")
        with pytest.raises(RemoteSessionError, match="cannot be reached"):
            await client.reward("5")


async def test_a_server_that_is_down_beside_one_that_is_not(service):
    async with SessionClient([down(), service.url], reward_timeout=60) as client:
        session = await client.start("count:3")
        assert (await session.reward()).value == 0.3
        assert (await client.reward(session.sid)).value == 0.3


async def test_a_slow_server(database, monkeypatch):
    monkeypatch.setattr("toolgym.envs.served.sessions.client.MARGIN", 0.05)
    async with serving(database) as service:
        async with SessionClient(service.url, action_timeout=0.1, patience=0.99) as client:
            session = await client.start("count:0")
            with pytest.raises(RemoteSessionError, match=r"/process_action: .*no answer within 0\.15 s"):
                await session.act("wait")
        service.backend.go_on.set()


async def test_an_answer_that_was_lost_is_asked_for_again(database, monkeypatch):
    monkeypatch.setattr("toolgym.envs.served.sessions.client.MARGIN", 0.05)
    async with serving(database) as service, SessionClient(service.url, action_timeout=0.1) as client:
        session = await client.start("count:0")
        acting = asyncio.create_task(session.act("wait"))
        await asyncio.wait_for(service.backend.waiting.wait(), 60)
        await asyncio.sleep(0.3)  # the first attempt is given up
        service.backend.go_on.set()
        assert (await acting).content == "1"
        assert service.backend.ran == 1


async def test_an_action_is_not_sent_twice_to_a_server_that_heeds_no_request_ids():
    def cut(body):
        return web.Response(status=502, text="the proxy lost its server")

    async with (
        scripted(start_instance=started, process_action=cut) as (url, sent),
        SessionClient(url, patience=2.0) as client,
    ):
        session = await client.start("count:0")
        with pytest.raises(RemoteSessionError, match="unknown outcome"):
            await session.act("add 1")
        assert [name for name, _ in sent].count("process_action") == 1
        assert sent[-1][1] == {"sid": "77", "content": "add 1"}


async def test_a_full_server_is_asked_again_after_the_time_that_it_gives():
    times = []

    def full_at_first(body):
        times.append(time.monotonic())
        busy = web.Response(status=429, headers={"Retry-After": "0.2"})
        return busy if len(times) == 1 else {"content": "done"}

    async with (
        scripted(start_instance=started, process_action=full_at_first) as (url, _),
        SessionClient(url) as client,
    ):
        assert (await (await client.start("x")).act("add 1")).content == "done"
    assert times[1] - times[0] >= 0.2


async def test_a_server_that_stays_full():
    busy = web.Response(status=429, headers={"Retry-After": "60"})
    async with (
        scripted(start_instance=lambda body: busy) as (url, sent),
        SessionClient(url, start_timeout=0.1, patience=0.5) as client,
    ):
        with pytest.raises(RemoteSessionError, match="is full"):
            await client.start("x")
        assert len(sent) == 1


async def test_a_huge_answer(monkeypatch):
    monkeypatch.setattr("toolgym.envs.served.sessions.client.MAX_ANSWER", 1000)
    async with (
        scripted(start_instance=started, process_action=lambda body: {"content": "x" * 2000}) as (url, _),
        SessionClient(url) as client,
    ):
        with pytest.raises(RemoteSessionError, match="the answer has more than 1000 bytes"):
            await (await client.start("x")).act("add 1")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({}, "sid"),
        ({"sid": "no number"}, "sid"),
        ({"sid": str(2**63)}, "sid"),
        ([], "expected a JSON object"),
        (web.Response(text="<html>"), "expected a JSON object"),
    ],
)
async def test_a_start_that_makes_no_sense(answer, expected, quick_retries):
    async with (
        scripted(start_instance=lambda body: _again(answer)) as (url, _),
        SessionClient(url, patience=0.2, start_timeout=60) as client,
    ):
        with pytest.raises(RemoteSessionError, match=expected):
            await client.start("x")


def _again(answer):
    return web.Response(text=answer.text) if isinstance(answer, web.Response) else answer


async def test_a_reward_that_is_none():
    async with (
        scripted(start_instance=started, compute_reward=lambda body: {"reward": None}) as (url, _),
        SessionClient(url, patience=0.2, reward_timeout=60) as client,
    ):
        session = await client.start("x")
        with pytest.raises(RemoteSessionError, match="reward of /compute_reward must be a number"):
            await session.reward()


async def test_what_a_server_without_our_fields_answers():
    answers = {
        "start_instance": lambda body: {"sid": 5671949450826943757},
        "process_action": lambda body: {"content": "ok"},
        "postprocess": lambda body: {"log": "closed"},
        "compute_reward": lambda body: {"f2p_count": 9, "f2p_total": 10},
    }
    async with scripted(**answers) as (url, sent), SessionClient(url) as client:
        session = await client.start(3864552457764042195)
        assert session.sid == "5671949450826943757"
        assert await session.act("x") == ("ok", False)
        await session.postprocess()
        assert (await session.reward()).value == 0.9
        assert sent[0][1]["instance_hash"] == "3864552457764042195"


async def test_wrong_arguments(service, database, tmp_path):
    for wrong in ((), "host:1", [""]):
        with pytest.raises(ConfigError):
            SessionClient(wrong)
    with pytest.raises(ConfigError, match="patience"):
        SessionClient(service.url, patience=0)
    async with (
        serving(tmp_path / "other.db", token="secret") as closed,
        SessionClient(closed.url, token="wrong") as client,
    ):
        with pytest.raises(ConfigError, match="401: a valid bearer token"):
            await client.start("count:0")
    async with SessionClient(f"{service.url}/elsewhere") as client:
        with pytest.raises(ConfigError, match="Is that the address of a session server"):
            await client.start("count:0")
