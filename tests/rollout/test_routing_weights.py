"""Routing weights on their way from a trajectory to a file and a batch, to the bit and beside their experts."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from toolgym.envs.types import StopReason
from toolgym.rollout import Trajectory, make_batch
from toolgym.rollout.batch.io import load_batch, save_batch
from toolgym.rollout.batch.packing import pack
from toolgym.rollout.batch.tree import pack_tree
from toolgym.rollout.trajectory import Segment, TokenSequence, TrajectoryWriter, read_trajectories

NAMES = ("routed_experts", "routing_weights")


def routed(*ids, seed=0):
    """A turn whose tokens chose 2 of 8 experts in each of 3 layers."""
    rng = np.random.default_rng(seed)
    experts = rng.integers(0, 8, (len(ids), 3, 2), np.int32)
    weights = rng.random((len(ids), 3, 2), np.float32)
    return Segment.policy(
        ids, [-0.5] * len(ids), ["1"] * len(ids), aligned=dict(zip(NAMES, (experts, weights), strict=True))
    )


ONE = Trajectory(
    id="one", env_id="e", task_id="t", source="", group_id="g", task_index=0, sample_index=0, messages=(), tools=(),
    sequences=(TokenSequence(np.array([5, 6]), (routed(7, 8), Segment.env([9]), routed(4, seed=1))),), reward=1.0,
    stop_reason=StopReason.ANSWERED,
)  # fmt: skip


def test_weights_keep_their_bits_and_their_experts(tmp_path):
    with TrajectoryWriter(tmp_path / "t.jsonl") as writer:
        writer.write(ONE)
    [back] = read_trajectories(tmp_path / "t.jsonl")
    for before, after in zip(ONE.sequences[0].policy_segments, back.sequences[0].policy_segments, strict=True):
        assert [after.aligned[name].dtype for name in NAMES] == [np.int32, np.float32]
        assert all(np.array_equal(after.aligned[name], before.aligned[name]) for name in NAMES)
        assert np.array_equal(after[1:2].aligned["routing_weights"], before.aligned["routing_weights"][1:2])
    save_batch(make_batch([back], pad_token_id=0), tmp_path / "b.safetensors")
    batch = load_batch(tmp_path / "b.safetensors")
    sampled = torch.tensor([True, True, False, True])
    assert batch.response_mask[0].bool().tolist() == sampled.tolist()
    for name in NAMES:
        given = np.concatenate([part.aligned[name] for part in ONE.sequences[0].policy_segments])
        assert torch.equal(batch.aligned[name][0][sampled], torch.from_numpy(given))
    assert not batch.aligned["routing_weights"][0][~sampled].any()
    packed = pack(batch)
    assert torch.equal(packed.aligned["routing_weights"][2:], batch.aligned["routing_weights"][0])


def test_a_tree_shares_no_tokens_of_other_weights():
    [sequence] = ONE.sequences
    first = sequence.segments[0]
    heavier = {**first.aligned, "routing_weights": first.aligned["routing_weights"] + np.float32(2**-20)}
    changed = (dataclasses.replace(first, aligned=heavier), *sequence.segments[1:])
    other = dataclasses.replace(
        ONE, id="other", sample_index=1, sequences=(dataclasses.replace(sequence, segments=changed),)
    )
    same = dataclasses.replace(ONE, id="same", sample_index=1)
    assert len(pack_tree(make_batch([ONE, same], pad_token_id=0)).input_ids) == 6
    assert len(pack_tree(make_batch([ONE, other], pad_token_id=0)).input_ids) > 6
