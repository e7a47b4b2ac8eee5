"""The golden set through our own batch: padded, packed, as a tree, and as a Parquet file.

The tests of each adapter take it through the trainer's objects.
"""

from __future__ import annotations

import dataclasses

import pyarrow.parquet
import pytest

from tests.rollout.adapters.golden import CASES, Row, assert_golden, env, policy, response_row, trajectory, whole_row
from toolgym.rollout import group_advantages, make_batch
from toolgym.rollout.batch import from_parquet, pack, pack_tree, to_parquet

PAD = 99


def by_trajectory(trajectories, batch, rows):
    """The batch's rows under their trajectories; those of one that does not count weigh nothing in a loss."""
    found = [[] for _ in trajectories]
    counts = [advantage is not None for advantage in group_advantages(trajectories)]
    for owner, row in zip(batch.owners(trajectories), rows, strict=True):
        found[owner] += [row] if counts[owner] else []
    return found


def ids_kept(masks):
    return [[one for one in mask if one >= 0] for mask in masks.tolist()]


def padded_rows(batch):
    width = batch.prompts.shape[1]
    for index in range(len(batch)):
        prompt, response = (part.bool() for part in batch.attention_mask[index].tensor_split([width]))
        yield response_row(
            batch.prompts[index][prompt],
            batch.responses[index][response],
            batch.response_mask[index][response],
            batch.rollout_log_probs[index][response],
            batch.rewards[index],
            versions=batch.weight_versions[index][response],
            earned=batch.token_rewards[index][response],
            kept=ids_kept(batch.aligned["sampling_mask"][index][response]),
            entropy=batch.aligned["entropy"][index][response],
        )


def packed_rows(batch, packed, ids):
    for index, reward in enumerate(batch.rewards):
        here = packed.row_ids == index
        yield whole_row(
            ids[here],
            packed.response_mask[here],
            packed.rollout_log_probs[here],
            reward,
            versions=packed.weight_versions[here],
            earned=packed.token_rewards[here],
            kept=ids_kept(packed.aligned["sampling_mask"][here]),
            entropy=packed.aligned["entropy"][here],
        )


def parquet_rows(batch, folder):
    to_parquet(batch, folder / "batch.parquet")
    for row in pyarrow.parquet.read_table(folder / "batch.parquet").to_pylist():
        names = ("prompt_ids", "response_ids", "response_mask", "logprobs", "reward")
        yield response_row(
            *(row[name] for name in names),
            versions=row["weight_versions"],
            earned=row["token_rewards"],
            kept=[[one for one in mask if one >= 0] for mask in row["aligned.sampling_mask"]],
            entropy=row["aligned.entropy"],
        )


def tree_rows(batch):
    tree = pack_tree(batch)
    assert len(tree) < len(tree.packed)  # the branches' beginning stands once
    return packed_rows(batch, tree.packed, tree.input_ids[tree.nodes])


FORMS = {
    "padded": lambda batch, folder: padded_rows(batch),
    "packed": lambda batch, folder: packed_rows(batch, pack(batch), pack(batch).input_ids),
    "tree": lambda batch, folder: tree_rows(batch),
    "parquet": parquet_rows,
    "parquet, read back": lambda batch, folder: [
        *parquet_rows(batch, folder), *padded_rows(from_parquet(folder / "batch.parquet"))
    ][len(batch) :],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_golden_set(form, tmp_path):
    def read(trajectories):
        batch = make_batch(trajectories, pad_token_id=PAD)
        return by_trajectory(trajectories, batch, FORMS[form](batch, tmp_path))

    assert_golden(read)


def test_all_numbers_of_the_set_are_there():
    for case in CASES:
        for row in case.rows:
            assert {len(value) for value in row if isinstance(value, list)} == {len(row.tokens)}
            assert sum(row.earned) == row.reward or len(case.rows) > 1


@pytest.mark.parametrize("name", [name for name in Row._fields if name != "reward"])
def test_what_a_trainer_shifts_by_a_token_is_found(name):
    def read(trajectories):
        rows = {case.trajectory.id: case.rows for case in CASES}
        return [[shifted(row) for row in rows[one.id]] for one in trajectories]

    def shifted(row):
        values = getattr(row, name)
        return row._replace(**{name: [*values[1:], values[0]]})

    with pytest.raises(AssertionError, match=f"{name} of 'several turns'"):
        assert_golden(read)


def test_what_a_trainer_trains_on_beyond_the_set_is_found():
    one = dataclasses.replace(trajectory(policy(1), env(2)), id="other")
    batch = make_batch([one], pad_token_id=PAD)
    with pytest.raises(AssertionError, match="several turns"):
        assert_golden(lambda trajectories: [[] for _ in trajectories])
    cut = [[row._replace(tokens=row.tokens[:-1]) for row in case.rows] for case in CASES]
    with pytest.raises(AssertionError, match="length of 'several turns'"):
        assert_golden(lambda trajectories: cut)
    with pytest.raises(AssertionError, match="nothing sampled"):
        assert_golden(lambda given: [case.rows or [*padded_rows(batch)] for case in CASES])
