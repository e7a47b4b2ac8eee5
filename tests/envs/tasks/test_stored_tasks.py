"""Tasks that are read when they are drawn: places, seeds, epochs, threads, and what is said of a bad file or row."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pyarrow.parquet
import pytest

from toolgym.envs import ToolEnv, load_tasks
from toolgym.envs.tasks import row_files
from toolgym.envs.tasks.sources import from_generator
from toolgym.envs.tasks.stored import TaskSubset, from_hf, from_jsonl, from_parquet
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, MissingExtraError, UnknownNameError

PLAIN = {"prompt": "question", "ground_truth": "answer"}


def row(n):
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"{n}+0?"}],
        "reward_model": {"style": "rule", "ground_truth": str(n)},
        "extra_info": {"index": n},
    }


def lines(rows):
    return "".join(json.dumps(one) + "\n" for one in rows)


@pytest.fixture(params=["tasks.jsonl", "tasks.parquet"])
def stored(request, tmp_path):
    """Writes rows to a file; returns its path and what opens it."""

    def write(rows, name=request.param):
        path = tmp_path / name
        if path.suffix == ".jsonl":
            path.write_text(lines(rows))
            return path, from_jsonl
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=7)
        return path, from_parquet

    return write


def test_the_same_tasks_as_from_the_whole_file(stored):
    path, opened = stored(map(row, range(40)))
    source, whole = opened(path), load_tasks(path)
    assert source.size == len(source) == 40
    assert list(source) == list(whole) == whole.tasks
    assert source.task(33).to_row() == row(33)
    for seed, step in ((None, 0), (3, 0), (3, 5)):
        assert source.take(23, seed=seed, training_step=step) == whole.take(23, seed=seed, training_step=step)
    assert source.sample(random.Random(4)) == whole.sample(random.Random(4))
    for index in (40, -1):
        with pytest.raises(IndexError):
            source.task(index)


def test_each_epoch_has_each_task_once_and_another_order(stored):
    path, opened = stored(map(row, range(20)))
    drawn = [task.id for step in range(8) for task in opened(path).take(5, seed=1, training_step=step)]
    first, second = drawn[:20], drawn[20:]
    assert sorted(first, key=int) == sorted(second, key=int) == [str(n) for n in range(20)]
    assert first != second != sorted(second, key=int)
    assert opened(path).take(20, seed=2) != opened(path).take(20, seed=1)


def test_several_files_are_one_source(stored, tmp_path):
    one, opened = stored(map(row, range(5)))
    two = one.with_stem("more")
    one.rename(two)
    one, _ = stored(map(row, range(5, 8)))
    source = opened([two, one])
    assert [source.task(n).id for n in range(8)] == [task.id for task in source] == [str(n) for n in range(8)]
    with pytest.raises(ConfigError, match="expected the path of a file, or several, got 3"):
        opened(3)


def test_threads_share_a_source(stored):
    path, opened = stored(map(row, range(50)))
    source = opened(path)
    with ThreadPoolExecutor(8) as threads:
        assert [task.id for task in threads.map(source.task, [n % 50 for n in range(400)])] == [
            str(n % 50) for n in range(400)
        ]


def test_a_source_goes_to_another_process(stored):
    path, opened = stored(map(row, range(3)))
    source = opened(path)
    assert pickle.loads(pickle.dumps(source)).task(2) == source.task(2)


async def test_an_env_draws_from_it(stored):
    path, opened = stored(map(row, range(9)))
    async with ToolEnv([], opened(path)) as env:
        drawn = [(await env.reset(seed=seed))[1]["task"].id for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]


def test_lines_keep_their_numbers_beside_blank_ones_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "tasks.jsonl"
    bare = {"prompt": [{"role": "user", "content": "ü"}]}
    path.write_text("\ufeff" + lines([bare]) + "\n  \n" + json.dumps(bare), encoding="utf-8")
    source = from_jsonl(path)
    assert [task.id for task in source] == ["1", "4"] == [source.task(n).id for n in range(2)]
    assert [task.id for task in load_tasks(path)] == ["1", "4"]


def test_plain_rows_by_their_columns(stored):
    path, opened = stored([{"question": f"{n}?", "answer": str(n)} for n in range(3)])
    task = opened(path, columns=PLAIN).task(1)
    assert (task.messages, task.ground_truth, task.id) == (({"role": "user", "content": "1?"},), "1", "2")
    with pytest.raises(ConfigError, match=rf"{path.name}, (line|row) 2: .* columns are question, answer\. Say which"):
        opened(path).task(1)


BAD = [
    ({"x": 1}, "needs 'prompt'"),
    ({**row(1), "prompt": "text"}, "needs 'prompt', a list of messages"),
    ({**row(1), "prompt": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}, r"prompt\[1\]"),
    ({**row(1), "prompt": [{"role": "user"}]}, r"prompt\[0\]"),
    ({**row(1), "reward_model": "rule"}, "reward_model is a text that is no JSON"),
    ({**row(1), "extra_info": [1]}, "extra_info must be an object"),
    ({**row(1), "extra_info": {"tools_kwargs": [1]}}, r"extra_info\.tools_kwargs must be an object"),
    ({**row(1), "extra_info": {"tools_kwargs": {"a": 3}}}, r"extra_info\.tools_kwargs\['a'\] must be an object"),
    (
        {**row(1), "extra_info": {"tools_kwargs": {"a": {"create_kwargs": 3}}}},
        r"extra_info\.tools_kwargs\['a'\]\['create_kwargs'\] must be an object",
    ),
    ({"toolgym_task": "{"}, "column 'toolgym_task' must hold a task's row as JSON"),
    ({"toolgym_task": "3"}, "column 'toolgym_task' must hold a task's row as JSON, got '3'"),
]


@pytest.mark.parametrize(("bad", "said"), BAD)
def test_a_bad_row_is_named_with_its_file_and_its_field(stored, bad, said):
    path, opened = stored([bad])
    place = "line 1" if path.suffix == ".jsonl" else "row 1"
    for read in (lambda: opened(path).task(0), lambda: list(opened(path)), lambda: load_tasks(path)):
        with pytest.raises(ConfigError, match=said) as error:
            read()
        assert str(error.value).startswith(f"{path}, {place}: ")


def test_a_bad_row_is_no_error_before_it_is_drawn(stored):
    path, opened = stored([row(0), {**row(1), "prompt": []}])
    assert opened(path).task(0).id == "0"
    with pytest.raises(ConfigError, match=rf"{path.name}, (line|row) 2: a task row needs 'prompt'"):
        opened(path).task(1)


@pytest.mark.parametrize(
    ("name", "data", "opened", "said"),
    [
        ("a.jsonl", b"", from_jsonl, r"a\.jsonl' holds no tasks"),
        ("a.jsonl", b"\n \n", from_jsonl, "holds no tasks"),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), from_jsonl, "is compressed: unpack it first"),
        ("a.json", b"\xef\xbb\xbf [\n{}]", from_jsonl, "is a JSON list, not JSON Lines: read it with load_tasks"),
        ("a.parquet", b"PAR1", from_jsonl, "is a Parquet file: read it with from_parquet"),
        ("a.parquet", b"{}", from_parquet, "cannot read the Parquet file"),
        ("a.parquet", b"PAR1" + b"x" * 99, from_parquet, "cannot read the Parquet file"),
    ],
)
def test_a_file_of_another_format_is_said(tmp_path, name, data, opened, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        opened(tmp_path / name)


def test_a_line_that_is_no_json_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines([row(0)]).encode() + b"\xff{\n[1]\n")
    source = from_jsonl(path)
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 2: expected a JSON object, got"):
        source.task(1)
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 3: expected a JSON object, got \[1\]"):
        source.task(2)


def test_a_damaged_row_group_is_said(stored):
    path, _ = stored(map(row, range(20)), "tasks.parquet")
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    source = from_parquet(path)
    assert source.task(19).id == "19"
    for read in (lambda: source.task(0), lambda: list(source)):
        with pytest.raises(ConfigError, match="cannot read the Parquet file"):
            read()


def test_a_missing_file_names_the_nearest(stored):
    path, opened = stored([row(0)])
    with pytest.raises(UnknownNameError, match=f"did you mean '{path.name}'"):
        opened(path.with_stem("task"))


def test_a_file_that_changed_or_went_away_is_said_and_not_read_at_old_places(stored):
    path, opened = stored(map(row, range(20)))
    source = opened(path)
    stored(map(row, range(100, 121)))
    for read in (lambda: source.task(3), lambda: list(source)):
        with pytest.raises(ConfigError, match="has changed since it was opened"):
            read()
    path.unlink()
    with pytest.raises(UnknownNameError, match="does not exist|no such|not exist|task file"):
        source.task(3)


def test_no_more_row_groups_are_kept_than_the_cache_holds(stored, monkeypatch):
    path, _ = stored(map(row, range(70)), "tasks.parquet")
    decoded = []
    own = row_files.ParquetRows._decoded
    monkeypatch.setattr(row_files.ParquetRows, "_decoded", lambda self, n: decoded.append(n) or own(self, n))
    all_kept, one_kept = from_parquet(path), from_parquet(path, cache_bytes=0)
    for source in (all_kept, one_kept):
        assert [source.task(n).id for n in (0, 1, 10, 0, 69, 6)] == ["0", "1", "10", "0", "69", "6"]
        decoded.append("next")
    assert decoded == [0, 1, 9, "next", 0, 1, 0, 9, 0, "next"]


def test_a_file_of_one_large_row_group_is_warned_of(stored, caplog):
    path, _ = stored(map(row, range(5)), "tasks.parquet")
    from_parquet(path, cache_bytes=100)
    assert "write it again with write_tasks" in caplog.text


def test_parquet_without_pyarrow_names_what_to_install(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pip install pyarrow"):
        from_parquet(tmp_path / "a.parquet")


def test_a_data_set_of_datasets_is_not_read_whole():
    import datasets

    data = datasets.Dataset.from_list([row(n) for n in range(5)])
    assert from_hf(data).task(3).to_row() == row(3)
    for wrong, said in (
        (datasets.DatasetDict(train=data), "choose one of its values, of 'train'"),
        (data.to_iterable_dataset(), "load_tasks reads one that is streamed"),
        ("gsm8k", "expected a data set whose rows have places, got 'gsm8k'"),
        (data.select([]), "holds no tasks"),
    ):
        with pytest.raises(ConfigError, match=said):
            from_hf(wrong)


def test_a_subset_is_a_source(stored):
    path, opened = stored(map(row, range(9)))
    odd = TaskSubset(opened(path), range(1, 9, 2))
    assert (odd.size, [task.id for task in odd], odd.task(1).id) == (4, ["1", "3", "5", "7"], "3")
    with pytest.raises(IndexError):
        odd.task(4)
    with pytest.raises(ConfigError, match="must not be empty"):
        TaskSubset(opened(path), ())


# ---------------------------------------------------------------------- generators


def test_a_generator_gives_the_same_tasks_for_the_same_seed():
    source = from_generator(lambda rng: row(rng.randrange(10**6)))
    assert source.take(4, seed=3) == source.take(4, seed=3) != source.take(4, seed=3, training_step=1)
    assert source.size is None
    made = Task(({"role": "user", "content": "x"},))
    assert from_generator(lambda rng: made).task(0) is made


def test_what_a_generator_does_wrong_is_said_with_its_name():
    def broken(rng):
        return {"prompt": []}

    with pytest.raises(ConfigError, match="a row that broken gave: a task row needs 'prompt'"):
        from_generator(broken).task(0)
    with pytest.raises(ConfigError, match="must give a Task or a row in verl's shape, it gave 7"):
        from_generator(lambda rng: 7).task(0)
    with pytest.raises(ConfigError, match="expected a function"):
        from_generator([1])
