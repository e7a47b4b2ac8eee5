"""Tasks, and reading them from files in verl's row shape."""

from __future__ import annotations

import json
import random

import pytest

from toolgym.envs.task import Task, TaskList, load_tasks
from toolgym.tools.errors import ConfigError, UnknownNameError

ROW = {
    "data_source": "gsm8k",
    "prompt": [{"role": "system", "content": "Solve."}, {"role": "user", "content": "1+1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {
        "index": 7,
        "need_tools_kwargs": True,
        "tools_kwargs": {"code_interpreter": {"execute_kwargs": {"timeout": 3}}, "search": None},
    },
}


def test_a_verl_row():
    task = Task.from_row(ROW)
    assert [m["role"] for m in task.messages] == ["system", "user"]
    assert (task.ground_truth, task.source, task.id) == ("2", "gsm8k", "7")
    assert task.tools_kwargs == {"code_interpreter": {"execute_kwargs": {"timeout": 3}}}


def test_there_and_back():
    task = Task.from_row(ROW)
    assert Task.from_row(json.loads(json.dumps(task.to_row()))) == task


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"prompt": "text"},
        {"prompt": []},
        {"prompt": ["text"]},
        {"prompt": [{"role": "robot", "content": "x"}]},
        {"prompt": [{"role": "user", "content": ["x"]}]},
        {"prompt": [{"role": "assistant", "content": "x", "tool_calls": 7}]},
        {"prompt": [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]},
        {**ROW, "reward_model": "rule"},
        {**ROW, "extra_info": [1]},
        {**ROW, "extra_info": {"tools_kwargs": ["code_interpreter"]}},
        {**ROW, "extra_info": {"tools_kwargs": {"code_interpreter": 3}}},
        {**ROW, "extra_info": {"tools_kwargs": {"code_interpreter": {"create_kwargs": "x"}}}},
    ],
)
def test_rows_of_another_shape_are_refused(row):
    with pytest.raises(ConfigError):
        Task.from_row(row)


def test_a_list_is_taken_in_order_and_around_and_sampled_by_seed():
    tasks = TaskList([Task(({"role": "user", "content": str(n)},), id=str(n)) for n in range(5)])
    assert [t.id for t in tasks.take(7)] == ["0", "1", "2", "3", "4", "0", "1"]
    assert tasks.sample(random.Random(3)) == tasks.sample(random.Random(3))


def test_files(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n" + json.dumps({**ROW, "extra_info": {}}) + "\n")
    assert [t.id for t in load_tasks(path).tasks] == ["7", "3"]
    with pytest.raises(UnknownNameError, match="did you mean 'tasks.jsonl'"):
        load_tasks(tmp_path / "task.jsonl")
    path.write_text(json.dumps(ROW) + "\n{")
    with pytest.raises(ConfigError, match="line 2"):
        load_tasks(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="line 1: expected a JSON object"):
        load_tasks(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="no tasks"):
        load_tasks(path)


def test_a_line_that_is_no_json_is_shown(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("# not tasks\n")
    with pytest.raises(ConfigError, match=r"line 1: expected a JSON object, got '# not tasks'"):
        load_tasks(path)
