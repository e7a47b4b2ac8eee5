"""Tasks, and reading them from files in verl's row shape."""

from __future__ import annotations

import copy
import dataclasses
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgym.envs.tasks.loading import load_tasks
from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tasks.stored import from_parquet
from toolgym.envs.tasks.task import Task
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
    assert task.to_row() == ROW


def test_a_task_that_was_made_by_hand_there_and_back():
    task = Task(({"role": "user", "content": "x"},), {"target": ["a"]}, {"f": {"create_kwargs": {"n": 1}}}, "s", "7")
    assert Task.from_row(json.loads(json.dumps(task.to_row()))) == task


def exactly(value):
    """A JSON value as text, in which 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


def rows():
    """Rows in verl's shape, with keys that may be absent or null and others that toolgym does not know."""
    names = st.text(max_size=5)
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    )
    objects = st.dictionaries(names, json_values, max_size=3)
    kwargs = st.fixed_dictionaries({}, optional={"create_kwargs": objects | st.none(), "execute_kwargs": objects})
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=8)},
        optional={"name": st.text(max_size=3)},
    )
    extra_info = st.fixed_dictionaries(
        {},
        optional={
            "index": st.none() | st.integers() | st.text(max_size=3),
            "split": st.sampled_from(["train", "test"]),
            "need_tools_kwargs": st.booleans(),
            "tools_kwargs": st.none() | st.dictionaries(names, kwargs | st.none(), max_size=3),
            "interaction_kwargs": objects | st.none(),
            "answer": json_values,
        },
    )
    reward_model = st.fixed_dictionaries({}, optional={"style": st.just("rule"), "ground_truth": json_values})
    return st.fixed_dictionaries(
        {"prompt": st.lists(message, min_size=1, max_size=3)},
        optional={
            "data_source": st.none() | st.text(max_size=5),
            "ability": st.text(max_size=5),
            "agent_name": st.text(max_size=5),
            "reward_model": reward_model | st.none(),
            "extra_info": extra_info | st.none(),
            "else": json_values,
        },
    )


@given(rows())
def test_any_row_read_and_written_back_is_equal(row):
    before = copy.deepcopy(row)
    task = Task.from_row(row, id="line 1")
    assert exactly(task.to_row()) == exactly(before)
    assert exactly(task.ground_truth) == exactly((row.get("reward_model") or {}).get("ground_truth"))
    assert exactly(Task.from_row(task.to_row(), id="line 1").to_row()) == exactly(before)
    task.to_row()["prompt"][0]["content"] = "changed by the caller"
    assert exactly(task.to_row()) == exactly(before)


def test_what_was_changed_is_changed_in_the_row():
    task = Task.from_row(ROW)
    other = dataclasses.replace(task, ground_truth=2, source="mine", id="x")
    assert other.to_row() == {
        **ROW,
        "data_source": "mine",
        "reward_model": {"style": "rule", "ground_truth": 2},
        "extra_info": {**ROW["extra_info"], "index": "x"},
    }
    other = dataclasses.replace(task, messages=task.messages[1:], tools_kwargs={})
    assert other.to_row()["prompt"] == ROW["prompt"][1:]
    without = {name: value for name, value in ROW["extra_info"].items() if name != "tools_kwargs"}
    assert other.to_row()["extra_info"] == without
    one = Task.from_row({**ROW, "reward_model": {"ground_truth": 1}})
    assert exactly(dataclasses.replace(one, ground_truth=True).to_row()["reward_model"]) == '{"ground_truth": true}'


def test_extra_info_is_at_hand():
    assert Task.from_row(ROW).extra_info["need_tools_kwargs"] is True
    assert Task.from_row({**ROW, "extra_info": None}).extra_info == {}


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
    path.write_text("3")
    with pytest.raises(ConfigError, match="line 1: expected a JSON object"):
        load_tasks(path)
    for empty in ("", "[]"):
        path.write_text(empty)
        with pytest.raises(ConfigError, match="no tasks"):
            load_tasks(path)


def test_a_line_that_is_no_json_is_shown(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("# not tasks\n")
    with pytest.raises(ConfigError, match=r"line 1: expected a JSON object, got '# not tasks'"):
        load_tasks(path)


@pytest.mark.parametrize("kwargs", [{}, {"f": {"create_kwargs": {"x": 1}}}])
def test_rows_can_be_written_to_parquet_by_pandas(tmp_path, kwargs):
    """A struct without fields cannot, as empty `tools_kwargs` were."""
    pandas = pytest.importorskip("pandas")
    given = [
        Task(({"role": "user", "content": f"q{number}"},), number, tools_kwargs=kwargs, id=str(number))
        for number in range(3)
    ]
    pandas.DataFrame([one.to_row() for one in given]).to_parquet(tmp_path / "t.parquet")
    assert list(from_parquet(tmp_path / "t.parquet")) == given
    assert [Task.from_row(one.to_row()) for one in given] == given


def few_shot(arguments, **missing):
    call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": arguments}, **missing}
    return {
        "prompt": [
            {"role": "user", "content": "A fox?", "tool_calls": None},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "an animal", "tool_call_id": "call_0"},
        ]
    }


def arguments_of(task):
    return task.messages[1]["tool_calls"][0]["function"]["arguments"]


def test_a_call_in_a_row_of_a_table_has_no_arguments_of_other_calls():
    shared = {"x": "fox", "code": None, "options": {"deep": True, "limit": None}, "places": [{"at": 1, "of": None}]}
    task = Task.from_row(few_shot(shared, index=None), from_arrow=True)
    assert arguments_of(task) == {"x": "fox", "options": {"deep": True}, "places": [{"at": 1}]}
    assert "index" not in task.messages[1]["tool_calls"][0]
    assert Task.from_row(few_shot(None), from_arrow=True).messages[1]["tool_calls"][0]["function"]["arguments"] == {}


def test_a_null_argument_of_a_row_of_json_stays():
    assert arguments_of(Task.from_row(few_shot({"x": None}))) == {"x": None}


def test_arguments_of_a_call_in_a_row_may_be_a_json_text():
    assert arguments_of(Task.from_row(few_shot('{"a": 1, "b": null}'), from_arrow=True)) == {"a": 1, "b": None}
    with pytest.raises(ConfigError, match=r"prompt\[1\].*no JSON"):
        Task.from_row(few_shot("{"))


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"x": "fox", "code": None}])
def test_a_row_with_calls_is_written_as_it_was_read(arguments):
    row = few_shot(arguments)
    assert Task.from_row(row, from_arrow=True).to_row() == row
