"""`toolgym eval`, on the tiny policy."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from toolgym.cli.app import main
from toolgym.rollout import read_trajectories

SHORT = ["--tasks", "2", "-n", "2", "--max-new-tokens", "24"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("evaluations")


@pytest.fixture
def run(home, monkeypatch, capfd):
    monkeypatch.chdir(home)
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments, fails=0):
        monkeypatch.setattr("sys.argv", ["toolgym", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        shown, errors = capfd.readouterr()
        assert left.value.code == fails, errors
        return errors if fails else shown

    return command


@pytest.fixture
def evaluated(home, run):
    """The JSON of an evaluation on two envs, in the folder `base`."""
    if not (home / "base.json").exists():
        shown = run("eval", "CodeInterpreter-v0", "GSM8K-v0", *SHORT, "--out", "base", "--json")
        (home / "base.json").write_text(shown)
    return json.loads((home / "base.json").read_text())


def test_json_has_the_figures_of_all_and_of_each_env_and_source(home, evaluated):
    assert evaluated["whole"]["figures"]["episodes"] == 8
    assert set(evaluated["whole"]["estimates"]) == {"reward", "success", "pass@1", "pass@2", "pass^1", "pass^2"}
    assert [part["name"] for part in evaluated["parts"]["env"]] == ["CodeInterpreter-v0", "GSM8K-v0"]
    assert [part["name"] for part in evaluated["parts"]["source"]] == ["arithmetic", "toolgym/gsm8k"]
    assert sum(stop["episodes"] for stop in evaluated["whole"]["stops"]) == 8
    assert sorted(path.name for path in (home / "base").iterdir()) == [
        "CodeInterpreter-v0.jsonl", "GSM8K-v0.jsonl", "run.json",
    ]  # fmt: skip
    played = list(read_trajectories(home / "base" / "GSM8K-v0.jsonl"))
    assert {(t.validate, t.sampling["max_new_tokens"]) for t in played} == {(True, 24)}


def test_a_complete_one_is_shown_again_and_compared_in_tables_of_eighty_columns(evaluated, run, home):
    path = home / "base" / "GSM8K-v0.jsonl"
    better = (
        path.read_text().replace('"score": 0.0', '"score": 1.0').replace('"metrics": {"score"', '"metrics": {"was"')
    )
    (home / "better.jsonl").write_text(better)
    text = run("eval", "--resume", "base", "--engine", "http://127.0.0.1:9/", "--compare", "better.jsonl")
    tables = text.split("\n- ")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert re.search(r"base - better.jsonl", tables)
    assert re.search(r"success .* -100.0%", tables)
    for part in ("By env", "By source", "Ends", "pass^2", "ended at a limit"):
        assert part in tables
    assert "base - better.jsonl: reward" in text
    assert "2 tasks in both, 0 only in the first, 2 in the other" in text
    value = json.loads(run("eval", "--resume", "base", "--compare", "better.jsonl", "--json"))
    assert value["differences"]["better.jsonl"]["success"]["value"] == -1.0
    assert value["whole"] == evaluated["whole"]


def test_report_reads_its_folder(evaluated, run):
    [shown] = json.loads(run("report", "base", "--by", "env", "--json"))["runs"]
    assert shown["whole"] == evaluated["whole"]
    assert shown["parts"] == evaluated["parts"]["env"]


def test_what_is_left_of_an_evaluation_is_played_with_its_options(home, evaluated, run):
    lines = (home / "base" / "GSM8K-v0.jsonl").read_text().splitlines(keepends=True)
    (home / "cut").mkdir()
    (home / "cut" / "run.json").write_text((home / "base" / "run.json").read_text())
    (home / "cut" / "CodeInterpreter-v0.jsonl").write_bytes((home / "base" / "CodeInterpreter-v0.jsonl").read_bytes())
    (home / "cut" / "GSM8K-v0.jsonl").write_text("".join(lines[:3]) + lines[3][:100])
    value = json.loads(run("eval", "--resume", "cut", "--json"))
    assert value["whole"]["estimates"] == evaluated["whole"]["estimates"]
    again = list(read_trajectories(home / "cut" / "GSM8K-v0.jsonl"))
    assert len({(t.task_index, t.sample_index) for t in again}) == len(again) == 4


def test_a_files_settings_are_those_that_it_prints(run, home):
    (home / "eval.yaml").write_text("envs: [GSM8K-v0, Math-v0]\ngroup_size: 3\ntasks: 7\n")
    printed = run("eval", "--config", "eval.yaml", "--tasks", "5", "--print-config")
    settings = yaml.safe_load(printed)
    assert printed.startswith("# Settings of `toolgym eval`.")
    assert (settings["envs"], settings["group_size"], settings["tasks"]) == (["GSM8K-v0", "Math-v0"], 3, 5)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "expected an env to evaluate on, or several, and there is none: `toolgym envs` lists the ids"),
        (["GSM8K-v0", "-n", "2", "-k", "1,4"], "pass@4 cannot be estimated from fewer than 4 episodes of a task"),
        (["GSM8K-v0", "-k", "x"], "-k takes whole numbers, such as 1,4,8, got 'x'"),
        (["GSM9K-v0"], "did you mean 'GSM8K-v0'"),
        (["GSM8K-v0", "--compare", "no-such-run"], "no trajectories at 'no-such-run'"),
        (["GSM8K-v0", "GSM8K-v0"], "two envs would write the file 'GSM8K-v0.jsonl'"),
        (["GSM8K-v0", "--out", "base"], "go on with it (resume=True, --resume base), or name another folder"),
        (["--resume", "base", "-n", "3"], "--samples contradicts the run in base: it was begun with 2, and 3 is given"),
        (["Math-v0", "--resume", "base"], "envs contradicts the run in base"),
        (["GSM8K-v0", "--tool-config", "GSM9K-v0=t.yaml"], "--tool-config for 'GSM9K-v0', did you mean 'GSM8K-v0'"),
    ],
)
def test_wrong_usage_is_a_line(evaluated, run, arguments, why):
    errors = run("eval", *arguments, fails=2)
    assert why in errors
    assert errors.count("\n") == 1


def test_the_run_of_another_command_is_not_resumed(evaluated, run):
    assert "'base' holds a run of another command: toolgym eval --resume base" in run(
        "rollout", "--resume", "base", fails=2
    )
