"""What the invariants in the table of fields look at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from toolgym.rollout.batch.batch import Batch


def same_trajectory(batch: Batch) -> Tensor:
    """bool `[rows]`: whether the row is of the same trajectory as the row before it."""
    return torch.cat([torch.tensor([False]), batch.trajectory_ids.diff() == 0])


def prompt_attention(batch: Batch) -> Tensor:
    """The columns of `attention_mask` that are the prompts'."""
    return batch.attention_mask[:, : batch.prompts.shape[1]]


def response_attention(batch: Batch) -> Tensor:
    """The columns of `attention_mask` that are the responses'."""
    return batch.attention_mask[:, batch.prompts.shape[1] :]


def finite(values: Tensor) -> Tensor:
    """As `torch.isfinite`, which takes twice as long."""
    return values.abs() < math.inf


def known_versions(batch: Batch) -> Tensor:
    """bool `[rows, response]`: whether a version has a number in `version_numbers`, where the policy sampled."""
    known = batch.response_mask == 0
    for number in batch.version_numbers.values():
        known |= batch.weight_versions == number
    return known


def in_order(batch: Batch) -> Tensor:
    """bool `[rows]`: whether the trajectory's number is at least that of the row before."""
    return torch.cat([batch.trajectory_ids[:1] >= 0, batch.trajectory_ids.diff() >= 0])
