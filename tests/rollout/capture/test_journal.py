"""A session that is continued from its journal after a kill, and one that was never killed: no difference shows."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rollout.capture.played_agent import START, PlayedAgent, back, result, rows_of, written_call
from tests.rollout.capture.test_random_agents import TURNS, RandomAgent, moves
from toolgym.rollout.capture.agent_call import AgentMessage, CallRefusedError
from toolgym.rollout.capture.journal import NotWrittenError, SessionJournal
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.runner.config import RunConfig


class KilledAgent(PlayedAgent):
    """An agent whose gateway can be killed and started again."""

    def __init__(self, *arguments, folder, **options):
        super().__init__(*arguments, **options)
        self.path, self.kills = folder / "session.journal", 0
        self.path.unlink(missing_ok=True)
        self.session.journal = SessionJournal(self.path, fsync=False)
        self.session.journal.open(self.session.opening())

    async def kill(self):
        """Forget all that is in memory, and continue from the file."""
        journal = SessionJournal(self.path, fsync=False)
        saved = journal.read()
        renderers = Renderers(self.tokenizer, RunConfig())
        session = CaptureSession(self.engine, renderers, saved.job(), saved.config(), rules=saved.rules())
        session.journal = journal
        await session.restore(saved)
        self.session, self.kills = session, self.kills + 1

    async def ask_after_kill(self, *messages, **fields):
        await self.kill()
        return await self.ask(*messages, **fields)


def comparable(trajectory):
    turns = tuple(replace(turn, engine_seconds=0.0, env_seconds=0.0, queue_seconds=0.0) for turn in trajectory.turns)
    value = replace(trajectory, id="", started_at=0.0, seconds=0.0, turns=turns).to_json()
    return {name: value[name] for name in value if name != "sequences"}, [
        (each.start_reason, each.prompt_ids.tolist(), each.response_ids.tolist()) for each in trajectory.sequences
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves, st.sampled_from([(), ("side_call",), ("retracted", "sub_agent")]))
def test_whatever_agents_do_a_kill_before_each_request_changes_nothing(scripted, tokenizer, tmp_path, moves, untrained):
    # Requests that are under way are lost in a kill, so they are sent one after the other here.
    moves = [(name.removesuffix(" at once"), *choices) for name, *choices in moves]

    async def play():
        rules = CaptureRules(untrained=untrained)
        played = []
        for kind, options in ((PlayedAgent, {}), (KilledAgent, {"folder": tmp_path})):
            turns = iter([TURNS[turn] for _, turn, _, _ in moves for _ in range(2)])
            agent = kind(scripted, tokenizer, turns, rules=rules, context_length=100_000, **options)
            player = RandomAgent(agent)
            for move, _, replay, pick in moves:
                if kind is KilledAgent:
                    await agent.kill()
                await player.move(move, replay, pick)
            if kind is KilledAgent:
                await agent.kill()
            agent.finish()
            rows_of(agent.trajectory, agent.engine)
            played.append(comparable(agent.trajectory))
        assert played[1] == played[0]
        assert agent.kills == len(moves) + 1

    asyncio.run(play())


@pytest.fixture
def killed(scripted, tokenizer, tmp_path):
    def make(*answers, **options):
        return KilledAgent(scripted, tokenizer, answers, folder=tmp_path, **options)

    return make


async def test_the_limit_of_calls_and_the_reason_of_the_end_survive(killed):
    agent = killed("one", "two", rules=CaptureRules(max_calls=2, untrained=()))
    first = await agent.ask_after_kill(*START)
    await agent.ask_after_kill(*START, back(first))
    for _ in range(2):
        with pytest.raises(CallRefusedError, match="has had its 2 calls"):
            await agent.ask_after_kill(*START)
    await agent.kill()
    agent.finish()
    assert (agent.trajectory.stop_reason.value, len(agent.trajectory.turns)) == ("max_turns", 2)


async def test_what_is_known_of_equal_requests_stop_texts_and_formats_survives(killed):
    agent = killed("One. STOP Two.", "Three.", "Four.", "Five.", rules=CaptureRules(untrained=()))
    first = await agent.ask(*START, sampling={"stop": ("STOP",)})
    await agent.ask(*START, plain=True)
    again = await agent.ask(*START)
    await agent.ask(*START, back(first), AgentMessage("user", "More."))
    await agent.kill()
    calls = list(agent.session._forest)
    facts = {call.number: (call.end, call.plain) for call in calls}
    assert (facts[0], facts[1]) == ((5, False), (None, True))
    assert again.content == "Four."
    rows = [(row.start_reason, len(row.segments)) for row in agent.session.finish(1.0).sequences]
    assert rows == [("start", 3), ("retry", 1), ("retry", 1)]


@pytest.mark.parametrize("cut", [1, 40, 400])
async def test_a_last_line_that_was_cut_is_removed_and_the_calls_before_it_stay(killed, cut, caplog):
    agent = killed(written_call("ls"), "lost", "again")
    first = await agent.ask_after_kill(*START)
    messages = (*START, back(first), result(first, "a.txt"))
    await agent.ask_after_kill(*messages)
    os.truncate(agent.path, agent.path.stat().st_size - cut)
    await agent.kill()
    assert "are not as they were written" in caplog.text
    assert (await agent.ask_after_kill(*messages)).content == "again"
    trajectory = agent.session.finish(1.0)
    assert [sequence.start_reason for sequence in trajectory.sequences] == ["start"]
    assert len(trajectory.turns) == 2


async def test_a_line_that_was_changed_ends_what_is_read(killed):
    agent = killed("forty-two", "more")
    first = await agent.ask_after_kill(*START)
    await agent.ask_after_kill(*START, back(first))
    agent.path.write_bytes(agent.path.read_bytes().replace(b"forty-two", b"forty-six", 1))
    await agent.kill()
    assert len(agent.session.finish(1.0).turns) == 0


class FullDisk:
    """Lets `os.write` write half of its bytes and then fail, while it is `full`."""

    def __init__(self, monkeypatch):
        self.full, self._write = False, os.write
        monkeypatch.setattr("toolgym.rollout.capture.journal.os.write", self.write)

    def write(self, descriptor, data):
        if not self.full:
            return self._write(descriptor, data)
        self._write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_turn_that_the_disk_has_no_room_for_is_refused_counted_and_may_be_asked_for_again(killed, monkeypatch):
    disk = FullDisk(monkeypatch)
    agent = killed("one", "lost", "two")
    first = await agent.ask_after_kill(*START)
    size = agent.path.stat().st_size
    disk.full = True
    with pytest.raises(NotWrittenError, match="No space left") as refused:
        await agent.ask_after_kill(*START, back(first))
    assert (refused.value.status, agent.path.stat().st_size) == (500, size)
    disk.full = False
    assert (await agent.ask(*START, back(first))).content == "two"
    await agent.kill()
    trajectory = agent.session.finish(1.0)
    assert (len(trajectory.turns), len(trajectory.sequences)) == (2, 1)
    assert trajectory.metrics["left_out_not_written"] == 1
    assert trajectory.metrics["left_out_not_written_tokens"] > 0


async def test_a_journal_of_another_version_is_refused(killed):
    agent = killed()
    journal = SessionJournal(agent.path, fsync=False)
    shutil.copy(agent.path, agent.path.with_suffix(".old"))
    agent.path.unlink()
    journal._file.append({"kind": "open", "version": 99})
    with pytest.raises(ValueError, match="has version 99"):
        await agent.kill()


async def test_only_its_owner_can_read_a_journal(killed):
    agent = killed("one")
    await agent.ask_after_kill(*START)
    assert agent.path.stat().st_mode & 0o777 == 0o600
