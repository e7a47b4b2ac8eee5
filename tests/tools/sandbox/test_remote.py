"""`RemoteSandbox` against servers that answer badly, late, or not at all."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
import time

import pytest

from tests.tools.sandbox.stand_ins import CELL, FUSION, HANG, RAN, SESSION, TOOLGYM, StandIn, answer
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox import ExecutionStatus, RemoteSandbox, Retries

OK, ERROR, INFRA = ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.SANDBOX_ERROR
QUICK = Retries(first_delay=0.002, max_delay=0.01, connect_timeout=30, attempt_margin=60, patience=60)
GOOD = answer(RAN)
CUT = GOOD[:-20]


def remote(*servers: StandIn, retries: Retries = QUICK, **options) -> RemoteSandbox:
    return RemoteSandbox([one.url for one in servers], retries=retries, **options)


@contextlib.asynccontextmanager
async def between(*answers, retries: Retries = QUICK, about=FUSION, **options):
    """A stand-in and a client of it."""
    async with StandIn(*answers, about=about) as server, remote(server, retries=retries, **options) as sandbox:
        yield server, sandbox


# ---------------------------------------------------------------------- sending again


@pytest.mark.parametrize(
    "bad",
    [
        answer({"detail": "x"}, 502),
        answer({"detail": "x"}, 503),
        answer(b"<html>", 504),
        answer({"detail": "full"}, 429),
        answer({"detail": "full"}, 429, Retry_After="0"),
        answer({"detail": "full"}, 429, Retry_After="Mon, 01 Jan 2001 00:00:00 GMT"),
        answer({"detail": "stopping"}, 503, Retry_After="0.01"),
        b"",
        CUT,
        b"HTTP/1.1 200",
        b"what?\r\n\r\n",
        answer(b'{"status": "Success", "mess'),
        answer(b"\xff\xfe"),
        answer([1]),
        answer({"status": "Great", "message": ""}),
        answer({"status": "Success", "message": ""}),
        answer(RAN | {"files": {"a": "é"}}),
    ],
)
async def test_a_run_is_sent_again_when_the_server_fails(bad):
    async with between(bad, bad, GOOD) as (server, sandbox):
        result = await sandbox.run("print(42)")
        assert (result.status, result.stdout) == (OK, "42\n")
        assert server.paths == ["/run_code"] * 3


async def test_it_is_given_up_after_so_many_attempts():
    async with between(answer(b"away", 502)) as (server, sandbox):
        result = await sandbox.run("1")
        assert result.status is INFRA
        assert "answered 502: away (5 attempts)" in result.message
        assert len(server.seen) == 5


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (answer({"detail": "boom"}, 500), "answered 500: boom"),
        (answer({"detail": "Not Found"}, 404), "answered 404: Not Found"),
        (answer({"detail": "no"}, 401), "answered 401: no"),
        (answer(b"", 307, Location="http://127.0.0.1:9/elsewhere"), "redirects to 'http://127.0.0.1:9/elsewhere'"),
        (answer({"status": "SandboxError", "message": "no runner"}), "no runner"),
    ],
)
async def test_what_another_attempt_would_not_mend_is_told_at_once(bad, said):
    async with between(bad) as (server, sandbox):
        result = await sandbox.run("1")
        assert result.status is INFRA
        assert said in result.message
        assert len(server.seen) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_a_server_that_is_full_is_left_alone_for_as_long_as_it_asks(form):
    times = []

    async def full(request):
        times.append(time.time())
        if len(times) == 1:
            soon = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2))
            return answer({"detail": "full"}, 429, Retry_After="0.3" if form == "seconds" else soon)
        return GOOD

    async with between(full) as (_, sandbox):
        assert (await sandbox.run("1")).ok
        assert times[1] - times[0] >= (0.3 if form == "seconds" else 0.9)


async def test_what_a_full_server_asks_for_has_a_limit_and_so_has_patience():
    retries = Retries(first_delay=0.01, max_retry_after=0.005, attempt_margin=5, patience=0.5)
    async with between(answer(b"", 429, Retry_After="3600"), retries=retries) as (server, sandbox):
        result = await sandbox.run("1", timeout=0.1)
        assert result.status is INFRA
        assert "no server answered within 0.7 s (at last: " in result.message
        assert len(server.seen) > 5, "a full server does not use up the attempts"


async def test_a_server_that_never_answers_is_given_up():
    retries = Retries(attempts=2, first_delay=0.001, attempt_margin=0.4, patience=60)
    async with between(HANG, retries=retries) as (server, sandbox):
        result = await sandbox.run("1", timeout=0.05)
        assert result.status is INFRA
        assert "no answer within 0.5 s (2 attempts)" in result.message
        assert len(server.seen) == 2


async def test_cancelling_closes_the_connection():
    async with between(HANG) as (server, sandbox):
        call = asyncio.create_task(sandbox.run("1"))
        while not server.seen:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while not server.lost:
            await asyncio.sleep(0.001)
        assert len(server.seen) == 1


async def test_no_server_is_there():
    async with RemoteSandbox("http://127.0.0.1:9", retries=QUICK) as sandbox:
        result = await sandbox.run("1")
        assert result.status is INFRA
        assert "Connect call failed" in result.message, "it should say what went wrong, however often it was tried"
        with pytest.raises(SandboxError, match="cannot be asked"):
            await sandbox.session()


# ---------------------------------------------------------------------- what may have run is not sent again


@pytest.mark.parametrize("bad", [b"", CUT, answer(b"", 502), answer(b"", 503), answer(b"", 504), answer(b"{}")])
@pytest.mark.parametrize("what", ["cell", "exec"])
async def test_a_cell_that_may_have_run_is_not_sent_again(bad, what):
    async with between(answer(SESSION, 201), bad, answer(CELL), about=TOOLGYM) as (server, sandbox):
        session = await sandbox.session()
        result = await (session.run_cell("x += 1") if what == "cell" else session.exec(["touch", "a"]))
        assert result.status is INFRA
        assert "unknown outcome" in result.message
        assert len(server.seen) == 2
        assert session.alive
        assert (await session.run_cell("1")).stdout == "42\n"


async def test_a_cell_whose_time_is_up_has_an_unknown_outcome():
    retries = Retries(attempt_margin=5, patience=0.1)
    async with between(answer(SESSION, 201), HANG, about=TOOLGYM, retries=retries) as (server, sandbox):
        session = await sandbox.session()
        result = await session.run_cell("x += 1", timeout=0.05)
        assert result.status is INFRA
        assert "unknown outcome" in result.message
        server.answers = [answer(b"", 204)]


async def test_a_cell_that_was_refused_is_sent_again():
    full = answer({"detail": "full"}, 429, Retry_After="0.01")
    stopping = answer({"detail": "stopping"}, 503, Retry_After="0.01")
    async with between(answer(SESSION, 201), full, stopping, answer(CELL), about=TOOLGYM) as (server, sandbox):
        session = await sandbox.session()
        assert (await session.run_cell("x += 1")).stdout == "42\n"
        assert server.paths == ["/sessions", *["/sessions/w0-abc/cells"] * 3]


async def test_files_and_forks_are_sent_again():
    forked = answer(SESSION | {"id": "w0-def"}, 201)
    bad = answer(b"", 502)
    answers = [answer(SESSION, 201), bad, answer(b"", 204), CUT, answer(b"abc"), bad, forked, answer(b"", 204)]
    async with between(*answers, about=TOOLGYM) as (server, sandbox):
        session = await sandbox.session()
        await session.write_file("a b/é", b"abc")
        assert await session.read_file("a") == b"abc"
        assert (await session.fork()).id == "w0-def"
        assert server.paths[1] == "/sessions/w0-abc/files/a%20b%2F%C3%A9"
        assert server.seen[1].body == b"abc"
    assert sorted(server.paths[-2:]) == ["/sessions/w0-abc", "/sessions/w0-def"], "closing ends what is open"


async def test_a_session_that_the_server_does_not_know_has_ended():
    gone = answer({"detail": "no session 'x'", "reason": "no_session"}, 404)
    async with between(answer(SESSION, 201), gone, about=TOOLGYM) as (server, sandbox):
        session = await sandbox.session()
        result = await session.run_cell("1")
        assert (result.status, result.alive, session.alive) == (INFRA, False, False)
        assert "no session 'x'" in result.message
        with pytest.raises(SandboxError):
            await session.fork()
        assert len(server.seen) == 2


async def test_a_session_whose_server_is_gone_has_ended():
    # Of a connection that is kept open, the client might not have noticed the end yet when it sends.
    async with between(answer(SESSION, 201, Connection="close"), about=TOOLGYM) as (server, sandbox):
        session = await sandbox.session()
        await server.stop()
        result = await session.run_cell("1")
        assert (result.status, session.alive) == (INFRA, False)
        assert "unknown outcome" not in result.message
        await session.close()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "é", "x" * 300, 7, None])
async def test_a_session_id_that_cannot_be_one(name):
    async with between(answer(SESSION | {"id": name}, 201), about=TOOLGYM) as (_, sandbox):
        with pytest.raises(SandboxError, match=r"session id|makes no sense"):
            await sandbox.session()


# ---------------------------------------------------------------------- several servers


async def test_a_server_that_is_down_is_left_out_and_comes_back():
    async with StandIn(GOOD) as up:
        down = StandIn(GOOD)
        await down.start()
        await down.stop()  # no process listens at its port now
        async with remote(up, down) as sandbox:
            results = await asyncio.gather(*(sandbox.run("1") for _ in range(20)))
            assert all(result.ok for result in results)
            await down.start()
            async with asyncio.timeout(60):
                while not down.seen:
                    await sandbox.run("1")
        await down.stop()


async def test_calls_go_where_least_is_going_on():
    release = asyncio.Event()

    async def slow(request):
        await release.wait()
        return GOOD

    async with StandIn(slow) as first, StandIn(slow) as second, remote(first, second) as sandbox:
        calls = [asyncio.create_task(sandbox.run("1")) for _ in range(8)]
        while len(first.seen) + len(second.seen) < 8:
            await asyncio.sleep(0.001)
        assert len(first.seen) == len(second.seen) == 4
        release.set()
        assert all(result.ok for result in await asyncio.gather(*calls))


async def test_a_full_server_hands_over_to_another_at_once():
    full = answer(b"", 429, Retry_After="3600")
    async with StandIn(full) as first, StandIn(GOOD) as second, remote(first, second) as sandbox:
        assert all(result.ok for result in await asyncio.gather(*(sandbox.run("1") for _ in range(10))))


@pytest.mark.parametrize("bad", [answer(b"nonsense"), answer({"detail": "boom"}, 500)])
async def test_a_server_that_fails_at_once_does_not_get_all_calls(bad):
    async with StandIn(bad) as broken, StandIn(GOOD) as good, remote(broken, good) as sandbox:
        results = [await sandbox.run("1") for _ in range(40)]
        assert sum(result.ok for result in results) > 30
        assert len(good.seen) > len(broken.seen)


async def test_sessions_are_spread_and_stay():
    a, b = answer(SESSION | {"id": "w0-a"}, 201), answer(SESSION | {"id": "w0-b"}, 201)
    async with (
        StandIn(a, a, answer(CELL), about=TOOLGYM) as first,
        StandIn(b, b, answer(CELL), about=TOOLGYM) as second,
        remote(first, second) as sandbox,
    ):
        sessions = [await sandbox.session() for _ in range(4)]
        for session in sessions * 3:
            assert (await session.run_cell("1")).status is OK
        for server, name in ((first, "a"), (second, "b")):
            assert server.paths == ["/sessions"] * 2 + [f"/sessions/w0-{name}/cells"] * 6
        first.answers = second.answers = [answer(b"", 204)]


async def test_sessions_are_opened_where_there_are_some():
    async with (
        StandIn(GOOD, about=FUSION) as fusion,
        StandIn(answer(SESSION, 201), answer(CELL), about=TOOLGYM) as ours,
        remote(fusion, ours) as sandbox,
    ):
        session = await sandbox.session()
        assert (await session.run_cell("1")).status is OK
        assert not fusion.seen
        ours.answers = [answer(b"", 204)]


# ---------------------------------------------------------------------- kinds of servers, and mistakes of the user


async def test_a_server_is_asked_once_what_it_is():
    async with between(GOOD) as (server, sandbox):
        await asyncio.gather(*(sandbox.run("1") for _ in range(20)))
        assert not await sandbox.has_sessions()
        assert [one.path for one in server.asked] == ["/openapi.json"]
        with pytest.raises(SandboxError, match="SandboxFusion's API has no sessions"):
            await sandbox.session()
        with pytest.raises(ConfigError, match="environment variables"):
            await sandbox.run("1", env={"A": "b"})


@pytest.mark.parametrize("about", [{"paths": {}}, {"paths": {"/x": {}}}, [1], "x", None])
async def test_what_is_no_sandbox_server_is_told(about):
    async with between(GOOD, about=about) as (server, sandbox):
        with pytest.raises(ConfigError, match="is no sandbox server"):
            await sandbox.run("1")
        assert not server.seen


async def test_a_gateway_that_lets_nothing_but_run_code_through():
    async def gateway(request):
        return GOOD if request.path == "/run_code" else answer(b"", 404)

    async with StandIn(gateway, everything=True) as server:
        async with remote(server) as sandbox:
            with pytest.raises(ConfigError, match="sandbox_fusion_url"):
                await sandbox.run("1")
        async with remote(server, kind="sandboxfusion") as sandbox:
            assert (await sandbox.run("1")).ok


async def test_a_request_that_the_server_refuses_is_the_callers_mistake():
    problem = {"detail": [{"loc": ["body", "run_timeout"], "msg": "too long", "type": "x"}]}
    async with between(answer(problem, 422)) as (server, sandbox):
        with pytest.raises(ConfigError, match="run_timeout: too long"):
            await sandbox.run("1")
        assert len(server.seen) == 1


async def test_what_is_sent():
    async with between(GOOD, token="s3cret", memory_mb=77) as (server, sandbox):
        await sandbox.run("x", language="bash", timeout=3, compile_timeout=4, stdin="in", files={"a": b"\xff"})
        [request] = server.seen
        assert request.headers["authorization"] == "Bearer s3cret"
        assert json.loads(request.body) == {
            "code": "x",
            "language": "bash",
            "run_timeout": 3,
            "compile_timeout": 4,
            "stdin": "in",
            "memory_limit_MB": 77,
            "files": {"a": base64.b64encode(b"\xff").decode()},
            "fetch_files": [],
        }


async def test_a_program_that_is_no_text_is_the_programs_failure():
    async with between(answer({"detail": "Internal"}, 500)) as (server, sandbox):
        result = await sandbox.run("x = '\ud800'")
        assert result.status is ERROR
        assert "surrogates" in result.stderr
        assert not server.seen


@pytest.mark.parametrize(
    "url",
    ["localhost:8080", "ftp://x", "http://", "http://x?y=1", "http://x#y", "http://a:b@x", "http://[", 7, []],
)
def test_an_address_must_be_one(url):
    with pytest.raises(ConfigError):
        RemoteSandbox(url)


@pytest.mark.parametrize(
    "options",
    [
        {"token": ""},
        {"token": "a b"},
        {"token": "é\n"},
        {"kind": "other"},
        {"memory_mb": 0},
        {"max_connections": 0},
    ],
)
def test_options_are_checked(options):
    with pytest.raises(ConfigError):
        RemoteSandbox("http://x", **options)


def test_the_same_sandbox_in_several_event_loops():
    """Each has connections of its own, and closing in one is closing."""

    async def all_of_it():
        async with StandIn(GOOD) as server:
            sandbox = remote(server)
            results = await asyncio.gather(
                *(asyncio.to_thread(asyncio.run, used(sandbox)) for _ in range(3)), used(sandbox)
            )
            await sandbox.close()
            await sandbox.close()
            with pytest.raises(SandboxError, match="closed"):
                await sandbox.run("1")
            return results

    async def used(sandbox):
        result = await sandbox.run("1")
        await sandbox.leave()
        return result

    assert all(result.ok for result in asyncio.run(all_of_it()))


async def test_closing_closes_the_connections_of_other_loops():
    used, ended = threading.Event(), threading.Event()

    async def elsewhere():
        result = await sandbox.run("1")
        used.set()
        await asyncio.to_thread(ended.wait, 60)
        return result, [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    async with StandIn(GOOD) as server:
        sandbox = remote(server)
        thread = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
        while not (used.is_set() or thread.done()):
            await asyncio.sleep(0.001)
        await sandbox.close()
        ended.set()
        result, tasks = await thread
        assert result.ok
        assert not tasks


async def test_closing_ends_what_is_under_way():
    async with StandIn(HANG) as server:
        sandbox = remote(server)
        calls = [asyncio.create_task(sandbox.run("1")) for _ in range(3)]
        while len(server.seen) < 3:
            await asyncio.sleep(0.001)
        await sandbox.close()
        for call in calls:
            with pytest.raises(SandboxError, match="closed"):
                await asyncio.wait_for(call, 60)
