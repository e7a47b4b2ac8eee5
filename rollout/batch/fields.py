"""`FIELDS`: the table of a batch's tensors. Making, checking, saving and packing a batch go by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.batch.row import RowSource
from toolgym.rollout.trajectory.token_sequence import joined_payload

if TYPE_CHECKING:
    from toolgym.rollout.batch.batch import Batch

Place = Literal["prompt", "response", "policy", "tokens", "row"]
"""Place of a field's values: one for each token of the prompt, of the response, of the policy's tokens in the
response (a column of `response` as well), of prompt and response together; or one per row."""

SHAPES: Mapping[Place, str] = {
    "prompt": "[rows, prompt]",
    "response": "[rows, response]",
    "policy": "[rows, response]",
    "tokens": "[rows, prompt + response]",
    "row": "[rows]",
}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Values = Callable[[RowSource], NDArray[Any]]
"""A row's values of a field without padding, in one dimension."""

Invariants = Mapping[str, Callable[["Batch"], Tensor]]
"""Sentences that must hold of a field, each with a function that says where it does: bool `[rows]` or `[rows, ...]`."""


@dataclass(frozen=True)
class Field:
    """One tensor of a batch. Making, checking, saving, loading and the documentation of a batch go by this table.

    `padding` is its value elsewhere than `place` says, or None if it has values everywhere. `column` is its name in the
    rows of a data set (see `toolgym.rollout.batch.arrow`), or None if it follows from others.
    """

    name: str
    dtype: torch.dtype
    place: Place
    padding: int | Literal["pad_token_id"] | None
    doc: str
    values: Values
    invariants: Invariants = field(default_factory=dict)
    column: str | None = None

    def __str__(self) -> str:
        padding = "" if self.padding is None else f"; elsewhere {self.padding}"
        return f"{self.name}: {dtype_name(self.dtype)} `{SHAPES[self.place]}`, {self.doc}{padding}."


def _same_trajectory(batch: Batch) -> Tensor:
    return torch.cat([torch.tensor([False]), batch.trajectory_ids.diff() == 0])


def _prompt_attention(batch: Batch) -> Tensor:
    return batch.attention_mask[:, : batch.prompts.shape[1]]


def _response_attention(batch: Batch) -> Tensor:
    return batch.attention_mask[:, batch.prompts.shape[1] :]


def _finite(values: Tensor) -> Tensor:
    """As `torch.isfinite`, which takes twice as long."""
    return values.abs() < math.inf


def _known_versions(batch: Batch) -> Tensor:
    known = batch.response_mask == 0
    for number in batch.version_numbers.values():
        known |= batch.weight_versions == number
    return known


def _in_order(batch: Batch) -> Tensor:
    return torch.cat([batch.trajectory_ids[:1] >= 0, batch.trajectory_ids.diff() >= 0])


FIELDS: tuple[Field, ...] = (
    Field(
        "prompts",
        torch.int64,
        "prompt",
        "pad_token_id",
        "padded on the left",
        lambda row: row.sequence.prompt_ids,
        column="prompt_ids",
    ),
    Field(
        "responses",
        torch.int64,
        "response",
        "pad_token_id",
        "padded on the right",
        lambda row: row.response_ids,
        column="response_ids",
    ),
    Field(
        "attention_mask",
        torch.int64,
        "tokens",
        0,
        "1 on all tokens, the env's included",
        lambda row: np.ones(row.tokens, dtype=np.int64),
        {
            "attention_mask holds 0 and 1 only": lambda batch: (batch.attention_mask & ~1) == 0,
            "prompts are padded on the left only": lambda batch: _prompt_attention(batch).diff(dim=1) >= 0,
            "responses are padded on the right only": lambda batch: _response_attention(batch).diff(dim=1) <= 0,
            "every prompt has a token": lambda batch: _prompt_attention(batch).any(dim=1),
        },
    ),
    Field(
        "response_mask",
        torch.int64,
        "response",
        0,
        "1 on tokens that the policy sampled, 0 on the env's",
        lambda row: row.response_mask,
        {
            "response_mask holds 0 and 1 only": lambda batch: (batch.response_mask & ~1) == 0,
            "every response has a policy token": lambda batch: batch.response_mask.any(dim=1),
            "response_mask lies within the attention": lambda batch: batch.response_mask <= _response_attention(batch),
        },
        "response_mask",
    ),
    Field(
        "input_ids",
        torch.int64,
        "tokens",
        "pad_token_id",
        "prompts and responses side by side",
        lambda row: np.concatenate([row.sequence.prompt_ids, row.response_ids]),
        {
            "padding holds the pad token": lambda batch: (
                (batch.input_ids == batch.pad_token_id) | (batch.attention_mask == 1)
            ),
            "input_ids are prompts and responses": lambda batch: (
                batch.input_ids == torch.cat([batch.prompts, batch.responses], dim=1)
            ),
        },
    ),
    Field(
        "position_ids",
        torch.int64,
        "tokens",
        0,
        "counted over the attended tokens from 0",
        lambda row: np.arange(row.tokens),
        {
            "position_ids begin at 0 and count the attended tokens": lambda batch: (
                (batch.position_ids.diff(dim=1) == 1)
                | ((batch.attention_mask[:, 1:] & batch.attention_mask[:, :-1]) == 0)
            ),
            "position_ids are 0 on padding": lambda batch: (batch.position_ids == 0) | (batch.attention_mask == 1),
            "the first token has position 0": lambda batch: (
                (batch.position_ids * batch.attention_mask).amax(dim=1) == batch.attention_mask.sum(dim=1) - 1
            ),
        },
    ),
    Field(
        "rollout_log_probs",
        torch.float32,
        "policy",
        0,
        "the engine's natural-log probabilities of the policy's tokens under the temperature-scaled distribution",
        lambda row: row.logprobs,
        {
            "log probs are finite and at most 0": lambda batch: (
                _finite(batch.rollout_log_probs) & (batch.rollout_log_probs <= 1e-4)
            ),
            "log probs are 0 where the policy did not sample": lambda batch: (
                (batch.rollout_log_probs == 0) | (batch.response_mask == 1)
            ),
        },
        "logprobs",
    ),
    Field(
        "weight_versions",
        torch.int64,
        "policy",
        -1,
        "the number (see `version_numbers`) of the version of the weights that sampled each of the policy's tokens",
        lambda row: row.weight_versions,
        {
            "weight_versions are -1 where the policy did not sample": lambda batch: (
                (batch.weight_versions == -1) | (batch.response_mask == 1)
            ),
            "weight_versions are in version_numbers where the policy sampled": _known_versions,
        },
        "weight_versions",
    ),
    Field(
        "token_rewards",
        torch.float32,
        "response",
        0,
        "the trajectory's reward on the policy's tokens that have it (see `reward_placement`); over all rows of a "
        "trajectory they add up to it",
        lambda row: row.token_rewards,
        {
            "token_rewards are finite": lambda batch: _finite(batch.token_rewards),
            "token_rewards are 0 where the policy did not sample": lambda batch: (
                (batch.token_rewards == 0) | (batch.response_mask == 1)
            ),
        },
        "token_rewards",
    ),
    Field(
        "trajectory_ids",
        torch.int64,
        "row",
        None,
        "equal for the rows of one trajectory, which follow each other: `make_batch` numbers the trajectories from 0",
        lambda row: np.array([row.trajectory_number]),
        {"trajectory_ids do not fall from one row to the next": _in_order},
        "trajectory_number",
    ),
    Field(
        "rewards",
        torch.float32,
        "row",
        None,
        "the trajectory's, the same in each of its rows",
        lambda row: np.array([row.trajectory.reward]),
        {
            "rewards are finite": lambda batch: _finite(batch.rewards),
            "rows of one trajectory share its reward": lambda batch: (
                ~_same_trajectory(batch) | (batch.rewards == batch.rewards.roll(1))
            ),
        },
        "reward",
    ),
    Field(
        "group_ids",
        torch.int64,
        "row",
        None,
        "the place in `groups` of the trajectory's group: equal for trajectories that one run sampled from one "
        "task for one role",
        lambda row: np.array([row.group_number]),
        {
            "rows of one trajectory share its group": lambda batch: (
                ~_same_trajectory(batch) | (batch.group_ids == batch.group_ids.roll(1))
            ),
            "group_ids are places in groups": lambda batch: (
                (batch.group_ids >= 0) & (batch.group_ids < len(batch.groups))
            ),
        },
        "group_number",
    ),
)
"""The tensors of a batch, in the order that they are made and checked."""


def payload_padding(dtype: torch.dtype) -> int:
    """The value of a payload where the policy did not sample: -1 in integers that have a sign, else 0."""
    return -1 if dtype.is_signed and not dtype.is_floating_point else 0


def aligned_field(name: str, dtype: np.dtype[Any], width: int) -> Field:
    """The field of a payload of the policy's tokens; its tensor is `Batch.aligned[name]`, `[rows, response, ...]`.

    `width` is what the rows of a payload in `FILLERS` are filled up to; without effect on others.
    """
    kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    padding = payload_padding(kind)

    def elsewhere(batch: Batch) -> Tensor:
        values = batch.aligned[name]
        return (values == padding).reshape(*values.shape[:2], -1).all(dim=2) | (batch.response_mask == 1)

    return Field(
        f"aligned.{name}",
        kind,
        "policy",
        padding,
        "a payload of the policy's tokens",
        lambda row: joined_payload(name, row.sequence.policy_segments, width),
        {f"aligned.{name} holds its padding where the policy did not sample": elsewhere},
        f"aligned.{name}",
    )
