"""Tasks that are written and read again: by toolgym, by pyarrow, by `datasets`, and by TRL's loader."""

from __future__ import annotations

import json

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.test_task import ROW, exactly, rows
from toolgym.envs import ArithmeticTasks, load_tasks
from toolgym.envs.tasks.row_fields import TASK_COLUMN
from toolgym.envs.tasks.stored import from_hf, from_jsonl, from_parquet
from toolgym.envs.tasks.task import Task
from toolgym.envs.tasks.writing import GROUP_ROWS, write_tasks
from toolgym.tools.errors import ConfigError


def question(text="q", **fields):
    return {"prompt": [{"role": "user", "content": text}], "data_source": "s", **fields}


def with_tools(**kwargs):
    return question(extra_info={"index": 1, "need_tools_kwargs": True, "tools_kwargs": kwargs})


ALL_FIELDS = {
    "data_source": "openai/gsm8k",
    "agent_name": "toolgym_agent",
    "prompt": [{"role": "system", "content": "Solve."}, {"role": "user", "content": "2+2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {
        "split": "train",
        "index": 3,
        "need_tools_kwargs": True,
        "tools_kwargs": {
            "calc_gsm8k_reward": {
                "create_kwargs": {"ground_truth": "4"},
                "execute_kwargs": {"strict": True},
                "calc_reward_kwargs": {"weight": 0.5},
                "release_kwargs": {"keep": ["a", "b"]},
            }
        },
        "interaction_kwargs": {"name": "gsm8k", "query": "2+2?", "ground_truth": "4"},
    },
}
ALIKE = [ALL_FIELDS, {**ALL_FIELDS, "reward_model": {"style": "rule", "ground_truth": "5"}}]
DIFFERENT = {
    "tools": [with_tools(a={"create_kwargs": {"x": 1}}), with_tools(search={"create_kwargs": {"top": 3}})],
    "arguments of a tool": [with_tools(a={"create_kwargs": {"x": 1}}), with_tools(a={"create_kwargs": {"y": 1}})],
    "a None of its own": [with_tools(a={"create_kwargs": {"x": None}}), with_tools(a={"create_kwargs": {"y": 1}})],
    "only Nones of their own": [with_tools(a={"create_kwargs": {"x": None}})],
    "types": [question(reward_model={"ground_truth": one}) for one in ("4", 4, 4.0, True, ["4"], {"target": ["4"]})],
    "numbers": [question(extra_info={"index": one}) for one in (1, 2**70, 0.5)],
    "objects without keys": [question(extra_info={}, reward_model={})],
    "nothing in them": [question(extra_info={}, reward_model={}), question(extra_info={"tools_kwargs": {}})],
    "texts": [question("\ud800"), question("ä")],
    "many keys": [question(else_={str(n): n for n in range(300)}), question(else_={"x": 1})],
}


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.parquet"])
@pytest.mark.parametrize("given", [ALIKE, *DIFFERENT.values()], ids=["alike", *DIFFERENT])
def test_each_row_comes_back_equal(tmp_path, name, given):
    path = tmp_path / name
    tasks = [Task.from_row(row, id=str(n)) for n, row in enumerate(given, start=1)]
    assert write_tasks(path, tasks) == len(given)
    read = from_parquet if path.suffix == ".parquet" else from_jsonl
    for source in (read(path), load_tasks(path)):
        again = [source.task(place) for place in range(source.size)]
        assert [exactly(task.to_row()) for task in again] == [exactly(row) for row in given]
        assert again == tasks
    assert [one.name for one in tmp_path.iterdir()] == [name]


@given(st.lists(rows(), min_size=1, max_size=5))
def test_any_rows_come_back_equal_from_parquet(tmp_path_factory, given):
    path = tmp_path_factory.mktemp("tasks") / "tasks.parquet"
    write_tasks(path, map(Task.from_row, given))
    assert [exactly(task.to_row()) for task in from_parquet(path)] == [exactly(row) for row in given]


def test_rows_that_are_alike_are_a_plain_table_of_verls(tmp_path):
    path = tmp_path / "tasks.parquet"
    write_tasks(path, map(Task.from_row, ALIKE))
    table = pyarrow.parquet.read_table(path)
    assert table.column_names == list(ALL_FIELDS)
    assert table.to_pylist() == ALIKE


def test_rows_that_differ_have_verls_columns_and_one_that_holds_them_whole(tmp_path):
    path = tmp_path / "tasks.parquet"
    given = DIFFERENT["tools"]
    write_tasks(path, map(Task.from_row, given))
    table = pyarrow.parquet.read_table(path).to_pylist()
    assert [json.loads(row.pop(TASK_COLUMN)) for row in table] == given
    assert table[0]["extra_info"]["tools_kwargs"] == {"a": {"create_kwargs": {"x": 1}}, "search": None}
    assert [row["prompt"] for row in table] == [row["prompt"] for row in given]


def test_a_table_that_arrow_united_gives_tools_no_arguments_of_other_rows(tmp_path):
    path = tmp_path / "of verl.parquet"
    given = DIFFERENT["arguments of a tool"] + DIFFERENT["tools"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(given), path)
    for source in (from_parquet(path), load_tasks(path)):
        kwargs = [source.task(place).tools_kwargs for place in range(4)]
        assert kwargs == [row["extra_info"]["tools_kwargs"] for row in given]
        assert [source.task(n).to_row() for n in range(4)] == pyarrow.parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("given", [ALIKE, *DIFFERENT.values()], ids=["alike", *DIFFERENT])
def test_datasets_reads_it(tmp_path, given):
    import datasets

    path = tmp_path / "tasks.parquet"
    write_tasks(path, map(Task.from_row, given))
    data = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]
    for source in (from_hf(data), load_tasks(data)):
        assert [exactly(source.task(n).to_row()) for n in range(len(given))] == [exactly(row) for row in given]


def test_trls_loader_reads_it_and_its_rows_are_chats(tmp_path, monkeypatch):
    trl = pytest.importorskip("trl")
    from trl.data_utils import is_conversational

    path = tmp_path / "tasks.parquet"
    write_tasks(path, map(Task.from_row, ALIKE))
    part = trl.scripts.utils.DatasetConfig(path="parquet", data_files=str(path))
    data = trl.get_dataset(trl.DatasetMixtureConfig(datasets=[part]))["train"]
    assert [row["reward_model"]["ground_truth"] for row in data] == ["4", "5"]
    assert is_conversational(data[0])
    assert [from_hf(data).task(n).to_row() for n in range(2)] == ALIKE


def test_a_large_file_has_small_row_groups(tmp_path):
    path = tmp_path / "tasks.parquet"
    tasks = [Task.from_row(question("x" * 100)) for _ in range(GROUP_ROWS + 1)]
    write_tasks(path, tasks + [Task.from_row(question("x" * 5_000_000)) for _ in range(3)])
    groups = pyarrow.parquet.read_metadata(path)
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [GROUP_ROWS, 3, 1]
    assert from_parquet(path).size == GROUP_ROWS + 4


def test_generated_tasks_are_written(tmp_path):
    tasks = ArithmeticTasks().take(3, seed=1)
    write_tasks(tmp_path / "sums.parquet", tasks)
    assert list(from_parquet(tmp_path / "sums.parquet")) == tasks


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ([Task.from_row(ROW), 3], "row 2: expected a toolgym Task, got 3"),
        ([Task.from_row(question(image=b"x", index=1))], r"row 1 \(task ''\): image holds a bytes, b'x'"),
        ([Task.from_row(question(extra_info={"at": [{1: 2}]}))], r"extra_info.at\[0\] has the key 1, which is no text"),
        ([], "no tasks to write"),
        (ArithmeticTasks(), "source.take"),
        ("tasks", "expected tasks, got 'tasks'"),
    ],
)
@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.parquet"])
def test_what_cannot_be_written_is_said_and_leaves_what_was_there(tmp_path, name, tasks, said):
    path = tmp_path / name
    path.write_text("what was there")
    with pytest.raises(ConfigError, match=said):
        write_tasks(path, tasks)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(name, "what was there")]


@pytest.mark.parametrize("name", ["tasks.csv", "tasks", "nosuch/tasks.jsonl", "nosuch/tasks.parquet"])
def test_a_place_that_cannot_be_written_to_is_said(tmp_path, name):
    with pytest.raises(ConfigError, match=r"written to \.jsonl or \.parquet|cannot write"):
        write_tasks(tmp_path / name, [Task.from_row(ROW)])
