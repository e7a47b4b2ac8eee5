"""`FIELDS`: the table of a batch's tensors. Making, checking, saving and packing a batch go by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from toolgym.rollout.batch.row import RowSource
from toolgym.rollout.trajectory.token_sequence import joined_payload

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


@dataclass(frozen=True)
class Field:
    """One tensor of a batch. Making, checking, saving, loading and the documentation of a batch go by this table.
    `padding` is its value elsewhere than `place` says, or None if it has values everywhere. `column` is its name in
    the rows of a data set (see `toolgym.rollout.batch.arrow`), or None if it follows from others."""

    name: str
    dtype: torch.dtype
    place: Place
    padding: int | Literal["pad_token_id"] | None
    doc: str
    values: Values
    column: str | None = None

    def __str__(self) -> str:
        padding = "" if self.padding is None else f"; elsewhere {self.padding}"
        return f"{self.name}: {dtype_name(self.dtype)} `{SHAPES[self.place]}`, {self.doc}{padding}."


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
    ),
    Field(
        "response_mask",
        torch.int64,
        "response",
        0,
        "1 on tokens that the policy sampled, 0 on the env's",
        lambda row: row.response_mask,
        column="response_mask",
    ),
    Field(
        "input_ids",
        torch.int64,
        "tokens",
        "pad_token_id",
        "prompts and responses side by side",
        lambda row: row.token_ids,
    ),
    Field(
        "position_ids",
        torch.int64,
        "tokens",
        0,
        "counted over the attended tokens from 0",
        lambda row: np.arange(row.tokens),
    ),
    Field(
        "rollout_log_probs",
        torch.float32,
        "policy",
        0,
        "the engine's natural-log probabilities of the policy's tokens under the temperature-scaled distribution",
        lambda row: row.logprobs,
        column="logprobs",
    ),
    Field(
        "temperatures",
        torch.float32,
        "policy",
        1,
        "the temperature that `rollout_log_probs` are scaled by, 1 for greedy tokens, which engines do not scale: a "
        "loss divides the logits by it",
        lambda row: row.sampling.scales,
        column="temperatures",
    ),
    Field(
        "weight_versions",
        torch.int64,
        "policy",
        -1,
        "the number (see `version_numbers`) of the version of the weights that sampled each of the policy's tokens",
        lambda row: row.weight_versions,
        column="weight_versions",
    ),
    Field(
        "token_rewards",
        torch.float32,
        "response",
        0,
        "the trajectory's reward on the policy's tokens that have it (see `reward_placement`); over all rows of a "
        "trajectory they add up to it",
        lambda row: row.token_rewards,
        column="token_rewards",
    ),
    Field(
        "trajectory_ids",
        torch.int64,
        "row",
        None,
        "equal for the rows of one trajectory, which follow each other: `make_batch` numbers the trajectories from 0",
        lambda row: np.array([row.trajectory_number]),
        column="trajectory_number",
    ),
    Field(
        "rewards",
        torch.float32,
        "row",
        None,
        "the trajectory's, the same in each of its rows",
        lambda row: np.array([row.trajectory.reward]),
        column="reward",
    ),
    Field(
        "group_ids",
        torch.int64,
        "row",
        None,
        "the place in `groups` of the trajectory's group: equal for trajectories that one run sampled from one "
        "task for one role",
        lambda row: np.array([row.group_number]),
        column="group_number",
    ),
)
"""The tensors of a batch, in the order that they are made and checked."""


def payload_padding(dtype: torch.dtype) -> int:
    """The value of a payload where the policy did not sample: -1 in integers that have a sign, else 0."""
    return -1 if dtype.is_signed and not dtype.is_floating_point else 0


def aligned_field(name: str, dtype: np.dtype[Any], width: int) -> Field:
    """The field of a payload of the policy's tokens; its tensor is `Batch.aligned[name]`, `[rows, response, ...]`.
    `width` is what the rows of a payload in `FILLERS` are filled up to; without effect on others."""
    kind = torch.from_numpy(np.empty(0, dtype=dtype)).dtype
    padding = payload_padding(kind)
    return Field(
        f"aligned.{name}",
        kind,
        "policy",
        padding,
        "a payload of the policy's tokens",
        lambda row: joined_payload(name, row.sequence.policy_segments, width),
        column=f"aligned.{name}",
    )
