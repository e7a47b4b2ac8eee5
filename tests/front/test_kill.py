"""kill -9 of `toolgym rollout` at any moment, and --resume, until it is done: every episode once, as if nothing was."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes import end_with_the_tests
from toolgym.rollout import read_trajectories
from toolgym.rollout.batch import load_batch
from toolgym.rollout.recording.cassette import Cassette
from toolgym.rollout.recording.replay import first_difference

PROGRAM = Path(__file__).with_name("killed_rollout.py")
PATIENCE = 240.0

pytestmark = pytest.mark.long


class Rollouts:
    """Calls of the command in one folder."""

    def __init__(self, program, folder):
        folder.mkdir()
        self.folder = folder
        self.out, self.asked, self.output = folder / "out", folder / "asked", folder / "output"
        self.program, self.programs = program, set()

    def play(self, *arguments, until=lambda: False, command="rollout"):
        """Call the command, and kill it at a moment. Returns its exit status, -9 where it was killed."""
        call = {"arguments": [command, *map(str, arguments)], "asked": str(self.asked), "output": str(self.output)}
        self.program.stdin.write(json.dumps(call).encode() + b"\n")
        pid = int(self.program.stdout.readline())
        deadline = time.monotonic() + PATIENCE
        while not select.select([self.program.stdout], [], [], 0.002)[0]:
            assert time.monotonic() < deadline
            if until():
                self.programs |= below(pid)
                os.kill(pid, signal.SIGKILL)
                break
        return int(self.program.stdout.readline())

    def said(self):
        return self.output.read_text()

    def requests(self):
        return [tuple(json.loads(line)) for line in self.asked.read_text().splitlines()] if self.asked.exists() else []

    def trajectories(self):
        found = read_trajectories(self.out / "0.jsonl")
        return sorted(found, key=lambda one: (one.task_index, one.sample_index))


@pytest.fixture(scope="module")
def program():
    """The program that forks the calls."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        preexec_fn=end_with_the_tests,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()
        process.kill()


@pytest.fixture
def rollouts(program, tmp_path):
    return lambda name: Rollouts(program, tmp_path / name)


def below(pid):
    """All processes below one."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue  # it has ended
    return set(found[1:])


def assert_gone(programs):
    deadline = time.monotonic() + PATIENCE  # what a killed process leaves is collected by others, at their pace
    while (left := [pid for pid in programs if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


def bare(trajectory):
    value = trajectory.to_json()
    for turn in value["turns"]:
        for call in turn["tool_calls"]:
            # How long it took cannot be had again.
            metrics = {k: one for k, one in json.loads(call["metrics"]).items() if not k.endswith("_seconds")}
            call["metrics"] = metrics
    return value


def assert_as_whole(killed, whole):
    """The folder is as that of a run that was not killed."""
    one, other = killed.trajectories(), whole.trajectories()
    assert [(t.task_index, t.sample_index) for t in one] == [(t.task_index, t.sample_index) for t in other]
    for left, right in zip(one, other, strict=True):
        assert first_difference(bare(left), bare(right)) is None
        assert (len(left.turns), left.failed) == (4, False)
        assert left.tool_calls[2].text == left.tool_calls[1].text, "the sandbox has its variables again"
    assert len({t.group_id.rpartition("-")[0] for t in one}) == 1
    assert sorted(path.name for path in killed.out.iterdir()) == sorted(path.name for path in whole.out.iterdir())
    batches = [load_batch(folder.out / "batch.safetensors") for folder in (killed, whole)]
    assert batches[0].responses.equal(batches[1].responses)
    assert batches[0].rollout_log_probs.equal(batches[1].rollout_log_probs)


def test_a_killed_run_goes_on_until_it_is_done(rollouts):
    options = ["--tasks", "3", "--group-size", "2", "--concurrency", "3"]
    whole, killed = rollouts("whole"), rollouts("killed")
    assert whole.play(*options, "--out", whole.out) == 0, whole.said()
    arguments = [*options, "--out", killed.out]
    for count in (3, 14):
        assert killed.play(*arguments, until=lambda count=count: len(killed.requests()) >= count) == -9, killed.said()
        arguments = ["--resume", killed.out]
    assert killed.play(*arguments) == 0, killed.said()
    assert_as_whole(killed, whole)
    assert set(killed.requests()) == set(whole.requests())
    again = len(killed.requests()) - len(whole.requests())
    assert 0 <= again <= 2 * 3, "only what was on its way at a kill was asked once more"
    assert_gone(killed.programs)


@pytest.mark.parametrize("how", ["recorded", "without a journal"])
def test_kills_at_random_moments(rollouts, how):
    """At any moment: while it starts, in the middle of a call of a tool, while a line is written, at its end."""
    chance = random.Random(how)
    whole, killed = rollouts("whole"), rollouts("killed")

    def options(run):
        further = ["--no-journal"] if how == "without a journal" else ["--record", run.folder / "record.jsonl"]
        return ["--tasks", "4", "--group-size", "4", "--concurrency", "8", "--out", run.out, *further]

    assert whole.play(*options(whole)) == 0, whole.said()
    arguments, kills = [*options(killed), "--overwrite"], 0
    while True:
        requests = len(killed.requests()) + chance.randint(1, 40) + (16 if how == "without a journal" else 0)
        soon = time.monotonic() + (chance.uniform(0.0, 1.0) if chance.random() < 0.3 else PATIENCE)
        status = killed.play(
            *arguments,
            until=lambda most=requests, soon=soon: len(killed.requests()) >= most or time.monotonic() > soon,
        )
        if (killed.out / "run.json").exists():
            arguments = ["--resume", killed.out]
        if status == 0:
            break
        assert status == -9, killed.said()
        kills += 1
        assert kills < 40, killed.said()
    assert kills > 0
    assert_as_whole(killed, whole)
    if how == "recorded":
        recording = Cassette.load(killed.folder / "record.jsonl")
        assert (len(recording.trajectories), recording.ended) == (16, True)
        assert len([one for one in recording.everything() if "prompt_ids" in one.asked]) == 16 * 4
    assert_gone(killed.programs)


def test_a_killed_evaluation_goes_on_until_it_is_done(rollouts):
    """With a kill in the first of two envs and one in the second."""
    options = ["CodeInterpreter-v0", "GSM8K-v0", "--tasks", "2", "-n", "2", "--concurrency", "2", "--json"]
    whole, killed = rollouts("whole"), rollouts("killed")
    assert whole.play(*options, "--out", whole.out, command="eval") == 0, whole.said()
    arguments, files = [*options, "--out", killed.out], ["CodeInterpreter-v0.jsonl", "GSM8K-v0.jsonl"]
    for count in (6, 22):
        until = lambda count=count: len(killed.requests()) >= count  # noqa: E731
        assert killed.play(*arguments, until=until, command="eval") == -9, killed.said()
        arguments = ["--resume", killed.out, "--json"]
    assert killed.play(*arguments, command="eval") == 0, killed.said()
    for name in files:
        there, here = (list(read_trajectories(run.out / name)) for run in (whole, killed))
        assert sorted(t.response_ids.tolist() for t in there) == sorted(t.response_ids.tolist() for t in here)
        assert len({(t.task_index, t.sample_index) for t in here}) == len(here) == 4
    assert len(killed.requests()) - len(whole.requests()) <= 2 * 2, "what was on its way at a kill was asked once more"
    assert sorted(path.name for path in killed.out.iterdir()) == [*files, "run.json"]
    ends = [json.loads(run.said()[run.said().index("{\n") :]) for run in (whole, killed)]
    assert ends[0]["whole"]["estimates"] == ends[1]["whole"]["estimates"]
    assert_gone(killed.programs)
