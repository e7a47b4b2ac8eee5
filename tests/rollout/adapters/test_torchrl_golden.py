"""The golden set through the `TensorDict` of TorchRL's `GRPOLoss`."""

from __future__ import annotations

import pytest
import torch

from tests.rollout.adapters.golden import assert_golden, assert_grouped, whole_row
from toolgym.rollout import group_advantages, make_batch

pytest.importorskip("torchrl", reason="TorchRL is not installed")

from toolgym.rollout.adapters.torchrl import to_tensordict


def test_the_golden_set():
    """With rewards in place of advantages, so that each token must have its row's."""

    def read(trajectories):
        counts = [one is not None for one in group_advantages(trajectories)]
        batch = make_batch(trajectories, pad_token_id=99)
        made = to_tensordict(batch, batch.rewards)
        rows = [[] for _ in trajectories]
        for owner, one, reward in zip(batch.owners(trajectories), made, batch.rewards, strict=True):
            there, mask = (
                one["masks", "all_attention_mask"],
                one["masks", "all_assistant_mask"],
            )
            assert torch.equal(one["advantage"][:, 0], mask * reward)
            if counts[owner]:
                values = (one["tokens", "full"], mask.int(), one["log_probs", "full"])
                rows[owner].append(whole_row(*(value[there] for value in values), reward))
        return rows

    assert_golden(read)


def test_a_group_is_made_of_episodes():
    def read(trajectories):
        batch = make_batch(trajectories, pad_token_id=99)
        made = to_tensordict(batch, batch.per_row(trajectories, group_advantages(trajectories)))
        rows = [[] for _ in trajectories]
        for owner, one in zip(batch.owners(trajectories), made, strict=True):
            values = one["advantage"][:, 0][one["masks", "all_assistant_mask"]].tolist()
            assert len(set(values)) <= 1
            rows[owner] += values[:1]
        return rows

    assert_grouped(read, deviation=True)
