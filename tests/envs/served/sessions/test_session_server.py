"""The session server in this process: the four calls, restarts, retries, limits, and what goes wrong."""

from __future__ import annotations

import asyncio
import math
import sqlite3

import aiohttp
import pytest

from tests.actors import until
from tests.envs.served.sessions.counting import CountingBackend, serving
from toolgym.envs.served.sessions.protocol import MAX_SID, new_sid, read_reward, read_sid
from toolgym.envs.served.sessions.store import Store, Stored, StoreError
from toolgym.tools.errors import ConfigError
from toolgym.tools.serving import session_table


async def test_an_episode(service, post):
    status, started = await post(service.url, "/start_instance", instance_hash="count:0")
    sid = started["sid"]
    assert (status, started["content"]) == (200, "Count.")
    assert sid == str(int(sid))
    assert 0 < int(sid) <= MAX_SID
    assert await post(service.url, "/process_action", sid=sid, content="add 3") == (
        200,
        {"content": "3", "done": False},
    )
    # As the original's client sends it: a number.
    assert (await post(service.url, "/process_action", sid=int(sid), content="end"))[1] == {
        "content": "3",
        "done": True,
    }
    assert await post(service.url, "/postprocess", sid=int(sid)) == (200, {})
    assert service.backend.open_instances == 0
    expected = 200, {"f2p_count": 3, "f2p_total": 10, "reward": 0.3}
    assert await post(service.url, "/compute_reward", sid=int(sid)) == expected
    assert await post(service.url, "/compute_reward", sid=sid) == expected
    assert await post(service.url, "/postprocess", sid=sid) == (200, {})
    assert service.backend.rewards == 1
    status, answer = await post(service.url, "/process_action", sid=sid, content="add 1")
    assert (status, answer["reason"]) == (409, "finished")


async def test_a_reward_in_the_middle_is_that_of_the_state_then(service, post):
    sid = (await post(service.url, "/start_instance", instance_hash="count:1"))[1]["sid"]
    assert (await post(service.url, "/compute_reward", sid=sid))[1]["reward"] == 0.1
    await post(service.url, "/process_action", sid=sid, content="add 1")
    assert (await post(service.url, "/compute_reward", sid=sid))[1]["reward"] == 0.2


async def test_sessions_go_on_after_a_restart(database, post):
    async with serving(database) as first:
        sids = [(await post(first.url, "/start_instance", instance_hash="count:0"))[1]["sid"] for _ in range(3)]
        for number, sid in enumerate(sids):
            await post(first.url, "/process_action", sid=sid, content=f"add {number}")
        await post(first.url, "/postprocess", sid=sids[2])
        broken = (await post(first.url, "/start_instance", instance_hash="count:-1"))[1]["sid"]
        await post(first.url, "/postprocess", sid=broken)
    async with serving(database) as second:
        assert second.backend.open_instances == 0  # they are opened when they are asked for
        for number, sid in enumerate(sids[:2]):
            assert (await post(second.url, "/process_action", sid=sid, content="add 1"))[1]["content"] == str(
                number + 1
            )
        assert (await post(second.url, "/compute_reward", sid=sids[2]))[1]["reward"] == 0.2
        assert second.backend.rewards == 0
        # A reward that could not be computed is tried again; it is no zero.
        status, answer = await post(second.url, "/compute_reward", sid=broken)
        assert (status, answer["reason"]) == (500, "backend_failed")
        assert "10.1.2.3" not in answer["detail"]


async def test_an_action_with_a_request_id_runs_once(service, database, post):
    sid = (await post(service.url, "/start_instance", instance_hash="count:0"))[1]["sid"]
    action = {"sid": sid, "content": "add 1", "request_id": "first"}
    assert await post(service.url, "/process_action", **action) == await post(service.url, "/process_action", **action)
    assert service.backend.ran == 1
    assert (await post(service.url, "/process_action", **{**action, "request_id": "second"}))[1]["content"] == "2"


async def test_a_start_with_a_request_id_gives_one_session(service, post):
    start = {"instance_hash": "count:0", "request_id": "one"}
    answers = await asyncio.gather(*(post(service.url, "/start_instance", **start) for _ in range(4)))
    answers.append(await post(service.url, "/start_instance", **start))
    assert len({answer["sid"] for _, answer in answers}) == 1
    assert service.backend.open_instances == 1


async def test_an_action_goes_on_when_its_client_disconnects(service, post):
    sid = (await post(service.url, "/start_instance", instance_hash="count:0"))[1]["sid"]
    action = {"sid": sid, "content": "wait", "request_id": "one"}
    lost = asyncio.create_task(post(service.url, "/process_action", **action))
    await asyncio.wait_for(service.backend.waiting.wait(), 60)
    lost.cancel()
    again = asyncio.create_task(post(service.url, "/process_action", **action))
    service.backend.go_on.set()
    assert await again == (200, {"content": "1", "done": False})
    assert service.backend.ran == 1


async def test_a_session_whose_client_never_learns_of_it_is_deleted(database):
    class Slow(CountingBackend):
        async def open(self, instance_hash, state=None):
            self.waiting.set()
            await self.go_on.wait()
            return await super().open(instance_hash, state)

    async with serving(database, Slow()) as service:
        async with aiohttp.ClientSession() as client:
            start = asyncio.create_task(client.post(f"{service.url}/start_instance", json={"instance_hash": "count:0"}))
            await asyncio.wait_for(service.backend.waiting.wait(), 60)
            start.cancel()
        await until(lambda: service.app.in_flight == 0)
        service.backend.go_on.set()
        await until(lambda: service.app.open_sessions() == service.backend.open_instances == 0)


async def test_what_fails_has_not_happened(service, post):
    sid = (await post(service.url, "/start_instance", instance_hash="count:5"))[1]["sid"]
    status, answer = await post(service.url, "/process_action", sid=sid, content="fail")
    assert (status, answer["reason"]) == (500, "backend_failed")
    assert "10.1.2.3" not in answer["detail"]
    assert (await post(service.url, "/process_action", sid=sid, content="add 1"))[1]["content"] == "6"
    assert (await post(service.url, "/process_action", sid=sid, content="fail once"))[1]["content"] == "6"


async def test_an_action_that_takes_too_long_has_not_happened(database, post):
    async with serving(database, action_timeout=0.05) as service:
        sid = (await post(service.url, "/start_instance", instance_hash="count:5"))[1]["sid"]
        status, answer = await post(service.url, "/process_action", sid=sid, content="wait")
        assert (status, answer["reason"]) == (500, "backend_timeout")
        assert (await post(service.url, "/process_action", sid=sid, content="add 1"))[1]["content"] == "6"


async def test_a_database_that_fails_undoes_the_action(service, database, post):
    sid = (await post(service.url, "/start_instance", instance_hash="count:5"))[1]["sid"]
    other = sqlite3.connect(database)
    other.execute("CREATE TRIGGER full BEFORE UPDATE ON sessions BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    other.commit()
    assert (await post(service.url, "/process_action", sid=sid, content="add 1"))[0] == 500
    other.execute("DROP TRIGGER full")
    other.commit()
    other.close()
    assert (await post(service.url, "/process_action", sid=sid, content="add 2"))[1]["content"] == "7"


async def test_a_sid_of_another_client_is_refused(database, tmp_path, post):
    clients = tmp_path / "clients.yaml"
    clients.write_text("alice: secret-a\nbob: secret-b\n")
    async with serving(database, token="secret", clients_file=clients) as service:
        sid = (await post(service.url, "/start_instance", "secret-a", instance_hash="count:0"))[1]["sid"]
        unknown = new_sid()
        for path, body in (("/process_action", {"content": "add 1"}), ("/postprocess", {}), ("/compute_reward", {})):
            for token in ("secret-b", "secret"):
                refused = await post(service.url, path, token, sid=sid, **body)
                assert refused == await post(service.url, path, token, sid=unknown, **body)  # it does not say it exists
                assert (refused[0], refused[1]["reason"]) == (404, "no_session")
            assert (await post(service.url, path, "wrong", sid=sid, **body))[0] == 401
            assert (await post(service.url, path, sid=sid, **body))[0] == 401
        # Nor does a request id of another client give its session.
        start = {"instance_hash": "count:0", "request_id": "same"}
        one = (await post(service.url, "/start_instance", "secret-a", **start))[1]["sid"]
        assert (await post(service.url, "/start_instance", "secret-b", **start))[1]["sid"] != one
        assert (await post(service.url, "/process_action", "secret-a", sid=sid, content="add 1"))[1]["content"] == "1"


async def test_a_client_has_so_many_sessions(database, tmp_path, post):
    clients = tmp_path / "clients.yaml"
    clients.write_text("alice: secret-a\n")
    limits = {"max_sessions": 3, "max_sessions_per_client": 2}
    async with serving(database, token="secret", clients_file=clients, **limits) as service:
        start = {"instance_hash": "count:0"}
        first = await post(service.url, "/start_instance", "secret", **start)
        assert (await post(service.url, "/start_instance", "secret", **start))[0] == 200
        status, answer = await post(service.url, "/start_instance", "secret", **start)
        assert status == 429
        assert "you have 2 open sessions" in answer["detail"]
        assert (await post(service.url, "/start_instance", "secret-a", **start))[0] == 200
        status, answer = await post(service.url, "/start_instance", "secret-a", **start)
        assert status == 429
        assert "3 sessions are open" in answer["detail"]
        await post(service.url, "/postprocess", "secret", sid=first[1]["sid"])
        assert (await post(service.url, "/start_instance", "secret", **start))[0] == 200


async def test_a_client_has_so_many_requests(database, post):
    async with serving(database, max_requests_per_client=1) as service:
        sid = (await post(service.url, "/start_instance", instance_hash="count:0"))[1]["sid"]
        running = asyncio.create_task(post(service.url, "/process_action", sid=sid, content="wait"))
        await asyncio.wait_for(service.backend.waiting.wait(), 60)
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{service.url}/compute_reward", json={"sid": sid}) as refused,
        ):
            assert refused.status == 429
            assert refused.headers["Retry-After"] == "1"
        service.backend.go_on.set()
        assert (await running)[0] == 200


async def test_idle_sessions_expire(database, post, stop_clock):
    clock = stop_clock(session_table)
    async with serving(database, session_idle_timeout=0.2, reward_timeout_after_postprocess=100) as service:
        idle = (await post(service.url, "/start_instance", instance_hash="count:0"))[1]["sid"]
        finished = (await post(service.url, "/start_instance", instance_hash="count:4"))[1]["sid"]
        await post(service.url, "/postprocess", sid=finished)
        clock.now += 0.3
        await until(lambda: service.app.open_sessions() == 0)
        assert (await post(service.url, "/process_action", sid=idle, content="add 1"))[0] == 404
        assert (await post(service.url, "/compute_reward", sid=finished))[1]["reward"] == 0.4
        await until(lambda: service.backend.open_instances == 0)
    async with serving(database, reward_timeout_after_postprocess=0.2) as service:
        assert sum(session.finished for session in service.app.sessions) == 1
        clock.now += 0.3
        await until(lambda: sum(session.finished for session in service.app.sessions) == 0)
        assert (await post(service.url, "/compute_reward", sid=finished))[0] == 404


async def test_a_long_answer_loses_its_middle(database, post):
    async with serving(database, max_content_chars=100) as service:
        sid = (await post(service.url, "/start_instance", instance_hash="count:0"))[1]["sid"]
        content = (await post(service.url, "/process_action", sid=sid, content="long 10000"))[1]["content"]
        assert len(content) < 200
        assert "9900 characters left out" in content


async def test_wrong_requests(service, post):
    assert (await post(service.url, "/start_instance", instance_hash="nothing"))[1]["reason"] == "no_task"
    assert (await post(service.url, "/start_instance", instance_hash="count:broken"))[1]["reason"] == "backend_failed"
    assert (await post(service.url, "/start_instance"))[0] == 422
    for sid in ("", "x", "-1", "0", str(2**63), 2**63, 1.5, True, None, "1" * 5000):
        assert (await post(service.url, "/compute_reward", sid=sid))[0] == 422, sid
    sid = (await post(service.url, "/start_instance", instance_hash="count:0"))[1]["sid"]
    assert (await post(service.url, "/process_action", sid=sid))[0] == 422
    assert (await post(service.url, "/process_action", sid=sid, content="add \ud800"))[0] in (200, 500)


async def test_the_description_and_the_figures(service, post):
    await post(service.url, "/start_instance", instance_hash="count:0")
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{service.url}/openapi.json") as response:
            paths = (await response.json())["paths"]
        assert {"/start_instance", "/process_action", "/postprocess", "/compute_reward", "/health"} <= paths.keys()
        async with client.get(f"{service.url}/metrics") as response:
            assert 'toolgym_sessions_sessions{worker="0"} 1.0' in await response.text()
        async with client.get(f"{service.url}/health") as response:
            assert (await response.json())["sessions"] == 1


async def test_two_servers_cannot_have_one_database(database, monkeypatch):
    monkeypatch.setattr("toolgym.envs.served.sessions.store.LOCK_PATIENCE", 0.0)
    async with serving(database):
        with pytest.raises(ConfigError, match="in use by another server"):
            Store(database)


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "text").write_text("This is a text and no database. " * 10)
    with pytest.raises(ConfigError, match="cannot use"):
        Store(tmp_path / "text")


def test_session_ids():
    assert len({new_sid() for _ in range(100)}) == 100
    assert read_sid(7) == read_sid("7") == read_sid("007") == "7"
    for wrong in (0, 2**63, "x", "", None, 1.0, "١"):
        with pytest.raises(ConfigError):
            read_sid(wrong)


def test_how_an_answer_is_read_as_a_reward():
    assert read_reward({"reward": 0.9, "f2p_count": 0, "f2p_total": 1}) == 0.9
    assert read_reward({"f2p_count": 9, "f2p_total": 10}) == 0.9
    assert read_reward({"f2p_count": 0, "f2p_total": 0}) == read_reward({"f2p_count": 1}) == read_reward({}) == 0.0
    for wrong in ({"reward": "1"}, {"reward": None}, {"reward": math.nan}, {"f2p_count": "1", "f2p_total": 2}):
        with pytest.raises(ConfigError):
            read_reward(wrong)


async def test_a_damaged_reward_is_an_error_of_the_database(database):
    store = Store(database)
    await store.add(Stored("1", "client", "count:0", ""), None, b"0")
    with sqlite3.connect(database) as other:
        other.execute("UPDATE sessions SET reward = '{half'")
    other.close()
    with pytest.raises(StoreError, match="sessions.db' failed: "):
        await store.sessions()
    await store.close()
