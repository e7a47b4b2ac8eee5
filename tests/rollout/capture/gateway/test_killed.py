"""A gateway that is killed: after a restart, agents and trainers continue as if nothing had happened."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import sys

import aiohttp
import pytest

from tests.processes import end_with_the_tests
from toolgym.rollout import open_engine
from toolgym.rollout.capture import CaptureConfig, CaptureServer
from toolgym.rollout.trajectory.file import read_trajectories
from toolgym.tools.errors import EpisodeError

TOKEN = "the-control-token"


def free_port():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


class Agent:
    """An agent that goes on from each answer, and keeps what it was answered."""

    def __init__(self, http, url, key):
        self.http, self.url, self.key = http, url, key
        self.messages, self.answers = [{"role": "user", "content": "6*7?"}], []

    async def ask(self):
        body = {"model": "m", "messages": self.messages, "max_tokens": 8}
        headers = {"Authorization": f"Bearer {self.key}"}
        async with self.http.post(f"{self.url}/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            message = (await response.json())["choices"][0]["message"]
        self.answers.append(message["content"] or "")
        self.messages += [message, {"role": "user", "content": f"And {len(self.answers)}?"}]


def config(port):
    return CaptureConfig(port=port, token=TOKEN, max_new_tokens=8)


async def test_a_copy_of_the_folder_continues_all_sessions_at_the_same_address(tmp_path):
    first, second, port = tmp_path / "first", tmp_path / "second", free_port()
    async with open_engine("tiny") as engine, aiohttp.ClientSession() as http:
        async with CaptureServer(engine, out=first, config=config(port)) as server:
            ended, dropped, going = [await server.open(name) for name in ("ended", "dropped", "going")]
            agents = [Agent(http, session.openai_url, session.key) for session in (ended, dropped, going)]
            for agent in agents:
                await agent.ask()
                await agent.ask()
            written = await server.finish(ended, 0.5)
            await server.drop(dropped)
            shutil.copytree(first, second)  # as a kill would leave it
        async with CaptureServer(engine, out=second, config=config(port)) as server:
            await agents[2].ask()
            assert (await server.finish(ended.id, 0.5)).id == written.id, "the same end again"
            with pytest.raises(EpisodeError, match="ended already"):
                await server.finish(ended.id, 1.0)
            with pytest.raises(EpisodeError, match="dropped"):
                await server.finish(dropped.id, 1.0)
            for session in (ended, dropped):
                headers = {"Authorization": f"Bearer {session.key}"}
                async with http.post(f"{session.openai_url}/chat/completions", json={}, headers=headers) as response:
                    assert response.status == 410
            trajectory = await server.finish(going.id, 1.0)
            assert (await server.open("going")).sample_index == 1, "its place stays taken"
    assert [turn.text for turn in trajectory.turns] == agents[2].answers
    assert (len(trajectory.sequences), trajectory.metrics["calls"]) == (1, 3)
    assert not list(second.glob(f"sessions/{going.id}*"))


async def test_a_server_that_is_stopped_leaves_no_journals(tmp_path):
    async with open_engine("tiny") as engine, CaptureServer(engine, out=tmp_path, config=config(0)) as server:
        await server.open()
        assert len(list(tmp_path.glob("sessions/*"))) == 1
    assert not list(tmp_path.glob("sessions/*"))
    [aborted] = read_trajectories(tmp_path / "0.jsonl")
    assert aborted.stop_reason.value == "aborted"


class KilledGateway:
    """The gateway of `killed_gateway.py`, in a process that is killed and started again."""

    def __init__(self, folder):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self._command = [sys.executable, "-m", "tests.rollout.capture.gateway.killed_gateway", str(folder), str(port)]
        self.process = None

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            *self._command, TOKEN, stdout=asyncio.subprocess.PIPE, preexec_fn=end_with_the_tests
        )
        assert await self.process.stdout.readline() == self.url.encode() + b"\n"

    async def kill(self):
        self.process.kill()
        await self.process.wait()


async def play_through_kills(folder, *, kills, sessions, turns):
    """Play sessions while the gateway is killed. Returns the answers that arrived and the written trajectories, by the
    session's name."""
    chance, gateway = random.Random(3), KilledGateway(folder)
    await gateway.start()
    control, names = {"Authorization": f"Bearer {TOKEN}"}, [f"s{number}" for number in range(sessions)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

        async def ask(path, body):
            async with http.post(f"{gateway.url}{path}", json=body, headers=control) as response:
                assert response.status == 200, await response.text()
                return await response.json()

        async def play(agent):
            while len(agent.answers) < turns:
                try:
                    await agent.ask()
                except (aiohttp.ClientError, ConnectionError):
                    await asyncio.sleep(0.1)

        async def kill():
            for number in range(kills):
                due = (number + chance.random()) * turns * sessions / (kills + 1)
                while sum(len(agent.answers) for agent in agents) < due:
                    await asyncio.sleep(0.002)
                await gateway.kill()
                await gateway.start()

        opened = [await ask("/sessions", {"id": name}) for name in names]
        agents = [Agent(http, session["openai_url"], session["key"]) for session in opened]
        await asyncio.gather(kill(), *(play(agent) for agent in agents))
        for name in names[1:]:
            await ask(f"/sessions/{name}/finish", {"reward": 1.0})
        if kills > 1:
            await gateway.kill()
            await gateway.start()
        for name in names:  # the first for the first time, the others as before
            await ask(f"/sessions/{name}/finish", {"reward": 1.0})
        await gateway.kill()
    written = {each.settings["session"]: each for each in read_trajectories(folder / "0.jsonl")}
    return {name: agent.answers for name, agent in zip(names, agents, strict=True)}, written


def assert_nothing_is_lost(answers, written):
    assert answers.keys() == written.keys()
    for name, trajectory in written.items():
        texts = [turn.text for turn in trajectory.turns]
        assert [text for text in answers[name] if text not in texts] == []
        left_out = sum(count for metric, count in trajectory.metrics.items() if metric.startswith("left_out_"))
        assert len(texts) + left_out >= len(answers[name])
        for sequence in trajectory.sequences:  # the policy answers with the length of what it saw
            context = len(sequence.prompt_ids)
            for segment in sequence.segments:
                if segment.is_policy:
                    assert str(context) in texts
                context += len(segment.token_ids)


async def test_no_turn_is_lost_in_a_kill(tmp_path):
    assert_nothing_is_lost(*await play_through_kills(tmp_path, kills=1, sessions=2, turns=6))


@pytest.mark.long
async def test_no_turn_is_lost_over_twenty_kills(tmp_path):
    """With TOOLGYM_SOAK set, 1,000 turns are played; otherwise 250."""
    turns = 100 if "TOOLGYM_SOAK" in os.environ else 25
    answers, written = await play_through_kills(tmp_path, kills=20, sessions=10, turns=turns)
    assert sum(map(len, answers.values())) == 10 * turns
    assert_nothing_is_lost(answers, written)
