"""`toolgym prepare`: what it writes, says, refuses and leaves alone."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from toolgym.cli.app import app
from toolgym.envs import from_jsonl, from_parquet
from toolgym.envs.tasks.prepare.recipes import RECIPES
from toolgym.tools.errors import ConfigError, UnknownNameError

GSM8K = {"question": "3 boxes of 4 pens: how many pens?", "answer": "3*4=<<3*4=12>>12\n#### 12"}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(GSM8K) + "\n" + json.dumps(GSM8K) + "\n")
    return path


def prepare(*arguments):
    done = CliRunner().invoke(app, ["prepare", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.parametrize(("name", "read"), [("gsm8k.parquet", from_parquet), ("gsm8k.jsonl", from_jsonl)])
def test_a_file_becomes_tasks(source, tmp_path, name, read):
    out = tmp_path / name
    done = prepare("gsm8k", "--in", source, "--out", out, "--split", "test", "--agent-name", "toolgym_agent")
    assert done.stdout == f"{out}: 2 tasks for GSM8K-v0\n"
    tasks = read(out)
    assert [task.ground_truth for task in tasks] == ["12", "12"]
    assert tasks.task(1).id == "1"
    row = tasks.task(0).to_row()
    assert (row["agent_name"], row["extra_info"]["split"]) == ("toolgym_agent", "test")
    assert "tools_kwargs" in row["extra_info"]


def test_rows_for_any_env(source, tmp_path):
    prepare("gsm8k", "--in", source, "--out", tmp_path / "a.jsonl", "--no-tools-kwargs", "--system", "Be brief.")
    task = from_jsonl(tmp_path / "a.jsonl").task(0)
    assert task.tools_kwargs == {}
    assert task.messages[0]["content"] == "Be brief."


def test_what_is_left_out_is_counted(tmp_path):
    path = tmp_path / "mbpp.jsonl"
    rows = [{"task_id": n, "text": "Do.", "code": "", "test_list": ["assert f()"]} for n in (601, 11, 12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = prepare("mbpp", "--in", path, "--out", tmp_path / "out.jsonl", "--split", "test")
    assert done.stderr == "1 left out: each belongs to another split\n"
    assert done.stdout.endswith("2 tasks for CodeJudge-v0\n")


def test_a_file_that_is_there_is_kept(source, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="--overwrite"):
        prepare("gsm8k", "--in", source, "--out", out)
    assert out.read_text() == "mine"
    prepare("gsm8k", "--in", source, "--out", out, "--overwrite")
    assert from_jsonl(out).size == 2


def test_an_error_leaves_no_file(source, tmp_path):
    source.write_text(source.read_text() + '{"question": "?"}\n')
    with pytest.raises(ConfigError, match=r"train\.jsonl, line 3: there is no field 'answer'"):
        prepare("gsm8k", "--in", source, "--out", tmp_path / "out.parquet")
    assert [one.name for one in tmp_path.iterdir()] == ["train.jsonl"]
    with pytest.raises(UnknownNameError, match="did you mean 'gsm8k'"):
        prepare("gsm8", "--in", source, "--out", tmp_path / "out.parquet")
    with pytest.raises(ConfigError, match=r"written to \.jsonl or \.parquet"):
        prepare("gsm8k", "--in", source, "--out", tmp_path / "out.csv")


def test_its_help_names_every_data_set():
    text = " ".join(prepare("--help").stdout.split())
    assert [name for name in RECIPES if name not in text] == []
