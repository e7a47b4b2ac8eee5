"""Parquet, verl's lines and TRL's rows: loaded by the tools that they are for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.front.exports.conftest import DEMO
from toolgym.rollout.trajectory.summary import succeeded
from toolgym.viewer.run_index import RunIndex

parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra export")


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def table_file(export, tmp_path):
    path = tmp_path / "run.parquet"
    assert export(DEMO, "--to", "parquet", "--out", path)[0] == 0
    return path


def test_a_parquet_file_has_the_exact_tokens_and_one_type_a_column(table_file, demo):
    rows = parquet.read_table(table_file).to_pylist()
    assert len(rows) == len(demo)
    for row, trajectory in zip(rows, demo, strict=True):
        [sequence], whole = row["sequences"], trajectory.sequence
        assert sequence["prompt_ids"] == whole.prompt_ids.tolist()
        assert sequence["response_ids"] == whole.response_ids.tolist()
        assert sequence["response_mask"] == whole.response_mask.tolist()
        assert sequence["logprobs"] == whole.logprobs.tolist()
        assert sequence["weight_versions"] == whole.weight_versions
        assert (row["score"], row["success"]) == (trajectory.reward, succeeded(trajectory))
        assert json.loads(row["gts"]) == trajectory.ground_truth
        assert json.loads(row["metrics"]) == trajectory.metrics
        assert [turn["text"] for turn in row["turns"]] == [turn.text for turn in trajectory.turns]
        assert row["error"] == (trajectory.error and vars(trajectory.error))
    types = {field.name: str(field.type) for field in parquet.read_schema(table_file)}
    assert (types["score"], types["step"], types["validate"], types["gts"]) == ("double", "int64", "bool", "string")
    assert "response_mask: list<element: int8>" in types["sequences"]
    assert "response_ids: list<element: int32>" in types["sequences"]
    assert types["format_version"] == "int64"


def test_all_kinds_have_the_same_types_in_any_order(kinds, kinds_file, export, tmp_path):
    code, out, _ = export(kinds_file, "--to", "parquet", "--out", tmp_path / "kinds.parquet")
    assert code == 0
    assert "further keys of messages (1)" in out
    table = parquet.read_table(tmp_path / "kinds.parquet")
    assert table.num_rows == len(kinds)
    assert table["id"].to_pylist() == [trajectory.id for trajectory in kinds]
    demo = tmp_path / "demo.parquet"
    assert export(DEMO, "--to", "parquet", "--out", demo)[0] == 0
    assert parquet.read_schema(demo) == parquet.read_schema(tmp_path / "kinds.parquet")


def test_groups_of_rows_are_written_as_they_come(export, tmp_path, monkeypatch):
    from toolgym.exports import parquet as exporter

    monkeypatch.setattr(exporter, "ROWS", 10)
    assert export(DEMO, "--to", "parquet", "--out", tmp_path / "a.parquet")[0] == 0
    file = parquet.ParquetFile(tmp_path / "a.parquet")
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [10] * 4 + [5]


def test_pandas_and_datasets_load_the_file(table_file, demo, tmp_path):
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    frame = pandas.read_parquet(table_file)
    assert frame["score"].mean() == pytest.approx(np.mean([t.reward for t in demo]))
    assert list(frame["sequences"][0][0]["response_ids"]) == demo[0].response_ids.tolist()
    rows = datasets.Dataset.from_parquet(str(table_file), cache_dir=str(tmp_path / "cache"))
    assert rows[3]["sequences"][0]["response_mask"] == demo[3].response_mask.tolist()


def test_duckdb_and_polars_load_the_file(table_file, demo):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: see scripts/trainers/inspect.txt")
    polars = pytest.importorskip("polars", reason="polars is not installed: see scripts/trainers/inspect.txt")
    query = f"select count(*), avg(score), sum(len(sequences[1].response_ids)) from '{table_file}'"
    [(count, mean, tokens)] = duckdb.sql(query).fetchall()
    assert (count, mean) == (45, pytest.approx(np.mean([t.reward for t in demo])))
    assert tokens == sum(len(t.response_ids) for t in demo)
    assert polars.read_parquet(table_file)["policy_tokens"].to_list() == [t.policy_tokens for t in demo]


def test_the_files_of_a_run_load_as_they_are(demo, tmp_path):
    pandas, datasets, arrow = (pytest.importorskip(name) for name in ("pandas", "datasets", "pyarrow.json"))
    path = DEMO / "1.jsonl"
    wanted = [trajectory.reward for trajectory in demo if trajectory.training_step == 1]
    assert pandas.read_json(path, lines=True)["score"].tolist() == wanted
    assert arrow.read_json(path)["score"].to_pylist() == wanted
    rows = datasets.Dataset.from_json(str(path), cache_dir=str(tmp_path / "cache"))
    assert list(rows["score"]) == wanted


def test_verls_files_are_named_by_step_and_flat(export, demo, tmp_path):
    code, out, _ = export(DEMO, "--to", "verl", "--out", tmp_path / "dump")
    assert code == 0
    assert "verl cannot hold: ids, masks and log-probabilities (45)" in out
    assert {path.name for path in (tmp_path / "dump").iterdir()} == {"0.jsonl", "1.jsonl"}
    lines = [row for name in "01" for row in lines_of(tmp_path / "dump" / f"{name}.jsonl")]
    for line, trajectory in zip(lines, demo, strict=True):
        assert list(line)[:5] == ["input", "output", "gts", "score", "step"]
        assert (line["input"], line["output"]) == (trajectory.prompt_text, trajectory.response_text)
        assert (line["gts"], line["score"]) == (trajectory.ground_truth, trajectory.reward)
        assert line["request_id"] == trajectory.id
        assert all(isinstance(value, str | int | float | bool) for value in line.values())
    again = RunIndex(tmp_path / "dump").read_all()  # as our own viewer reads verl's dumps
    assert [row.reward for row in again.rows] == [trajectory.reward for trajectory in demo]
    assert export(tmp_path / "dump", "--to", "atif", "--out", tmp_path / "atif")[0] == 0
    assert len(list((tmp_path / "atif").iterdir())) == 45


def test_good_trajectories_become_conversations(export, demo, tmp_path):
    path = tmp_path / "sft.jsonl"
    code, out, _ = export(DEMO, "--to", "sft", "--out", path)
    good = [trajectory for trajectory in demo if trajectory.usable and succeeded(trajectory)]
    assert (code, f"{len(good)} rows of 45" in out, "no success" in out) == (0, True, True)
    rows = lines_of(path)
    assert [row["id"] for row in rows] == [trajectory.id for trajectory in good]
    assert rows[0]["messages"] == list(good[0].messages)
    assert json.loads(rows[0]["tools"]) == list(good[0].tools)
    assert export(DEMO, "--to", "sft", "--out", path, "--min-reward", "-1", "--overwrite")[0] == 0
    assert len(path.read_text().splitlines()) == sum(trajectory.usable for trajectory in demo)


def test_ids_train_what_the_policy_sampled_and_nothing_else(export, kinds, kinds_file, tmp_path):
    path = tmp_path / "sft.jsonl"
    assert export(kinds_file, "--to", "sft", "--ids", "--min-reward", "-9", "--out", path)[0] == 0
    rows = lines_of(path)
    wanted = [s for t in kinds if t.usable for s in t.sequences if s.policy_tokens]
    assert len(rows) == len(wanted) > len({row["id"] for row in rows})
    for row, sequence in zip(rows, wanted, strict=True):
        assert row["input_ids"] == [*sequence.prompt_ids, *sequence.response_ids]
        mask = [0] * len(sequence.prompt_ids) + sequence.response_mask.tolist()
        assert row["labels"] == [i if m else -100 for i, m in zip(row["input_ids"], mask, strict=True)]


def test_a_conversation_that_the_policy_did_not_see_is_left_out(export, kinds_file, tmp_path):
    code, out, _ = export(kinds_file, "--to", "sft", "--min-reward", "-9", "--out", tmp_path / "s.jsonl")
    assert code == 0
    assert "a context begins anew, so the policy did not see the conversation; take --ids (1)" in out
    assert '"anew"' not in (tmp_path / "s.jsonl").read_text()


@pytest.mark.long
def test_trl_takes_both_kinds_of_rows(export, demo, tmp_path):
    datasets, data = pytest.importorskip("datasets"), pytest.importorskip("trl.data_utils")
    transformers = pytest.importorskip("transformers")
    from toolgym.rollout.models.tiny import tiny_policy_path

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_policy_path())
    path, exact = tmp_path / "sft.jsonl", tmp_path / "ids.jsonl"
    assert export(DEMO, "--to", "sft", "--out", path)[0] == 0
    assert export(DEMO, "--to", "sft", "--ids", "--out", exact)[0] == 0
    rows = datasets.Dataset.from_json(str(path), cache_dir=str(tmp_path / "cache"))
    tokens = datasets.Dataset.from_json(str(exact), cache_dir=str(tmp_path / "cache"))
    assert data.is_conversational(rows[0])
    for row, ids in zip(rows, tokens, strict=True):  # as SFTTrainer renders them
        rendered = tokenizer.apply_chat_template(row["messages"], tools=json.loads(row["tools"]), tokenize=False)
        assert rendered.startswith(tokenizer.decode(ids["input_ids"])), row["id"]
