"""`RemoteSandbox` against our own server, as callers use it."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.tools.sandbox.served import serving
from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox import ExecutionStatus, LocalSandbox, RemoteSandbox, Retries

OK, ERROR = ExecutionStatus.OK, ExecutionStatus.ERROR
QUICK = Retries(first_delay=0.002, max_delay=0.01, connect_timeout=30, attempt_margin=60, patience=60)


@pytest.fixture
async def service():
    async with LocalSandbox(preload=[], templates=1) as local, serving(local, token="letmein") as made:
        yield made


async def sessions_at(service) -> int:
    async with RemoteSandbox(service.url, token="letmein") as probe:
        caller = probe.caller()
        reply = await caller._client._session.exchange("GET", f"{service.url}/health", None, 60)
        return int(json.loads(reply.body)["sessions"])


async def comes_to(service, count) -> bool:
    """Whether the server comes to have so many sessions: it may still be closing one when its client is gone."""
    async with asyncio.timeout(60):
        while await sessions_at(service) != count:
            await asyncio.sleep(0.01)
    return True


async def test_the_token(service):
    for token in (None, "wrong"):
        async with RemoteSandbox(service.url, token=token, retries=QUICK) as sandbox:
            with pytest.raises(ConfigError, match="token"):
                await sandbox.run("1")
    async with RemoteSandbox(service.url, token="letmein", retries=QUICK) as sandbox:
        assert (await sandbox.run("print(6*7)")).stdout == "42\n"


async def test_closing_the_sandbox_closes_its_sessions(service):
    async with RemoteSandbox(service.url, token="letmein", retries=QUICK) as sandbox:
        session = await sandbox.session(files={"a": b"1"}, env={"B": "2"})
        other = await session.fork()
        assert (await other.run_cell("import os\nopen('a').read(), os.environ['B']")).result == "('1', '2')"
        await other.write_file("x/y", b"3")
        assert await other.read_file("x/y") == b"3"
        assert await sessions_at(service) == 2
    assert await sessions_at(service) == 0


async def test_every_ending_keeps_its_name(service):
    async with RemoteSandbox(service.url, token="letmein", retries=QUICK) as sandbox:
        for code, status, timeout in (
            ("1/0", ERROR, 60.0),
            ("import os; os.kill(os.getpid(), 9)", ExecutionStatus.KILLED, 60.0),
            ("while True: pass", ExecutionStatus.TIMEOUT, 1.0),
            ("x = [bytearray(1 << 24) for _ in range(99)]", ExecutionStatus.MEMORY_LIMIT, 60.0),
        ):
            assert (await sandbox.run(code, timeout=timeout, memory_mb=150)).status is status, code


@pytest.mark.parametrize("what", ["session", "fork"])
async def test_a_session_whose_maker_is_cancelled_as_the_answer_comes_is_closed(service, monkeypatch, what):
    """The server has answered, and the caller has not read the answer."""
    from toolgym.tools.serving import app

    async def noted(request, response, timeout):
        await send(request, response, timeout)
        if response.status == 201:
            making.cancel()

    send = app.send
    async with RemoteSandbox(service.url, token="letmein", retries=QUICK) as sandbox:
        origin = await sandbox.session()
        monkeypatch.setattr(app, "send", noted)
        making = asyncio.create_task(sandbox.session() if what == "session" else origin.fork())
        await asyncio.wait({making})
        assert making.cancelled()
        assert await comes_to(service, 1)


async def test_a_session_whose_maker_has_gone_is_closed(service, monkeypatch):
    """The connection breaks while the answer is on its way, so no caller knows the session's id."""
    from toolgym.tools.serving import app

    async def broken(request, response, timeout):
        if response.status == 201:
            made.append(response)
            request.transport.abort()
            raise ConnectionResetError("the client is gone")
        return await send(request, response, timeout)

    send, made = app.send, []
    monkeypatch.setattr(app, "send", broken)
    async with RemoteSandbox(service.url, token="letmein", retries=QUICK) as sandbox:
        with pytest.raises(SandboxError, match="cannot be opened"):
            await sandbox.session()
    assert len(made) == QUICK.attempts
    assert await comes_to(service, 0)
