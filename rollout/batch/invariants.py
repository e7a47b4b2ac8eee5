"""Conditions that the invariants in the table of fields share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Tensors(Protocol):
    """The parts of a `Batch` that invariants look at: a protocol, since the module `batch` imports this one."""

    @property
    def prompts(self) -> Tensor: ...
    @property
    def responses(self) -> Tensor: ...
    @property
    def attention_mask(self) -> Tensor: ...
    @property
    def response_mask(self) -> Tensor: ...
    @property
    def input_ids(self) -> Tensor: ...
    @property
    def position_ids(self) -> Tensor: ...
    @property
    def rollout_log_probs(self) -> Tensor: ...
    @property
    def weight_versions(self) -> Tensor: ...
    @property
    def token_rewards(self) -> Tensor: ...
    @property
    def trajectory_ids(self) -> Tensor: ...
    @property
    def rewards(self) -> Tensor: ...
    @property
    def group_ids(self) -> Tensor: ...
    @property
    def pad_token_id(self) -> int: ...
    @property
    def groups(self) -> Sequence[str]: ...
    @property
    def version_numbers(self) -> Mapping[str, int]: ...
    @property
    def aligned(self) -> Mapping[str, Tensor]: ...


def same_trajectory(batch: Tensors) -> Tensor:
    """bool `[rows]`: whether the row is of the same trajectory as the row before it."""
    return torch.cat([torch.tensor([False]), batch.trajectory_ids.diff() == 0])


def prompt_attention(batch: Tensors) -> Tensor:
    """The columns of `attention_mask` that are the prompts'."""
    return batch.attention_mask[:, : batch.prompts.shape[1]]


def response_attention(batch: Tensors) -> Tensor:
    """The columns of `attention_mask` that are the responses'."""
    return batch.attention_mask[:, batch.prompts.shape[1] :]


def finite(values: Tensor) -> Tensor:
    """As `torch.isfinite`, which takes twice as long."""
    return values.abs() < math.inf


def known_versions(batch: Tensors) -> Tensor:
    """bool `[rows, response]`: whether a version has a number in `version_numbers`, where the policy sampled."""
    known = batch.response_mask == 0
    for number in batch.version_numbers.values():
        known |= batch.weight_versions == number
    return known


def in_order(batch: Tensors) -> Tensor:
    """bool `[rows]`: whether the trajectory's number is at least that of the row before."""
    return torch.cat([batch.trajectory_ids[:1] >= 0, batch.trajectory_ids.diff() >= 0])
