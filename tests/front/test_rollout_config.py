"""`toolgym rollout --config FILE` and `--print-config`, and `--json`."""

from __future__ import annotations

import json

import pytest
import yaml

from toolgym.cli.app import main
from toolgym.rollout import read_trajectories

FILE = """
tasks: 2
group_size: 3
max_new_tokens: 32
journal: false
log: tensorboard
env_kwargs:
  max_turns: 2
device: null
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(FILE)

    def command(*arguments):
        monkeypatch.setattr("sys.argv", ["toolgym", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capfd.readouterr()

    return command


def test_options_win_over_the_file_and_the_run_goes_on_without_it(run, tmp_path):
    code, shown, errors = run("rollout", "--config", "run.yaml", "--group-size", "1", "--out", "out", "--json")
    assert code == 0, errors
    report = json.loads(shown)
    assert (report["episodes"], report["finished"], report["no_batch"], report["failures"]) == (2, 2, None, [])
    assert report["trajectories"] == "out/0.jsonl"
    assert report["batch"] == "out/batch.safetensors"
    assert report["summary"]["episodes"] == 2
    assert all(len(trajectory.turns) <= 2 for trajectory in read_trajectories("out/0.jsonl"))
    kept = json.loads((tmp_path / "out" / "run.json").read_text())["options"]
    assert (kept["tasks"], kept["group_size"], kept["journal"]) == (2, 1, False)
    assert (kept["env_kwargs"], kept["log"]) == ('{"max_turns": 2}', ["tensorboard"])
    assert "config_file" not in kept
    lines = (tmp_path / "out" / "0.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out" / "0.jsonl").write_text(lines[0])  # as if it had been killed
    code, shown, _ = run("rollout", "--resume", "out", "--json")
    assert (code, json.loads(shown)["finished"]) == (0, 2)
    assert json.loads(run("rollout", "--resume", "out", "--json")[1])["run_id"] == report["run_id"]
    assert run("rollout", "--resume", "out", "--config", "run.yaml")[::2] == (
        2,
        "error: --resume goes on with the settings of a run, and --config has others: give one of them\n",
    )


def test_the_printed_file_is_the_same_run(run, tmp_path):
    code, printed, _ = run("rollout", "--config", "run.yaml", "--top-p", "0.9", "--api-key", "secret", "--print-config")
    assert code == 0
    settings = yaml.safe_load(printed)
    assert (settings["tasks"], settings["top_p"], settings["env_kwargs"]) == (2, 0.9, {"max_turns": 2})
    assert (settings["device"], settings["history"], settings["out"]) == (None, "append", "rollout-out")
    assert "secret" not in printed
    assert "# How many tasks to play.\ntasks: 2\n" in printed
    (tmp_path / "printed.yaml").write_text(printed)
    assert run("rollout", "--config", "printed.yaml", "--print-config")[1] == printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("taskz: 1", "error: run.yaml: no such setting 'taskz', did you mean 'tasks'?"),
        ("group-size: 1", "did you mean 'group_size'?"),
        ("resume: out", "error: run.yaml: no such setting 'resume'"),
        ("[tasks]", "error: run.yaml: expected a mapping of settings, got list"),
        ("tasks: [", "error: run.yaml, line 1, column 9: not valid YAML"),
        ("tasks: 1\ntasks: 2", "tasks: is given twice"),
        ("tasks: 2.5", "Invalid value for '--tasks'"),
        ("tasks: yes", "Invalid value for '--tasks'"),
        ("tasks: 0", "Invalid value for '--tasks'"),
        ("history: apend", "Invalid value for '--history'"),
        ("env_kwargs: 3", "error: --env-kwargs: expected a JSON object"),
        ("env: GSM9K-v0", "did you mean 'GSM8K-v0'"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(run, tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    code, shown, errors = run("rollout", "--config", "run.yaml")
    assert (code, shown) == (2, "")
    assert message in errors
    assert not (tmp_path / "rollout-out").exists()


def test_a_file_that_is_not_there_gets_the_nearest(run):
    assert "did you mean 'run.yaml'" in run("rollout", "--config", "ran.yaml")[2]
