"""`toolgym rollout` over several envs: weights in the option, a task file whose rows name their env, going on."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.front.test_cli import run_here  # noqa: F401  a fixture
from toolgym.rollout import read_trajectories

BOTH = "SingleTurn-v0=1,CodeInterpreter-v0=2"
FEW = ("--group-size", "2", "--max-new-tokens", "8")


@pytest.fixture
def task_file(tmp_path):
    path = tmp_path / "tasks.jsonl"
    rows = [
        {"prompt": [{"role": "user", "content": f"{number}?"}], "env_id": env, "reward_model": {"ground_truth": "1"}}
        for number in range(3)
        for env in ("SingleTurn-v0", "CodeInterpreter-v0")
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def tool_file(tmp_path):
    (tmp_path / "tools.yaml").write_text("tools: [{class_name: toolgym.tools.BashTool, config: {}}]\n")
    return tmp_path / "tools.yaml"


def test_a_run_of_several_envs_shows_each_and_goes_on_and_is_replayed(run_here, task_file, tool_file, tmp_path):  # noqa: F811
    out, record = tmp_path / "out", tmp_path / "record.jsonl"
    files = ("--task-file", str(task_file), "--out", str(out), "--record", str(record))
    files = (*files, "--tool-config", f"CodeInterpreter-v0={tool_file}")
    done = run_here("rollout", "--env", BOTH, "--tasks", "3", *files, *FEW, "--max-turns", "1")
    assert done.returncode == 0, done.stderr
    lines = (out / "0.jsonl").read_text().splitlines(keepends=True)
    played = list(read_trajectories(out / "0.jsonl"))
    assert Counter(each.env_id for each in played) == {"SingleTurn-v0": 2, "CodeInterpreter-v0": 4}
    assert "SingleTurn-v0" in done.stdout
    assert "2 episodes, reward" in done.stdout
    tools = {(each.env_id, *(schema["function"]["name"] for schema in each.tools)) for each in played}
    assert tools == {("SingleTurn-v0",), ("CodeInterpreter-v0", "bash")}
    (out / "0.jsonl").write_text("".join(lines[:2]))
    again = run_here("rollout", "--resume", str(out))
    assert again.returncode == 0, again.stderr
    assert "resuming: 2 of 6 episodes" in again.stderr
    assert "6 of 6 episodes of SingleTurn-v0,CodeInterpreter-v0 are equal" in run_here("replay", str(record)).stdout
    whole = {(each.task_index, each.sample_index, each.env_id, each.task_id) for each in played}
    assert {(e.task_index, e.sample_index, e.env_id, e.task_id) for e in read_trajectories(out / "0.jsonl")} == whole


def test_one_file_has_the_tools_of_all_and_must_not_change_until_the_run_is_over(run_here, tool_file, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    envs = ("--env", "GSM8K-v0,CodeInterpreter-v0", "--tool-config", str(tool_file), "--max-turns", "1")
    done = run_here("rollout", *envs, "--tasks", "2", *FEW, "--out", str(out))
    assert done.returncode == 0, done.stderr
    played = read_trajectories(out / "0.jsonl")
    tools = {each.env_id: [schema["function"]["name"] for schema in each.tools] for each in played}
    assert tools == {"GSM8K-v0": ["calc_gsm8k_reward", "bash"], "CodeInterpreter-v0": ["bash"]}
    tool_file.write_text(tool_file.read_text() + "# changed\n")
    assert "tools.yaml' was changed since the run" in run_here("rollout", "--resume", str(out)).stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--env", "SingleTurn-v0=x,Math-v0"), "expected envs with weights such as 'A-v0=2,B-v0=1'"),
        (("--env", "SingleTurn-v0=0,Math-v0=0"), "all weights are 0"),
        (("--env", "SingleTurn-v0,Maths-v0"), "did you mean 'Math-v0'"),
        (("--env", "SingleTurn-v0,Math-v0", "--task-file", "FILE"), "are for SingleTurn-v0, CodeInterpreter-v0, and"),
        (("--env", BOTH, "--tool-config", "GSM8K-v0=FILE,GSM8K-v0=FILE"), "--tool-config names each env once"),
        (("--env", BOTH, "--tool-config", "Single-v0=FILE"), "--tool-config for 'Single-v0', did you mean"),
        (("--env", BOTH, "--env-kwargs", '{"SingleTurn-v0": 3}'), "expected an object of arguments for 'SingleTurn"),
        (("--env", BOTH, "--env-kwargs", '{"Single-v0": {}}'), "env_kwargs for 'Single-v0', did you mean"),
    ],
)
def test_what_does_not_fit_is_an_error_of_one_line(run_here, task_file, tmp_path, options, text):  # noqa: F811
    arguments = [str(task_file) if option == "FILE" else option for option in options]
    done = run_here("rollout", *arguments, "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
