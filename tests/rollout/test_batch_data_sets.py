"""Batches as data sets: Parquet files read back equal, rows for `datasets`, and clear errors without the packages."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.trajectories import played
from toolgym.envs.types import StopReason
from toolgym.rollout.batch.arrow import TRAJECTORY_COLUMNS, from_parquet, to_dataset, to_parquet
from toolgym.rollout.batch.check import check_batch
from toolgym.rollout.batch.fields import FIELDS
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.trajectory.trajectory import Failure
from toolgym.tools.errors import BatchError, ConfigError, MissingExtraError, UnknownNameError

DTYPES = (np.int16, np.uint8, np.float32, np.float16, np.bool_)


def with_payloads(one):
    """The trajectory with payloads of each kind of number, with one value a token and with several."""

    def filled(segment):
        if not segment.is_policy:
            return segment
        values = np.arange(len(segment) * 6).reshape(len(segment), 3, 2)
        arrays = {f"wide_{dtype.__name__}": values.astype(dtype) for dtype in DTYPES}
        return dataclasses.replace(segment, aligned={**arrays, "entropy": values[:, 0, 0].astype(np.float64)})

    sequences = [
        dataclasses.replace(sequence, segments=tuple(map(filled, sequence.segments))) for sequence in one.sequences
    ]
    return dataclasses.replace(one, sequences=tuple(sequences))


SEVERAL = with_payloads(played([[(2, 0.5)], [(1, 1.0), (3, None)]], name="several", group="g"))
SINGLE = dataclasses.replace(
    with_payloads(played([[(3, -1.0)]], name="single", group="h")),
    source="sums", ground_truth={"answer": "4"}, messages=({"role": "user", "content": "2 + 2 = é?"},),
    stop_reason=StopReason.MAX_TURNS, metrics={"seen": np.int64(3)},
)  # fmt: skip
FAILED = dataclasses.replace(SINGLE, id="failed", stop_reason=StopReason.ENGINE_FAILED, error=Failure("died", 0))
ALL = [SEVERAL, FAILED, SINGLE]


def assert_equal(one, other):
    assert one.tensors().keys() == other.tensors().keys()
    for name, value in one.tensors().items():
        assert value.dtype == other.tensors()[name].dtype, name
        assert torch.equal(value, other.tensors()[name]), name
    for name in ("ids", "groups", "dropped", "pad_token_id", "version_numbers", "reward_placement"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize("placement", ["turns", "outcome"])
def test_a_parquet_file_reads_back_equal(tmp_path, placement):
    batch = make_batch(
        ALL, pad_token_id=7, max_prompt_length=5, max_response_length=9, reward_placement=placement
    )  # wider than any row
    path = tmp_path / "deep" / "batch.parquet"
    to_parquet(batch, path)
    back = from_parquet(path)
    assert_equal(back, batch)
    check_batch(back, [SEVERAL, SINGLE])
    to_parquet(batch, path, ALL)  # columns that tell of trajectories change nothing
    assert_equal(from_parquet(path), batch)


@given(st.lists(st.lists(st.tuples(st.integers(1, 4), st.floats(-1, 1, width=32)), min_size=1), min_size=1, max_size=6))
def test_any_batch_reads_back_equal(tmp_path_factory, given_turns):
    path = tmp_path_factory.mktemp("parquet") / "batch.parquet"
    batch = make_batch([played([turns], name=str(n)) for n, turns in enumerate(given_turns)], pad_token_id=0)
    to_parquet(batch, path)
    assert_equal(from_parquet(path), batch)


def test_the_rows_of_a_data_set():
    batch = make_batch(ALL, pad_token_id=7)
    rows = to_dataset(batch, ALL)
    assert rows.column_names == [
        "id", "group_id", *(item.column for item in FIELDS if item.column),
        *(f"aligned.{name}" for name in batch.aligned), *TRAJECTORY_COLUMNS,
    ]  # fmt: skip
    assert rows["id"][:] == ["several/0", "several/1", "single"]
    assert rows["group_id"][:] == ["g", "g", "h"]
    row = rows[1]
    sequence = SEVERAL.sequences[1]
    assert row["prompt_ids"] == sequence.prompt_ids.tolist()
    assert row["response_ids"] == sequence.response_ids.tolist()
    assert row["response_mask"] == sequence.response_mask.tolist() == [1, 0, 1, 1, 1, 0]
    assert row["logprobs"] == sequence.logprobs.tolist()
    assert row["weight_versions"] == [0, -1, 0, 0, 0, -1]
    assert row["token_rewards"] == [1, 0, 0, 0, 0, 0]
    assert row["reward"] == 1.5
    assert row["aligned.entropy"] == [0, 0, 0, 6, 12, 0]
    assert row["aligned.wide_int16"][:2] == [[[0, 1], [2, 3], [4, 5]], [[-1, -1]] * 3]
    last = rows[2]
    assert (last["source"], last["stop_reason"], last["role"]) == ("sums", "max_turns", "policy")
    assert json.loads(last["ground_truth"]) == {"answer": "4"}
    assert json.loads(last["messages"]) == list(SINGLE.messages)
    assert json.loads(last["metrics"]) == {"seen": 3}
    assert "source" not in to_dataset(batch).column_names
    with pytest.raises(BatchError, match="row 2, 'single', is of a trajectory that is not among"):
        to_dataset(batch, [SEVERAL])


def test_a_payload_without_values_is_refused(tmp_path):
    one = played([[(1, 1.0)]])
    policy, env = one.sequences[0].segments
    segments = (dataclasses.replace(policy, aligned={"nothing": np.zeros((1, 0), dtype=np.int16)}), env)
    one = dataclasses.replace(one, sequences=(dataclasses.replace(one.sequences[0], segments=segments),))
    with pytest.raises(ConfigError, match=r"aligned\.nothing has no values, \[1, 2, 0\]"):
        to_parquet(make_batch([one], pad_token_id=0), tmp_path / "batch.parquet")


def test_other_files_are_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    batch, path = make_batch([SINGLE], pad_token_id=0), tmp_path / "batch.parquet"
    path.write_bytes(b"nonsense")
    with pytest.raises(UnknownNameError, match=r"did you mean 'batch\.parquet'"):
        from_parquet(tmp_path / "bach.parquet")
    with pytest.raises(ConfigError, match="is not a batch"):
        from_parquet(path)
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(ConfigError, match="is not a batch"):
        from_parquet(path)
    to_parquet(batch, path)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.drop_columns(["logprobs"]), path)
    with pytest.raises(ConfigError, match=r"is not a batch of toolgym: KeyError: .*logprobs"):
        from_parquet(path)
    with pytest.raises(ConfigError, match="cannot write"):
        to_parquet(batch, "/proc/nowhere/batch.parquet")


@pytest.mark.parametrize(("package", "call"), [("pyarrow", to_parquet), ("datasets", to_dataset)])
def test_a_missing_package_is_named(monkeypatch, tmp_path, package, call):
    monkeypatch.setitem(sys.modules, package, None)
    arguments = (tmp_path / "batch.parquet",) if call is to_parquet else ()
    with pytest.raises(MissingExtraError, match=f"needs the package '{package}' .* -m pip install {package}"):
        call(make_batch([SINGLE], pad_token_id=0), *arguments)
