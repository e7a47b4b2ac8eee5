"""`Batch`: trajectories as masked token tensors, and `FIELDS`, the table of them.

Layout (as verl's, TRL's and OpenRLHF's padded batches have it): the prompt is padded on the left, the response on
the right, so that all responses begin in the same column.

    prompts         [rows, prompt]                  pad pad p1 p2 p3
    responses       [rows, response]                                 r1 r2 t1 t2 r3 pad
    response_mask   [rows, response]                                  1  1  0  0  1   0     1 = sampled by the policy
    input_ids       [rows, prompt + response]       pad pad p1 p2 p3 r1 r2 t1 t2 r3 pad
    attention_mask  [rows, prompt + response]         0   0  1  1  1  1  1  1  1  1   0
    position_ids    [rows, prompt + response]         0   0  0  1  2  3  4  5  6  7   0

A row is one token sequence. Most trajectories are one sequence; one whose context was rewritten on the way
(`history="template"`, a context policy) is several, and each becomes a row of its own with the trajectory's reward
and group. What an earlier sequence sampled is prompt in a later one, so no token is trained twice. `trajectory_ids`
tells which rows belong together: statistics over trajectories, such as a group's mean reward, must count each
trajectory once, and its advantage goes to all of its rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.token_sequence import TokenSequence, joined_payload
from toolgym.rollout.trajectory import Trajectory
from toolgym.tools.html_view import html_table

Place = Literal["prompt", "response", "policy", "tokens", "row"]
"""Where a field has values: one for each token of the prompt, of the response, of the policy's tokens in the response
(a column of `response` as well), of prompt and response together; or one per row."""

SHAPES: Mapping[Place, str] = {
    "prompt": "[rows, prompt]",
    "response": "[rows, response]",
    "policy": "[rows, response]",
    "tokens": "[rows, prompt + response]",
    "row": "[rows]",
}


@dataclass(frozen=True)
class Row:
    """What one row of a batch is made from, and is compared with.

    Attributes:
        trajectory: the trajectory.
        sequence: the one of its sequences that is the row.
        id: the row's id.
        trajectory_number: number of the trajectory in the batch.
        group_number: number of the group in the batch.
        version_numbers: see `Batch`.
    """

    trajectory: Trajectory
    sequence: TokenSequence
    id: str
    trajectory_number: int
    group_number: int
    version_numbers: Mapping[str, int]

    @functools.cached_property
    def response_ids(self) -> NDArray[np.int32]:
        """As the sequence's, put together once for all fields."""
        return self.sequence.response_ids

    @functools.cached_property
    def response_mask(self) -> NDArray[np.int8]:
        """Likewise."""
        return self.sequence.response_mask


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


Values = Callable[[Row], NDArray[Any]]
"""A row's values of a field without padding, in one dimension."""

Invariants = Mapping[str, Callable[["Batch"], Tensor]]
"""What must hold of a field, as a sentence, with a function that says where it does: bool `[rows]` or `[rows, ...]`."""


@dataclass(frozen=True)
class Field:
    """One tensor of a batch. Making, checking, saving, loading and the documentation of a batch go by this table.

    Attributes:
        name: the attribute of `Batch`.
        dtype: of the tensor.
        place: where it has values; its shape follows (see `SHAPES`).
        padding: what it holds elsewhere: a number, `pad_token_id`, or None where it has values everywhere.
        doc: what it is.
        values: a row's values.
        invariants: what is checked.
    """

    name: str
    dtype: torch.dtype
    place: Place
    padding: int | Literal["pad_token_id"] | None
    doc: str
    values: Values
    invariants: Invariants = field(default_factory=dict)

    def __str__(self) -> str:
        padding = "" if self.padding is None else f"; elsewhere {self.padding}"
        return f"{self.name}: {_dtype_name(self.dtype)} `{SHAPES[self.place]}`, {self.doc}{padding}."


def _log_probs(row: Row) -> NDArray[np.float64]:
    return np.concatenate([segment.logprobs for segment in row.sequence.policy_segments])


def _versions(row: Row) -> NDArray[np.int64]:
    runs = [run for segment in row.sequence.policy_segments for run in segment.version_runs]
    return np.repeat([row.version_numbers.get(version, -1) for version, _ in runs], [count for _, count in runs])


def _length(row: Row) -> int:
    return len(row.sequence.prompt_ids) + len(row.response_ids)


def _same_trajectory(batch: Batch) -> Tensor:
    """bool `[rows]`: whether the row is of the same trajectory as the row before it."""
    return torch.cat([torch.tensor([False]), batch.trajectory_ids.diff() == 0])


def _prompt_attention(batch: Batch) -> Tensor:
    return batch.attention_mask[:, : batch.prompts.shape[1]]


def _response_attention(batch: Batch) -> Tensor:
    return batch.attention_mask[:, batch.prompts.shape[1] :]


def _known_versions(batch: Batch) -> Tensor:
    known = torch.tensor(list(batch.version_numbers.values()), dtype=torch.int64)
    return torch.isin(batch.weight_versions, known) | (batch.response_mask == 0)


def _counted(batch: Batch) -> Tensor:
    first = batch.trajectory_ids[:1] == 0
    return torch.cat([first, (batch.trajectory_ids.diff() & ~1) == 0])


@dataclass(frozen=True)
class Dropped:
    """A trajectory that is not in the batch.

    Attributes:
        id: the trajectory's id.
        reason: why it was left out.
    """

    id: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Masked token tensors, one row for each token sequence. See the module for the layout.

    Attributes:
        the tensors that `FIELDS` lists.
        pad_token_id: the id that padding holds.
        ids: the rows' ids: the trajectory's id where it is one sequence, else that id, a slash and the sequence's
            number in the trajectory.
        groups: the ids of the groups, see `Trajectory.group_id`; `group_ids` are places in it.
        dropped: trajectories that were left out, and why.
        version_numbers: the engine's name of each version to its number in `weight_versions`. A name that is a
            decimal number, as a training step is, keeps it. Others get the smallest numbers that are left, in the
            order of their first appearance; so SGLang's initial `default` comes before step 1.
        aligned: payloads of the policy's tokens by name, `[rows, response, ...]` in the dtype that they came in.
            Elsewhere they hold -1 where the dtype has a sign and is an integer, else 0 or False.
    """

    prompts: Tensor
    responses: Tensor
    attention_mask: Tensor
    response_mask: Tensor
    input_ids: Tensor
    position_ids: Tensor
    rollout_log_probs: Tensor
    weight_versions: Tensor
    trajectory_ids: Tensor
    rewards: Tensor
    group_ids: Tensor
    pad_token_id: int
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    dropped: tuple[Dropped, ...] = ()
    version_numbers: Mapping[str, int] = field(default_factory=dict)
    aligned: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<Batch: {self._summary}>"

    def _repr_html_(self) -> str:
        rows = [(name, f"{tuple(value.shape)}, {_dtype_name(value.dtype)}") for name, value in self.tensors().items()]
        return html_table(self._summary, rows)

    @property
    def _summary(self) -> str:
        dropped = f", {len(self.dropped)} trajectories left out" if self.dropped else ""
        return (
            f"{len(self)} rows of {self.prompts.shape[1]} + {self.responses.shape[1]} tokens, "
            f"{int(self.response_mask.sum())} of them the policy's, {len(self.groups)} groups{dropped}"
        )

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; those of `aligned` as `aligned.NAME`."""
        own = {item.name: getattr(self, item.name) for item in FIELDS}
        return own | {f"aligned.{name}": value for name, value in self.aligned.items()}


FIELDS: tuple[Field, ...] = (
    Field("prompts", torch.int64, "prompt", "pad_token_id", "padded on the left", lambda row: row.sequence.prompt_ids),
    Field(
        "responses",
        torch.int64,
        "response",
        "pad_token_id",
        "padded on the right",
        lambda row: row.response_ids,
    ),
    Field(
        "attention_mask",
        torch.int64,
        "tokens",
        0,
        "1 on all tokens, the env's included",
        lambda row: np.ones(_length(row), dtype=np.int64),
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
        lambda row: np.arange(_length(row)),
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
        _log_probs,
        {
            "log probs are finite and at most 0": lambda batch: (
                torch.isfinite(batch.rollout_log_probs) & (batch.rollout_log_probs <= 1e-4)
            ),
            "log probs are 0 where the policy did not sample": lambda batch: (
                (batch.rollout_log_probs == 0) | (batch.response_mask == 1)
            ),
        },
    ),
    Field(
        "weight_versions",
        torch.int64,
        "policy",
        -1,
        "the number (see `version_numbers`) of the version of the weights that sampled each of the policy's tokens",
        _versions,
        {
            "weight_versions are -1 where the policy did not sample": lambda batch: (
                (batch.weight_versions == -1) | (batch.response_mask == 1)
            ),
            "weight_versions are in version_numbers where the policy sampled": _known_versions,
        },
    ),
    Field(
        "trajectory_ids",
        torch.int64,
        "row",
        None,
        "equal for the rows of one trajectory: trajectories are numbered from 0 in the order of their rows",
        lambda row: np.array([row.trajectory_number]),
        {"trajectory_ids count the trajectories from 0 in the order of the rows": _counted},
    ),
    Field(
        "rewards",
        torch.float32,
        "row",
        None,
        "the trajectory's, the same in each of its rows",
        lambda row: np.array([row.trajectory.reward]),
        {
            "rewards are finite": lambda batch: torch.isfinite(batch.rewards),
            "rows of one trajectory share its reward": lambda batch: (
                ~_same_trajectory(batch) | (batch.rewards == batch.rewards.roll(1))
            ),
        },
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
    ),
)
"""The tensors of a batch, in the order that they are made and checked."""

if Batch.__doc__:  # python -OO takes docstrings away
    Batch.__doc__ = Batch.__doc__.replace("the tensors that `FIELDS` lists.", "\n        ".join(map(str, FIELDS)))


def aligned_field(name: str, dtype: np.dtype[Any], width: int) -> Field:
    """The field of a payload of the policy's tokens; its tensor is `Batch.aligned[name]`, `[rows, response, ...]`.

    Args:
        name: the payload's name.
        dtype: of its values.
        width: what the rows of a payload in `FILLERS` are filled up to; without effect on others.
    """
    padding = -1 if dtype.kind == "i" else 0

    def elsewhere(batch: Batch) -> Tensor:
        values = batch.aligned[name]
        return (values == padding).reshape(*values.shape[:2], -1).all(dim=2) | (batch.response_mask == 1)

    return Field(
        f"aligned.{name}",
        torch.from_numpy(np.empty(0, dtype=dtype)).dtype,
        "policy",
        padding,
        "a payload of the policy's tokens",
        lambda row: joined_payload(name, row.sequence.policy_segments, width),
        {f"aligned.{name} holds its padding where the policy did not sample": elsewhere},
    )


def rows_of(trajectories: Iterable[Trajectory], groups: Sequence[str], version_numbers: Mapping[str, int]) -> list[Row]:
    """The rows that trajectories make. A sequence without a sampled token, where the engine gave nothing, makes none.

    Args:
        trajectories: in the order of the rows.
        groups: see `Batch`; a group that is not among them gets the number -1.
        version_numbers: see `Batch`.
    """
    numbers = {group: number for number, group in enumerate(groups)}
    return [
        Row(
            trajectory,
            sequence,
            trajectory.id if len(trajectory.sequences) == 1 else f"{trajectory.id}/{part}",
            number,
            numbers.get(trajectory.group_id, -1),
            version_numbers,
        )
        for number, trajectory in enumerate(trajectories)
        for part, sequence in enumerate(trajectory.sequences)
        if sequence.policy_tokens
    ]
