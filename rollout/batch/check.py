"""`check_batch`: the invariants of a batch, and its way back to the trajectories."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.batch.batch import Batch
from toolgym.rollout.batch.fields import FIELDS, Field, aligned_field
from toolgym.rollout.batch.row import RowSource, rows_of
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import BatchError, ConfigError

BLOCK = 2**18
"""Tokens, padding included, that are checked at a time, so that all stays in the processor's cache."""


Invariants = Mapping[str, Callable[[Batch], Tensor]]
"""Sentences that must hold, each with a function that says where it does: bool `[rows]` or `[rows, ...]`."""


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


INVARIANTS: Mapping[str, Invariants] = {
    "attention_mask": {
        "attention_mask holds 0 and 1 only": lambda batch: (batch.attention_mask & ~1) == 0,
        "prompts are padded on the left only": lambda batch: _prompt_attention(batch).diff(dim=1) >= 0,
        "responses are padded on the right only": lambda batch: _response_attention(batch).diff(dim=1) <= 0,
        "every prompt has a token": lambda batch: _prompt_attention(batch).any(dim=1),
    },
    "response_mask": {
        "response_mask holds 0 and 1 only": lambda batch: (batch.response_mask & ~1) == 0,
        "every response has a policy token": lambda batch: batch.response_mask.any(dim=1),
        "response_mask lies within the attention": lambda batch: batch.response_mask <= _response_attention(batch),
    },
    "input_ids": {
        "padding holds the pad token": lambda batch: (
            (batch.input_ids == batch.pad_token_id) | (batch.attention_mask == 1)
        ),
        "input_ids are prompts and responses": lambda batch: (
            batch.input_ids == torch.cat([batch.prompts, batch.responses], dim=1)
        ),
    },
    "position_ids": {
        "position_ids begin at 0 and count the attended tokens": lambda batch: (
            (batch.position_ids.diff(dim=1) == 1) | ((batch.attention_mask[:, 1:] & batch.attention_mask[:, :-1]) == 0)
        ),
        "position_ids are 0 on padding": lambda batch: (batch.position_ids == 0) | (batch.attention_mask == 1),
        "the first token has position 0": lambda batch: (
            (batch.position_ids * batch.attention_mask).amax(dim=1) == batch.attention_mask.sum(dim=1) - 1
        ),
    },
    "rollout_log_probs": {
        "log probs are finite and at most 0": lambda batch: (
            _finite(batch.rollout_log_probs) & (batch.rollout_log_probs <= 1e-4)
        ),
    },
    "temperatures": {
        "temperatures are above 0 and finite": lambda batch: (batch.temperatures > 0) & (batch.temperatures < math.inf),
    },
    "weight_versions": {
        "weight_versions are in version_numbers where the policy sampled": _known_versions,
    },
    "token_rewards": {
        "token_rewards are finite": lambda batch: _finite(batch.token_rewards),
    },
    "trajectory_ids": {"trajectory_ids do not fall from one row to the next": _in_order},
    "rewards": {
        "rewards are finite": lambda batch: _finite(batch.rewards),
        "rows of one trajectory share its reward": lambda batch: (
            ~_same_trajectory(batch) | (batch.rewards == batch.rewards.roll(1))
        ),
    },
    "group_ids": {
        "rows of one trajectory share its group": lambda batch: (
            ~_same_trajectory(batch) | (batch.group_ids == batch.group_ids.roll(1))
        ),
        "group_ids are places in groups": lambda batch: (batch.group_ids >= 0) & (batch.group_ids < len(batch.groups)),
    },
}
"""By the name of the field."""


def check_batch(batch: Batch, trajectories: Sequence[Trajectory] | None = None) -> None:
    """Check a batch's invariants, and that it leads back to its trajectories, if given in the order of its rows.
    Raises BatchError for the first invariant that does not hold, with the first row."""
    rows = None
    if trajectories is not None:
        rows = rows_of(trajectories, batch.groups, batch.version_numbers, batch.reward_placement)
    check_rows(batch, rows)


def check_rows(batch: Batch, rows: Sequence[RowSource] | None) -> None:
    batch = batch.to("cpu")
    payloads = {name: value.numpy() for name, value in batch.aligned.items()}
    fields = [
        *FIELDS,
        *(
            aligned_field(name, payload.dtype, payload.shape[2] if payload.ndim == 3 else 0)
            for name, payload in payloads.items()
        ),
    ]
    _check_shapes(batch, fields)
    _check_names(batch)
    _check_images(batch)
    blocks = _blocks(batch)
    for item in fields:
        parts = [(0, batch)] if item.place == "row" else blocks
        for what, holds in INVARIANTS.get(item.name, {}).items():
            for start, part in parts:
                _hold(what, holds(part), start)
    sampled = [item for item in fields if item.place == "policy" or item.name == "token_rewards"]
    for start, part in blocks:
        _hold_elsewhere(part, sampled, start)
    if rows is not None:
        _check_way_back(batch, fields, rows)


def _hold_elsewhere(part: Batch, fields: Sequence[Field], start: int) -> None:
    """Raise BatchError if a field has another value than its padding where the policy did not sample."""
    elsewhere = part.response_mask.numpy() == 0
    tensors = part.tensors()
    for item in fields:
        values = tensors[item.name].numpy()
        if not (values[elsewhere] == item.padding).all():
            padded = (values == item.padding).reshape(*elsewhere.shape, -1).all(axis=2)
            what = f"{item.name} holds {item.padding} where the policy did not sample"
            _hold(what, torch.from_numpy(padded | ~elsewhere), start)


def _blocks(batch: Batch) -> list[tuple[int, Batch]]:
    """The batch in blocks of whole rows, each with the number of its first row; views, not copies."""
    size = max(1, BLOCK // max(1, batch.input_ids.shape[1]))
    names = [item.name for item in FIELDS]
    return [
        (
            start,
            dataclasses.replace(
                batch,
                **{name: getattr(batch, name)[start : start + size] for name in names},
                aligned={name: value[start : start + size] for name, value in batch.aligned.items()},
            ),
        )
        for start in range(0, len(batch.prompts), size)
    ]


def _check_shapes(batch: Batch, fields: Sequence[Field]) -> None:
    rows, prompt_width = batch.prompts.shape
    response_width = batch.responses.shape[1]
    widths = {"prompt": (prompt_width,), "tokens": (prompt_width + response_width,), "row": ()}
    tensors = batch.tensors()
    for item in fields:
        value = tensors[item.name]
        shape = (rows, *widths.get(item.place, (response_width,)))
        if item not in FIELDS:
            shape = (*shape, *value.shape[2:])  # a payload may have further axes
        if tuple(value.shape) != shape or value.dtype != item.dtype:
            raise BatchError(f"{item.name} must be {item.dtype} {list(shape)}, got {value.dtype} {list(value.shape)}")


def _check_names(batch: Batch) -> None:
    rows = len(batch.prompts)
    if len(batch.ids) != rows:
        raise BatchError(f"{rows} rows need as many ids, got {len(batch.ids)}")
    if len(set(batch.ids)) != rows:
        twice = next(name for name in batch.ids if batch.ids.count(name) > 1)
        raise BatchError(f"two rows have the id {twice!r}: a trajectory came twice, or two share an id")
    if len(batch.distributions) != rows or not all(batch.distributions):
        raise BatchError(f"{rows} rows need their distributions, got those of {len(batch.distributions)}")
    if len(set(batch.groups)) != len(batch.groups):
        raise BatchError(f"groups must be different ids, got {list(batch.groups)!r:.200}")
    numbers = list(batch.version_numbers.values())
    if len(set(numbers)) != len(numbers) or any(number < 0 for number in numbers):
        raise BatchError(f"version_numbers must be different numbers from 0 on, got {dict(batch.version_numbers)!r}")


def _check_images(batch: Batch) -> None:
    rows = len(batch.prompts)
    if (len(batch.images), batch.image_token_id is None) not in ((0, True), (rows, False)):
        raise BatchError(
            f"{rows} rows have as many images and an image_token_id, or none of both; got {len(batch.images)} and "
            f"{batch.image_token_id}"
        )
    for row, images in enumerate(batch.images):
        count = int(((batch.input_ids[row] == batch.image_token_id) & (batch.attention_mask[row] == 1)).sum())
        if images.tokens != count:
            raise BatchError(
                f"row {batch.ids[row]} has {count} ids for parts of images ({batch.image_token_id}), and its "
                f"pixel inputs need {images.tokens}"
            )


def _hold(what: str, condition: Tensor, start: int) -> None:
    if condition.numpy().all():  # a tenth of the time that torch takes
        return
    broken = condition if condition.dim() == 1 else condition.all(dim=1)
    row = start + int((~broken).nonzero()[0])
    raise BatchError(f"the batch broke an invariant: {what} (first at row {row})")


def _check_way_back(batch: Batch, fields: Sequence[Field], rows: Sequence[RowSource]) -> None:
    """Take every row out of its padding by the batch's masks, and compare it with what the trajectories hold."""
    if len(rows) != len(batch):
        raise BatchError(f"{len(batch)} rows came from trajectories that make {len(rows)}")
    prompt_width = batch.prompts.shape[1]
    tokens = batch.attention_mask.numpy().astype(bool)
    masks = {
        "prompt": tokens[:, :prompt_width],
        "response": tokens[:, prompt_width:],
        "policy": batch.response_mask.numpy().astype(bool),
        "tokens": tokens,
    }
    arrays = {name: value.numpy() for name, value in batch.tensors().items()}

    def differing(first: int, last: int, fields: Sequence[Field]) -> list[str]:
        here, sources = slice(first, last), rows[first:last]
        wrong = [] if list(batch.ids[here]) == [row.id for row in sources] else ["ids"]
        token_id = batch.image_token_id
        needed = [len(row.sequence.images) if token_id is None else row.image_tokens(token_id) for row in sources]
        if list(batch.distributions[here]) != [row.sampling.distributions for row in sources]:
            wrong.append("distributions")
        wrong += [] if needed == ([row.tokens for row in batch.images[here]] or [0] * len(sources)) else ["images"]
        for item in fields:
            mask = masks.get(item.place)
            if not _equal(arrays[item.name][here], None if mask is None else mask[here], item, sources):
                wrong.append(item.name)
        return wrong

    # A field without a column follows from others, and by the invariants it has.
    columns = [item for item in fields if item.column is not None]
    for start, part in _blocks(batch):
        if not differing(start, start + len(part.prompts), columns):
            continue
        for index in range(start, start + len(part.prompts)):  # which row it is, and all that differs in it
            if wrong := differing(index, index + 1, fields):
                raise BatchError(
                    f"row {index} does not lead back to trajectory {rows[index].trajectory.id}: "
                    f"{', '.join(wrong)} differ"
                )


def _equal(array: NDArray[Any], mask: NDArray[np.bool_] | None, item: Field, rows: Sequence[RowSource]) -> bool:
    try:
        wanted = [item.values(row) for row in rows]
    except ConfigError:  # one lacks the payload
        return False
    counts = np.ones(len(rows)) if mask is None else mask.sum(axis=1)
    if not np.array_equal(counts, [len(values) for values in wanted]):
        return False
    held, joined = array if mask is None else array[mask], np.concatenate(wanted)
    joined = joined.astype(held.dtype, copy=False)
    return np.array_equal(held, joined) or (held.dtype.kind == "f" and np.array_equal(held, joined, equal_nan=True))
