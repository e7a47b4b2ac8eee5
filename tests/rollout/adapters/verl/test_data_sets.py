"""Files of tasks through verl's own data set and its collate function, to the rows that its agent loop gets."""

from __future__ import annotations

import json

import pytest

from tests.envs.tasks.test_write_tasks import ALIKE, DIFFERENT
from toolgym.envs import Task, write_tasks
from toolgym.envs.tasks.prepare.recipes import Preparation
from toolgym.rollout.adapters.task_rows import task_of_row

pytest.importorskip("verl")


@pytest.fixture
def verl_rows(tokenizer, tmp_path, monkeypatch):
    """The rows of a file as verl's batches hold them: `verl_rows(path) -> list of rows`."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def read(path):
        from omegaconf import OmegaConf
        from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

        config = {"cache_dir": str(tmp_path / "verl"), "max_prompt_length": 4096, "filter_overlong_prompts_workers": 1}
        data = RLHFDataset(str(path), tokenizer, OmegaConf.create(config))
        batch = collate_fn([data[place] for place in range(len(data))])
        del batch["dummy_tensor"]
        return [{name: values[place] for name, values in batch.items()} for place in range(len(data))]

    return read


@pytest.mark.parametrize("given", [ALIKE, *DIFFERENT.values()], ids=["alike", *DIFFERENT])
def test_each_task_arrives_as_it_was_written(tmp_path, verl_rows, given):
    tasks = [Task.from_row(row, id="0") for row in given]  # verl's index of a row that has none
    write_tasks(tmp_path / "tasks.parquet", tasks)
    assert [task_of_row(row) for row in verl_rows(tmp_path / "tasks.parquet")] == tasks


def test_verl_reads_all_of_its_fields_in_rows_that_are_alike(tmp_path, verl_rows):
    write_tasks(tmp_path / "tasks.parquet", map(Task.from_row, ALIKE))
    for row, given in zip(verl_rows(tmp_path / "tasks.parquet"), ALIKE, strict=True):
        assert row["raw_prompt"] == given["prompt"]
        assert row["tools_kwargs"] == given["extra_info"]["tools_kwargs"]
        assert row["interaction_kwargs"] == given["extra_info"]["interaction_kwargs"]
        assert (row["agent_name"], row["index"]) == ("toolgym_agent", 3)
        assert row["reward_model"] == given["reward_model"]


def test_json_lines_too(tmp_path, verl_rows):
    write_tasks(tmp_path / "tasks.jsonl", map(Task.from_row, ALIKE))
    assert [task_of_row(row) for row in verl_rows(tmp_path / "tasks.jsonl")] == [Task.from_row(row) for row in ALIKE]


def test_a_prepared_data_set_is_scored_by_verl_s_own_function(tmp_path, verl_rows):
    from verl.utils.reward_score import default_compute_score

    source = tmp_path / "gsm8k.jsonl"
    source.write_text(json.dumps({"question": "3*4?", "answer": "#### 12"}) + "\n")
    write_tasks(tmp_path / "tasks.parquet", Preparation("gsm8k", source, agent_name="toolgym_agent"))
    [row] = verl_rows(tmp_path / "tasks.parquet")
    truth = row["reward_model"]["ground_truth"]
    assert default_compute_score(row["data_source"], "So it is\n#### 12", truth) == 1.0
    assert default_compute_score(row["data_source"], "So it is\n#### 13", truth) == 0.0
    assert task_of_row(row).tools_kwargs == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "12"}}}
