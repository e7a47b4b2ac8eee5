"""`to_data_proto` against verl's own postprocess."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rollout.adapters.golden import assert_golden, golden, policy, response_row, trajectory
from tests.rollout.adapters.verl.fakes import ROW
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.tools.errors import ConfigError

pytest.importorskip("verl")

import torch

from toolgym.rollout.adapters.verl import to_data_proto
from toolgym.rollout.adapters.verl.agent_loop import to_output
from toolgym.rollout.adapters.verl.rows import rows_of

SHAPE = {"prompt_length": 8, "response_length": 12}


async def by_verl(worker, trajectories, pad, logprobs=True):
    """The batch that verl's own worker makes of the same rows."""
    padded = []
    for one in trajectories:
        [row] = rows_of(one, **SHAPE, pad_token_id=pad)
        output = to_output(row, logprobs=logprobs)
        padded.append(await worker._agent_loop_postprocess(output, False, raw_prompt=ROW["raw_prompt"]))
    return worker._postprocess(padded)


@pytest.mark.parametrize("logprobs", [True, False])
async def test_every_tensor_is_verl_s_to_the_bit(worker, tokenizer, logprobs):
    made = worker(None, "data.max_prompt_length=8", "data.max_response_length=12")
    pad = tokenizer.pad_token_id
    theirs = await by_verl(made, golden(), pad, logprobs)
    ours = to_data_proto(golden(), **SHAPE, pad_token_id=pad, logprobs=logprobs)
    assert set(ours.batch.keys()) == set(theirs.batch.keys())
    assert ("rollout_log_probs" in ours.batch) == logprobs
    for name, tensor in theirs.batch.items():
        assert (ours.batch[name].dtype, ours.batch[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(ours.batch[name], tensor), name


def test_the_golden_set(tokenizer):
    def read(trajectories):
        batch = to_data_proto(trajectories, **SHAPE, pad_token_id=tokenizer.pad_token_id)
        rows = []
        for index in range(len(batch)):
            one = {name: tensor[index] for name, tensor in batch.batch.items()}
            prompt, response = one["attention_mask"].bool().split(list(SHAPE.values()))
            per_token = [one[name][response] for name in ("responses", "response_mask", "rollout_log_probs")]
            rows.append([response_row(one["prompts"][prompt], *per_token, one["rm_scores"].sum())])
        return rows

    assert_golden(read, several_rows=False)


async def test_the_other_fields_are_verl_s(worker, tokenizer):
    made = worker(None, "data.max_prompt_length=8", "data.max_response_length=12")
    theirs = await by_verl(made, golden(), tokenizer.pad_token_id)
    ours = to_data_proto(golden(), **SHAPE, pad_token_id=tokenizer.pad_token_id)
    assert set(theirs.non_tensor_batch) - set(ours.non_tensor_batch) == {"raw_prompt"}  # the data set's column
    assert set(ours.non_tensor_batch) - set(theirs.non_tensor_batch) == {"uid"}  # the trainer's column
    for name in set(theirs.non_tensor_batch) & set(ours.non_tensor_batch):
        mine, other = ours.non_tensor_batch[name], theirs.non_tensor_batch[name]
        assert mine.dtype == other.dtype, name
        assert mine.tolist() == other.tolist(), name
    assert ours.meta_info["reward_extra_keys"] == theirs.meta_info["reward_extra_keys"]
    assert ours.meta_info["metrics"][0].keys() == theirs.meta_info["metrics"][0].keys()


def test_the_batch_goes_through_verl_s_own_handling(tokenizer):
    from verl import DataProto

    batch = to_data_proto(golden(), **SHAPE, pad_token_id=tokenizer.pad_token_id)
    again = DataProto.concat(batch.chunk(4))
    assert all(torch.equal(again.batch[name], batch.batch[name]) for name in batch.batch.keys())  # noqa: SIM118
    assert again.non_tensor_batch["uid"].tolist() == [one.group_id for one in golden()]
    assert len(batch.select_idxs(np.array([1, 3]))) == 2


def test_what_a_row_of_verl_s_cannot_hold_is_refused():
    sequences = tuple(TokenSequence(np.array([5]), (policy(1),), why) for why in ("start", "template"))
    with pytest.raises(ConfigError, match=r"t0 \(task '0'\) has 2 token sequences"):
        to_data_proto([trajectory(policy(1), sequences=sequences)], **SHAPE, pad_token_id=0)
    with pytest.raises(ConfigError, match="got none"):
        to_data_proto([], **SHAPE, pad_token_id=0)
    with pytest.raises(ConfigError, match="prompt_length"):
        to_data_proto(golden(), prompt_length=0, response_length=12, pad_token_id=0)


def test_failed_episodes_stay_out_of_a_mean_of_verl_s_validation():
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    given = golden()[:8]  # the third group's two failed
    info = to_data_proto(given, prompt_length=8, response_length=12, pad_token_id=0).non_tensor_batch
    infos = {name: info[name].tolist() for name in ("acc", "acc_counted")}
    means = process_validation_metrics(["sums"] * 8, info["uid"].tolist(), infos)["sums"]
    counted = [one.reward for one in given if one.in_group_statistics]
    assert len(counted) < len(given)
    assert means["acc"]["mean@2"] < means["acc_counted"]["mean@2"]
    assert means["acc_counted"]["mean@2"] == pytest.approx(sum(counted) / len(counted))
