"""A journal of turns: an interrupted episode goes on from its last finished turn, with the exact tokens it had."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from pathlib import Path

import pytest

from toolgym.envs import ToolEnv
from toolgym.envs.tasks.task import Task
from toolgym.rollout import RunConfig, SamplingParams, rollout
from toolgym.rollout.engines.base import FinishReason
from toolgym.rollout.job import EpisodeKey
from toolgym.rollout.recording.engine import JournaledEngine
from toolgym.rollout.recording.replay import first_difference
from toolgym.tools import tool
from toolgym.tools.errors import ConfigError

TASKS = [Task(({"role": "user", "content": f"count {number}"},), id=str(number)) for number in range(3)]
CONFIG = RunConfig(group_size=2, seed=3, sampling=SamplingParams(max_new_tokens=200))
TURNS = 4


class Counter:
    """A tool with a state that only calls bring about, and an engine that calls it three times."""

    def __init__(self, scripted, *, stop_after=None):
        self.engine = scripted(self.say)
        self.stop_after, self.asked, self.enough = stop_after, 0, asyncio.Event()
        self.start = 0

    def env(self):
        count = self.start

        @tool
        def add(amount: int) -> str:
            """Add to the count.

            Args:
                amount: how much.
            """
            nonlocal count
            count += amount
            return f"count is {count}"

        return ToolEnv([add], TASKS, max_turns=TURNS)

    def say(self, prompt, request_id):
        if self.asked == self.stop_after:
            self.enough.set()
            return 3600
        self.asked += 1
        seed = self.engine.seen[request_id][1].seed
        if prompt.count("count is") == TURNS - 1:
            return f"#### {seed}"
        call = json.dumps({"name": "add", "arguments": {"amount": seed % 1000}})
        return f"<tool_call>\n{call}\n</tool_call>", FinishReason.STOP

    async def run(self, path, **kwargs):
        async with JournaledEngine(self.engine, path, **kwargs) as engine:
            self.journal = engine
            running = asyncio.create_task(rollout(self.env, engine, TASKS, config=CONFIG))
            if self.stop_after is None:
                return await running
            await self.enough.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return None


@pytest.fixture
def counter(scripted):
    return lambda **kwargs: Counter(scripted, **kwargs)


@pytest.fixture
def expected(counter, tmp_path):
    return asyncio.run(counter().run(tmp_path / "whole.jsonl"))


def difference(trajectories, others):
    pairs = zip(trajectories, others, strict=True)
    return [
        difference for before, other in pairs if (difference := first_difference(before.to_json(), other.to_json()))
    ]


@pytest.mark.parametrize("stops", [(1,), (7,), (23,), (3, 6, 9)])
def test_interrupted_episodes_go_on_from_their_last_finished_turn(counter, expected, tmp_path, stops):
    path, answered = tmp_path / "turns.jsonl", 0
    for stop_after in stops:
        interrupted = counter(stop_after=stop_after)
        asyncio.run(interrupted.run(path))
        answered += interrupted.asked
    last = counter()
    assert difference(asyncio.run(last.run(path)), expected) == []
    assert last.journal.answered == answered
    assert answered + last.asked == 6 * TURNS
    assert all(len(trajectory.turns) == TURNS for trajectory in expected)


def test_a_torn_line_is_an_answer_that_never_came(counter, expected, tmp_path):
    path = tmp_path / "turns.jsonl"
    asyncio.run(counter(stop_after=9).run(path))
    path.write_bytes(path.read_bytes()[:-20])
    last = counter()
    assert difference(asyncio.run(last.run(path)), expected) == []
    assert last.journal.answered == 8


def test_an_env_that_answers_otherwise_gets_new_turns_and_the_log_says_so(counter, tmp_path, caplog):
    path = tmp_path / "turns.jsonl"
    asyncio.run(counter(stop_after=20).run(path))
    changed = counter()
    changed.start = 10**6
    got = asyncio.run(changed.run(path))
    whole = counter()
    whole.start = 10**6
    assert difference(got, asyncio.run(whole.run(tmp_path / "new.jsonl"))) == []
    assert 1 <= changed.journal.answered <= 6, "the first turns saw the same"
    warned = [record.getMessage() for record in caplog.records if "did not answer as before" in record.getMessage()]
    assert len(warned) == len({text.partition(": its")[0] for text in warned}) >= 1


def test_what_has_finished_is_removed_and_what_has_not_is_kept(counter, expected, tmp_path):
    path = tmp_path / "turns.jsonl"
    asyncio.run(counter(stop_after=20).run(path))
    finished = [EpisodeKey(0, 0), EpisodeKey(2, 1)]
    before = {tuple(json.loads(line)["episode"]) for line in path.read_bytes().splitlines()[1:]}
    assert set(finished) <= before
    JournaledEngine(counter().engine, path, finished=finished).close_journal()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()[1:]]
    assert {tuple(line["episode"]) for line in lines} == before - set(finished)
    assert [file.name for file in tmp_path.iterdir() if ".new" in file.name] == []
    assert difference(asyncio.run(counter().run(path)), expected) == []


def test_a_turn_that_was_aborted_and_resumed_keeps_its_parts(scripted, tmp_path):
    """As when weights are updated: each part has the version that sampled it, recorded or not."""

    def script(prompt, request_id):
        engine.version = "8" if request_id.endswith("-0-1") else "7"
        return "end" if request_id.endswith("-0-1") else ("begin ", FinishReason.ABORT)

    engine = scripted(script)
    env = lambda: ToolEnv([], TASKS[:1])  # noqa: E731

    async def run():
        async with JournaledEngine(engine, tmp_path / "turns.jsonl") as journaled:
            return journaled, await rollout(env, journaled, TASKS[:1], config=CONFIG)

    _, whole = asyncio.run(run())
    engine.script = lambda prompt, request_id: AssertionError("asked again")
    journaled, again = asyncio.run(run())
    assert difference(again, whole) == []
    assert journaled.answered == 4
    assert {version for version in again[0].weight_versions if version} == {"7", "8"}


def test_a_full_disk_ends_the_journal_and_not_the_run(counter, expected, tmp_path, caplog):
    path = tmp_path / "turns.jsonl"
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
        got = asyncio.run(counter().run(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert difference(got, expected) == []
    assert caplog.text.count("an interrupted episode will begin anew") == 1
    last = counter()
    assert difference(asyncio.run(last.run(path)), expected) == []
    assert 1 <= last.journal.answered < 24


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"messages": []}\n', "journal cannot be gone on with: .* is not a recording"),
        ("not JSON\n", "is not a recording"),
        ('{"kind": "header", "format": "toolgym-cassette", "version": 99}\n', "version 99 of the format"),
    ],
)
def test_another_file_is_refused_and_left_alone(counter, tmp_path, text, message):
    path = tmp_path / "turns.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        JournaledEngine(counter().engine, path)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_broken_line_is_left_out_and_told(counter, expected, tmp_path, caplog):
    path = tmp_path / "turns.jsonl"
    asyncio.run(counter(stop_after=9).run(path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\xff\xfe\n", *lines[1:], b'{"episode": 7}\n', b"null\n"]))
    last = counter()
    assert difference(asyncio.run(last.run(path)), expected) == []
    assert last.journal.answered == 9
    assert "3 lines could not be read" in caplog.text


def test_requests_outside_of_episodes_pass(counter, tmp_path):
    actor = counter()

    async def ask():
        async with JournaledEngine(actor.engine, tmp_path / "turns.jsonl") as engine:
            generation = await engine.generate([5, 6], SamplingParams(max_new_tokens=90, seed=1), request_id="a")
            return generation, engine.vocab_size, engine.context_length, engine.weight_version, engine.tokenizer

    generation, *facts = asyncio.run(ask())
    assert generation.token_ids
    assert facts == [actor.engine.vocab_size, 4096, "7", actor.engine.tokenizer]
    assert len(Path(tmp_path / "turns.jsonl").read_bytes().splitlines()) == 1
