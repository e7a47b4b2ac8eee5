"""`toolgym rollout --resume`: a run that was killed goes on, and ends as if nothing had happened."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from toolgym.cli.app import main
from toolgym.rollout import read_trajectories
from toolgym.rollout.batch import load_batch
from toolgym.rollout.recording.cassette import Cassette
from toolgym.rollout.trajectory import locked_file

SHORT = ["--tasks", "3", "--group-size", "2", "--max-new-tokens", "64", "--seed", "4"]


@pytest.fixture
def toolgym(monkeypatch, capfd):
    """As a call of the command, in this process: most of a process of its own would be importing torch."""

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["toolgym", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return subprocess.CompletedProcess(arguments, left.value.code, *capfd.readouterr())

    return command


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that came to its end, with a recording and a file of tasks. Not to be changed."""
    home = tmp_path_factory.mktemp("whole")
    rows = [
        {"prompt": [{"role": "user", "content": f"{number} * 7?"}], "reward_model": {"ground_truth": str(number * 7)}}
        for number in range(4)
    ]
    (home / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = sys.argv
    sys.argv = ["toolgym", "rollout", *SHORT, "--task-file", str(home / "tasks.jsonl"), "--out", str(home / "out"),
                "--record", str(home / "record.jsonl")]  # fmt: skip
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = before
    assert left.value.code == 0
    return home


@pytest.fixture
def killed(whole, tmp_path):
    """A copy of that run as if it had been killed: two episodes have finished, the third was being written."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    out = tmp_path / "out"
    path = out / "0.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]) + b'{"format_version": 3, "inp')
    (out / "batch.safetensors").unlink()
    (out / "run.json").write_text((out / "run.json").read_text().replace(str(whole), str(tmp_path)))
    return out


def edit(out, change):
    run = json.loads((out / "run.json").read_text())
    change(run)
    (out / "run.json").write_text(json.dumps(run))


def append(path, text):
    path.write_text(path.read_text() + text)


def in_order(out):
    return sorted(read_trajectories(out / "0.jsonl"), key=lambda one: (one.task_index, one.sample_index))


def what_happened(out):
    """The episodes without their wall times. Log-probabilities depend in their last bits on what else was in a batch of
    the engine; with an engine where nothing does, `test_kill` compares every bit."""
    return [
        (one.messages, one.reward, one.stop_reason, one.prompt_ids.tolist(), one.response_ids.tolist(),
         [turn.seed for turn in one.turns])
        for one in in_order(out)
    ]  # fmt: skip


def test_a_run_that_was_killed_goes_on_without_any_other_option(toolgym, killed, whole):
    """Its recording goes on, too: what it held of unfinished episodes gave way."""
    done = toolgym("rollout", "--resume", killed, "--concurrency", "2")
    assert done.returncode == 0, done.stderr
    assert "resuming: 2 of 6 episodes have finished" in done.stderr
    assert "(6 of 6)" in done.stdout
    assert what_happened(killed) == what_happened(whole / "out")
    assert len({one.group_id for one in in_order(killed)}) == 3
    assert len(load_batch(killed / "batch.safetensors")) == 6
    assert sorted(path.name for path in killed.iterdir()) == ["0.jsonl", "batch.safetensors", "run.json"]
    recording = Cassette.load(killed.parent / "record.jsonl")
    assert (len(recording.trajectories), recording.ended) == (6, True)
    requests = [one for one in recording.everything() if "prompt_ids" in one.asked]
    assert len(requests) == sum(len(one.turns) for one in in_order(killed))
    replayed = toolgym("replay", killed.parent / "record.jsonl")
    assert replayed.returncode == 0, replayed.stderr
    again = json.loads((killed / "run.json").read_text())
    assert again["options"]["concurrency"] == 2


def test_a_run_that_is_complete_says_so_and_makes_its_batch_again(toolgym, whole, tmp_path):
    """The engine is not needed for it."""
    out = tmp_path / "out"
    shutil.copytree(whole / "out", out)
    (out / "batch.safetensors").unlink()
    (out / "turns.journal").write_text("a run was killed between its last episode and its end")
    before = (out / "0.jsonl").read_bytes()
    done = toolgym("rollout", "--resume", out, "--engine", "http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert "is complete: nothing is left to play" in done.stdout
    assert len(load_batch(out / "batch.safetensors")) == 6
    assert (out / "0.jsonl").read_bytes() == before
    assert not (out / "turns.journal").exists()


NIM = """
from toolgym.envs import register
from toolgym.envs.library.nim import NimEnv

register("NimOfTwo-v0", NimEnv, kwargs={"piles": [3, 5]})
"""


def test_a_complete_run_of_several_roles_counts_its_episodes_and_not_its_lines(toolgym, tmp_path, monkeypatch):
    (tmp_path / "nim_of_two.py").write_text(NIM)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out"
    done = toolgym("rollout", "--env", "nim_of_two:NimOfTwo-v0", "--tasks", "2", "--group-size", "1",
                   "--max-new-tokens", "8", "--out", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 of 2 episodes, reward" in done.stderr
    lines = (out / "0.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 4
    done = toolgym("rollout", "--resume", out)
    assert (done.returncode, "is complete: nothing is left to play" in done.stdout) == (0, True)
    (out / "0.jsonl").write_text("".join(lines[:3]))
    done = toolgym("rollout", "--resume", out)
    assert "resuming: 1 of 2 episodes" in done.stderr
    assert done.returncode == 0
    assert "(2 of 2)" in done.stdout


def change(name, value):
    def changed(run):
        run["options"][name] = value

    return changed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "5"], "--seed contradicts the run in"),
        (["--max-turns", "3"], "--max-turns contradicts the run in"),
        (["--env", "GSM8K-v0"], "--env contradicts the run in"),
        (["--overwrite"], "--resume goes on with a run and --overwrite replaces it"),
        (["--out", "elsewhere"], "--out names another folder than --resume"),
        (["--no-journal"], "--journal contradicts the run in"),
    ],
)
def test_an_option_that_contradicts_the_run_is_an_error(toolgym, killed, arguments, said):
    before = (killed / "0.jsonl").read_bytes()
    done = toolgym("rollout", "--resume", killed, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert (killed / "0.jsonl").read_bytes() == before


def test_an_option_that_says_the_same_is_fine_and_the_engine_may_be_another(toolgym, killed):
    """Addresses change. Device and type of the engine before do not hold for the new one."""
    edit(killed, change("device", "cuda:7"))
    done = toolgym("rollout", "--resume", killed, "--seed", "4", "--engine", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "nothing answers at http://127.0.0.1:9" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda out: shutil.rmtree(out), "holds no run to resume"),
        (lambda out: (out / "run.json").unlink(), "holds no run to resume"),
        (lambda out: (out / "run.json").write_text('{"format": "tool'), "cannot read"),
        (lambda out: (out / "run.json").write_text("[]"), "is no file of a run"),
        (lambda out: edit(out, lambda run: run.update(version=2)), "has version 2 of the format"),
        (lambda out: edit(out, lambda run: run.pop("tasks")), "is broken"),
        (lambda out: edit(out, lambda run: run.update(options=7)), "is broken"),
        (lambda out: edit(out, change("sharpness", 1)), "options that this version of toolgym does not know (sharp"),
        (lambda out: edit(out, lambda run: run.update(run_id="0" * 32)), "of another run"),
        (lambda out: edit(out, lambda run: run.update(tasks="0" * 64)), "the tasks of the run"),
        (lambda out: edit(out, lambda run: run["tokenizer"].update(tokenizer="0")), "the engine's tokenizer is an"),
        (lambda out: (out.parent / "tasks.jsonl").write_text('{"prompt": []}\n'), "was changed since"),
        (lambda out: append(out.parent / "tasks.jsonl", "\n"), "was changed since the run in"),
        (lambda out: (out.parent / "tasks.jsonl").unlink(), "tasks.jsonl"),
        (lambda out: (out.parent / "record.jsonl").write_text("of something else\n"), "is not a recording"),
        (lambda out: (out / "turns.journal").write_text("of something else\n"), "the journal cannot be gone on with"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_told_and_nothing_is_lost(toolgym, killed, spoil, said):
    path = killed / "0.jsonl"
    whole_lines = path.read_bytes().splitlines(keepends=True)[:2]
    spoil(killed)
    done = toolgym("rollout", "--resume", killed)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if path.exists():
        assert path.read_bytes().splitlines(keepends=True)[:2] == whole_lines


@pytest.mark.parametrize("folder", ["whole", "killed"])
def test_verls_viewer_finds_steps_and_texts_in_a_folder(request, folder):
    """It takes each file `*.jsonl` for a step of that number, its lines for rows, and sorts these by `score`."""
    out = request.getfixturevalue(folder)
    out = out / "out" if folder == "whole" else out
    (out / "turns.journal").write_text("of a run that is under way")
    steps = sorted(out.glob("*.jsonl"), key=lambda path: int(path.stem))
    (out / "turns.journal").unlink()
    assert [path.name for path in steps] == ["0.jsonl"]
    for line in steps[0].read_text().splitlines()[:2]:
        row = json.loads(line)
        assert (row["step"], type(row["input"]), type(row["output"]), type(row["score"])) == (0, str, str, float)
        assert list(row)[1:6] == ["input", "output", "gts", "score", "step"]


def test_a_broken_line_in_the_middle_is_named(toolgym, killed):
    path = killed / "0.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    done = toolgym("rollout", "--resume", killed)
    assert done.returncode == 2
    assert "line 1" in done.stderr


def test_a_second_call_beside_the_first_is_refused(toolgym, killed, monkeypatch):
    monkeypatch.setattr(locked_file, "PATIENCE", 0.0)
    with (killed / "0.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for arguments in (["--resume", killed], [*SHORT, "--out", killed, "--overwrite"]):
            done = toolgym("rollout", *arguments)
            assert done.returncode == 2
            assert "is being written by another run" in done.stderr


@pytest.fixture
def open_folder():
    """A folder that other users may read: those of pytest are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_folder_that_may_not_be_written_is_told(toolgym, killed, open_folder):
    out = shutil.copytree(killed.parent, open_folder / "home") / "out"
    (out / "run.json").write_text((out / "run.json").read_text().replace(str(killed.parent), str(out.parent)))
    for path in [*out.iterdir(), out]:
        os.chmod(path, 0o555)
    os.chmod(out.parent, 0o755)
    if os.geteuid() == 0:
        os.seteuid(65534)  # root may write anywhere
    try:
        done = toolgym("rollout", "--resume", out)
    finally:
        os.seteuid(os.getuid())
        os.chmod(out, 0o755)
    assert done.returncode == 1
    assert "cannot write trajectories to" in done.stderr


def test_a_secret_is_not_written_and_asked_for_again(toolgym, tmp_path):
    kwargs = json.dumps({"max_turns": 2, "api_key": "s3cret"})
    arguments = [*SHORT, "--out", tmp_path, "--engine", "http://me:s3cret@127.0.0.1:9", "--env-kwargs", kwargs]
    done = toolgym("rollout", *arguments)
    assert done.returncode == 2
    from toolgym.rollout.recording.run_folder import RunFile

    options = {"env_kwargs": json.dumps({"max_turns": 2, "api_key": "[redacted]"}), "seed": 4}
    RunFile("0", options, 6, "0").write(tmp_path)
    done = toolgym("rollout", "--resume", tmp_path)
    assert "--env-kwargs of the run in" in done.stderr
    assert "held a secret" in done.stderr
    done = toolgym("rollout", "--resume", tmp_path, "--env-kwargs", kwargs)
    assert "api_key" in done.stderr, "past the check, and to the env, which knows no such argument"
    done = toolgym("rollout", "--resume", tmp_path, "--env-kwargs", kwargs.replace("2", "3"))
    assert "--env-kwargs contradicts" in done.stderr
