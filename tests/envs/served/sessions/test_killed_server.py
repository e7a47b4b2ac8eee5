"""The server as its own process, killed in the middle of an episode; and many sessions at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
from pathlib import Path

import pytest

from tests.envs.served.sessions.counting import serving
from tests.serve_command import running
from toolgym.envs.families.swe.task import load_repository_tasks
from toolgym.envs.served.sessions.client import SessionClient

COUNTING = "tests.envs.served.sessions.counting:CountingBackend"
ROOT = Path(__file__).parents[4]


def free_port():
    """A port that stays free between two servers: it is below those that the system gives for port 0."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return str(port)


def kill(command):
    """Kill the server, its worker first, as `kill -9` of both does."""
    pid = command.process.pid
    workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert workers
    command.process.send_signal(signal.SIGSTOP)  # so that it replaces no worker meanwhile
    for worker in workers:
        os.kill(int(worker), signal.SIGKILL)
    command.process.kill()
    command.process.wait(timeout=60)


@pytest.mark.long
async def test_a_worker_that_dies_in_an_action_is_replaced_and_nothing_is_lost(tmp_path):
    flags = "--backend", COUNTING, "--database", str(tmp_path / "sessions.db"), "--port", free_port()
    with running("sessions", *flags, cwd=ROOT) as command:
        async with SessionClient(command.url) as client:
            session = await client.start("count:0")
            await session.act("add 5")
            assert (await session.act(f"die {tmp_path / 'died'}")).content == "6"  # sent again, and run once
            assert (tmp_path / "died").exists()
            assert (await session.reward()).value == 0.6


@pytest.mark.long
async def test_a_server_killed_in_an_episode_goes_on(tmp_path):
    flags = "--backend", "repository", "--database", str(tmp_path / "sessions.db"), "--port", free_port()
    task = load_repository_tasks()[0]
    async with SessionClient(f"http://127.0.0.1:{flags[-1]}") as client:
        with running("sessions", *flags) as command:
            session, other = await client.start(task.instance_id), await client.start(task.instance_id)
            await session.act(
                "```bash\necho kept > note.txt; chmod +x note.txt; mkdir folder; ln -s note.txt link\n```"
            )
            await session.act(f"```diff\n{task.gold_patch}```")
            unfinished = asyncio.create_task(session.act("```bash\necho more >> note.txt; sleep 2; echo slept\n```"))
            await asyncio.sleep(0.5)
            kill(command)
        with running("sessions", *flags):
            # The action that was not answered is sent again by the client, and runs on the state before it.
            assert "slept" in (await unfinished).content
            seen = (await session.act("```bash\ncat note.txt; test -x note.txt && readlink link\n```")).content
            assert seen.split() == ["kept", "more", "note.txt"]
            assert "No such file" in (await other.act("```bash\ncat note.txt\n```")).content
            await session.postprocess()
            reward = await session.reward()
            assert reward.value == 1.0
            assert reward.answer["f2p_count"] == reward.answer["f2p_total"] > 0
            assert (await other.reward()).value == 0.0


@pytest.mark.long
async def test_two_hundred_sessions_at_once(tmp_path):
    async with serving(tmp_path / "sessions.db") as service, SessionClient(service.url) as client:

        async def episode(number):
            session = await client.start("count:0")
            for _ in range(5):
                await session.act(f"add {number}")
            await session.postprocess()
            return (await session.reward()).value

        rewards = await asyncio.gather(*map(episode, range(200)))
        assert rewards == [number * 5 / 10 for number in range(200)]
        assert service.backend.ran == 1000
        assert service.backend.open_instances == service.app.open_sessions() == 0
