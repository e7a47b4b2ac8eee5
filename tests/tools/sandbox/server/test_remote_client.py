"""The client for remote sandboxes against `toolgym serve sandbox` as users start it: several workers, and its end."""

from __future__ import annotations

import asyncio

import pytest

from toolgym.tools.sandbox import ExecutionStatus, RemoteSandbox, Retries

QUICK = Retries(attempts=3, first_delay=0.01, connect_timeout=60)


@pytest.mark.matrix  # of several workers; those of one are in test_sessions.py
async def test_sessions_over_several_workers(command):
    server = command("--workers", "2", "--isolation", "landlock")
    async with RemoteSandbox(server.url, retries=QUICK) as sandbox:
        sessions = await asyncio.gather(*(sandbox.session() for _ in range(12)))
        await asyncio.gather(*(one.run_cell(f"x = {n}") for n, one in enumerate(sessions)))
        results = await asyncio.gather(*(one.run_cell("x") for one in sessions))
        assert [result.result for result in results] == [str(n) for n in range(12)]
        await asyncio.gather(*(one.write_file("a", str(n).encode()) for n, one in enumerate(sessions)))
        assert [await one.read_file("a") for one in sessions] == [str(n).encode() for n in range(12)]


async def test_a_server_that_is_stopped_under_a_session(command):
    server = command("--workers", "1")
    async with RemoteSandbox(server.url, retries=QUICK) as sandbox:
        session = await sandbox.session()
        await session.run_cell("x = 1")
        status, _ = await asyncio.to_thread(server.stop)
        assert status == 0
        cell = await session.run_cell("x")
        run = await sandbox.run("print(1)")
        assert {cell.status, run.status} == {ExecutionStatus.SANDBOX_ERROR}
        assert not session.alive
