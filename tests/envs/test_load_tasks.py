"""Tasks from files of several formats, and from data sets."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from toolgym.envs.tasks.loading import load_tasks
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, MissingExtraError, UnknownNameError

VERL = {
    "data_source": "gsm8k",
    "prompt": [{"role": "system", "content": "Solve."}, {"role": "user", "content": "1+1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 7, "split": "train"},
}
PLAIN = [
    {"question": "6 * 7?", "answer": "42", "level": "1"},
    {"question": "1, 2?\nor 3?", "answer": "x", "level": "2"},
]
COLUMNS = {"prompt": "question", "ground_truth": "answer"}


def as_jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_json(rows):
    return json.dumps(rows, indent=2).encode()


def as_csv(rows, separator=","):
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows):
    import io

    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", as_jsonl([VERL])),
        ("a.jsonl", b"\xef\xbb\xbf" + as_jsonl([VERL])),
        ("a.json", as_json([VERL])),
        ("a.json", b"\xef\xbb\xbf\n" + as_json([VERL])),
        ("a.json", as_jsonl([VERL])),
        ("a.parquet", lambda: as_parquet([VERL])),
    ],
)
def test_rows_in_verls_shape(tmp_path, name, data):
    (tmp_path / name).write_bytes(data() if callable(data) else data)
    [task] = load_tasks(tmp_path / name).tasks
    assert [message["content"] for message in task.messages] == ["Solve.", "1+1?"]
    assert (task.ground_truth, task.source, task.id) == ("2", "gsm8k", "7")
    assert task.to_row() == VERL


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", as_jsonl(PLAIN)),
        ("a.json", as_json(PLAIN)),
        ("a.csv", as_csv(PLAIN)),
        ("a.csv", b"\xef\xbb\xbf" + as_csv(PLAIN)),
        ("a.tsv", as_csv(PLAIN, "\t")),
        ("a.parquet", lambda: as_parquet(PLAIN)),
    ],
)
def test_plain_rows_by_their_columns(tmp_path, name, data):
    (tmp_path / name).write_bytes(data() if callable(data) else data)
    first, second = load_tasks(str(tmp_path / name), columns=COLUMNS).tasks
    assert first.messages == ({"role": "user", "content": "6 * 7?"},)
    assert (first.ground_truth, first.extra_info["level"]) == ("42", "1")
    assert second.messages[0]["content"] == "1, 2?\nor 3?"
    assert first.id != second.id
    assert type(first).from_row(first.to_row(), id=first.id) == first


def test_ids_sources_and_conversations_by_columns():
    row = {"talk": VERL["prompt"], "key": 5, "origin": "ours"}
    [task] = load_tasks([row], columns={"prompt": "talk", "id": "key", "source": "origin"}).tasks
    assert (len(task.messages), task.id, task.source, task.ground_truth) == (2, "5", "ours", None)


def test_a_hugging_face_data_set():
    import datasets

    calls = {
        **VERL,
        "prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": []}],
    }
    data = datasets.Dataset.from_list([VERL, calls])  # Arrow gives the first row's messages `tool_calls` of None
    assert [len(task.messages) for task in load_tasks(data).tasks] == [2, 2]
    assert len(load_tasks(data.to_iterable_dataset()).tasks) == 2
    plain = datasets.Dataset.from_list(PLAIN)
    assert [task.ground_truth for task in load_tasks(plain, columns=COLUMNS).tasks] == ["42", "x"]
    with pytest.raises(ConfigError, match="choose one of its values, of 'train', 'test'"):
        load_tasks(datasets.DatasetDict(train=plain, test=plain))
    assert load_tasks(plain.to_pandas(), columns=COLUMNS).tasks == load_tasks(plain, columns=COLUMNS).tasks


FRAME_ROWS = [
    {
        "data_source": "a",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ["1", "one"]},
        "extra_info": {"index": 0, "tools_kwargs": {"look": {"create_kwargs": {"count": 1, "names": ["x", "y"]}}}},
    },
    {
        "data_source": "a",
        "prompt": [{"role": "user", "content": "2?"}],
        "ability": None,
        "reward_model": {"style": "rule", "ground_truth": ["2"]},
        "extra_info": {"index": 1, "tools_kwargs": None},
    },
    {
        "data_source": "b",
        "prompt": [{"role": "user", "content": "3?"}],
        "ability": None,
        "reward_model": {"style": "rule", "ground_truth": []},
        "extra_info": None,
    },
]


def of_pandas(table):
    return table.to_pandas().to_dict("records")


def of_polars(table):
    return pytest.importorskip("polars").from_arrow(table)


@pytest.mark.parametrize(
    "rows_of",
    [
        lambda table: table,
        lambda table: table.to_pandas(),
        of_pandas,
        of_polars,
        lambda table: [{name: table[name][at] for name in table.column_names} for at in range(table.num_rows)],
    ],
    ids=["pyarrow", "pandas", "records of pandas", "polars", "scalars of pyarrow"],
)
def test_rows_of_data_frames_are_the_tasks_of_the_file(rows_of, tmp_path):
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(FRAME_ROWS)
    pyarrow.parquet.write_table(table, tmp_path / "tasks.parquet")
    tasks, expected = load_tasks(rows_of(table)).tasks, load_tasks(tmp_path / "tasks.parquet").tasks
    assert tasks == expected
    assert [task.id for task in tasks] == ["0", "1", "3"]
    assert tasks[0].tools_kwargs == FRAME_ROWS[0]["extra_info"]["tools_kwargs"]
    assert type(tasks[0].tools_kwargs["look"]["create_kwargs"]["count"]) is int
    assert json.loads(json.dumps([task.to_row() for task in tasks]))  # no value of another library is left
    assert [Task.from_row(task.to_row(), id=task.id) for task in tasks] == tasks


def test_missing_values_of_a_frame_are_none():
    import pandas

    frame = pandas.DataFrame([{"question": "6 * 7?", "answer": 42, "level": 1}, {"question": "1 + 1?", "answer": 2}])
    tasks = load_tasks(frame, columns={"prompt": "question", "ground_truth": "answer"}).tasks
    assert [task.extra_info["level"] for task in tasks] == [1, None]
    assert [type(task.ground_truth) for task in tasks] == [int, int]


@pytest.mark.parametrize(
    ("name", "data", "columns", "said"),
    [
        ("a.jsonl", as_jsonl(PLAIN), None, r"line 1: .* columns are question, answer, level\. Say which"),
        ("a.json", as_json([VERL, PLAIN[0]]), None, "row 2: a task row needs 'prompt'"),
        ("a.json", as_json([VERL, 3]), None, "row 2: expected a JSON object, got 3"),
        ("a.json", b"[{", None, "expected a JSON list of rows"),
        ("a.csv", b"question,answer\na,b,c\n", COLUMNS, "line 2: expected 2 fields"),
        ("a.csv", b"question,answer\na\n", COLUMNS, "line 2: expected 2 fields"),
        ("a.csv", b"question,answer\n", COLUMNS, "holds no tasks"),
        ("a.csv", as_csv(PLAIN), {"prompt": "queston"}, "line 2: there is no column 'queston', did you mean"),
        ("a.csv", as_csv(PLAIN), {"promt": "question"}, "not of 'promt', did you mean 'prompt'"),
        ("a.csv", as_csv(PLAIN), {"ground_truth": "answer"}, "which one holds the prompt"),
        ("a.csv", as_csv(PLAIN), "question", "columns must map"),
        ("a.jsonl", b"\xff\xfe{", None, "neither text in UTF-8 nor Parquet"),
        ("a.parquet", lambda: as_parquet([VERL])[:-9], None, "cannot read the Parquet file"),
        ("a.parquet", lambda: as_parquet(PLAIN), None, "row 1: a task row needs 'prompt'"),
        ("a.jsonl", b"[" * 100_000, None, "expected a JSON list"),
        ("a.jsonl", as_jsonl([{"q": 3}]), {"prompt": "q"}, "line 1: .*list of messages; got 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(tmp_path, name, data, columns, said):
    (tmp_path / name).write_bytes(data() if callable(data) else data)
    with pytest.raises(ConfigError, match=said):
        load_tasks(tmp_path / name, columns=columns)


@pytest.mark.parametrize("source", [3, None, {"a": [VERL]}, [3]])
def test_what_is_no_source(source):
    with pytest.raises(ConfigError):
        load_tasks(source)


def test_a_missing_package_is_named_with_what_installs_it(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(as_parquet([VERL]))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError) as error:
        load_tasks(tmp_path / "a.parquet")
    command = str(error.value).partition("Install it with: ")[2]
    assert command == f"{sys.executable} -m pip install pyarrow"
    done = subprocess.run([*command.split(), "--dry-run", "--no-deps", "--no-index"], capture_output=True, check=False)
    assert done.returncode == 0  # it is installed already


def test_a_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "tasks.parquet").write_bytes(b"")
    with pytest.raises(UnknownNameError, match=r"did you mean 'tasks\.parquet'"):
        load_tasks(tmp_path / "task.parquet")
