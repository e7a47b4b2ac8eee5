"""`toolgym rollout --record` and `toolgym replay`, as a user types them."""

from __future__ import annotations

import pytest

from toolgym.cli.app import main
from toolgym.rollout import read_trajectories


@pytest.mark.long
def test_the_command_records_and_replays(tmp_path, bare, edited, as_typed):
    def run(line):
        return as_typed(f"toolgym {line}", tmp_path)

    done = run("rollout --tasks 2 --group-size 2 --max-new-tokens 96 --record run.jsonl")
    assert done.returncode == 0, done.stderr
    again = run("replay run.jsonl --out again.jsonl")
    assert again.returncode == 0, again.stderr
    assert "4 of 4 episodes of CodeInterpreter-v0 are equal byte for byte" in again.stdout
    refused = run("replay run.jsonl --out again.jsonl")
    assert (refused.returncode, "--overwrite" in refused.stderr) == (2, True)
    first, second = (
        sorted(read_trajectories(tmp_path / name), key=lambda one: (one.task_index, one.sample_index))
        for name in ("rollout-out/0.jsonl", "again.jsonl")
    )
    assert [bare(one) for one in first] == [bare(one) for one in second]

    edited(tmp_path / "run.jsonl", "a result")
    different = run("replay edited.jsonl --allow-edited")
    assert different.returncode == 1
    assert "messages[3].content\n  recorded " in different.stdout
    assert "not recorded: task " in different.stdout
    assert "3 of 4 episodes" in different.stdout
    assert "Traceback" not in different.stderr


def test_the_command_names_what_is_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.jsonl").write_text("hello\n")
    for arguments, message in ((["runs.jsonl"], "did you mean 'run.jsonl'"), (["run.jsonl"], "not a recording")):
        monkeypatch.setattr("sys.argv", ["toolgym", "replay", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "run.jsonl", "--out", "./run.jsonl"],
        ["rollout", "--out", ".", "--record", "0.jsonl"],
        ["rollout", "--out", ".", "--record", "there/../batch.safetensors"],
    ],
)
def test_one_file_is_not_written_twice(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "run.jsonl").write_text("kept")
    monkeypatch.setattr("sys.argv", ["toolgym", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "name another file" in capsys.readouterr().err
    assert (tmp_path / "run.jsonl").read_text() == "kept"
