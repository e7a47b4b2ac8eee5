"""A trajectory as the tensors that AReaL 1.0.4's workflows return (`areal/workflow/multi_turn.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolgym.rollout.adapters.trainer_row import NO_VERSION, TrainerRow
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import BatchError

_PIXELS = {"pixel_values", "image_grid_thw"}
"""What AReaL's engines hand to the model (`_MULTIMODAL_FORWARD_KEYS` in `areal/engine/fsdp_engine.py`)."""


def to_tensors(
    trajectory: Trajectory,
    *,
    several_rows: bool = False,
    processor: ImageProcessor | None = None,
    temperature: float | None = 1.0,
) -> dict[str, Any] | None:
    """Return what `arun_episode` returns for a trajectory; None, which AReaL leaves out, if it is not usable.

    `several_rows` allows a row for each token sequence, else several raise BatchError. AReaL normalizes rewards over a
    fixed number of rows, so this does not go with normalization over groups. `processor` is that of the rollout, for
    images: all rows of a group must have some. Raises BatchError if it makes other tensors than AReaL takes.
    `temperature` is AReaL's `actor.temperature`, by which it divides logits: another one of the trajectory raises
    ConfigError. None does not check it, for a workflow that only evaluates.

    Returns:
        `input_ids`, `loss_mask`, `versions` (-1 for the env's tokens) int32, `logprobs` float32, `attention_mask` bool,
        all `[rows, tokens]` and padded on the right, and `rewards` float32 `[rows]`; with images also
        `mm_token_type_ids` int64, 1 on their tokens, and `multi_modal_input`, a mapping of tensors for each row.
    """
    import torch

    advice = ", or give several_rows=True and normalize no rewards over groups"
    rows = TrainerRow.all_of(
        trajectory, "AReaL", several=several_rows, temperature=temperature, advice=advice, processor=processor
    )
    if not rows:
        return None
    shape = (len(rows), max(len(row.token_ids) for row in rows))
    tensors = {
        "input_ids": np.zeros(shape, np.int32),
        "logprobs": np.zeros(shape, np.float32),
        "loss_mask": np.zeros(shape, np.int32),
        "versions": np.full(shape, NO_VERSION, np.int32),
        "attention_mask": np.zeros(shape, np.bool_),
    }
    for number, row in enumerate(rows):
        prompt, end = len(row.sequence.prompt_ids), len(row.token_ids)
        tensors["input_ids"][number, :end] = row.token_ids
        tensors["attention_mask"][number, :end] = True
        tensors["logprobs"][number, prompt:end] = row.sequence.logprobs
        tensors["loss_mask"][number, prompt:end] = row.sequence.response_mask
        tensors["versions"][number, prompt:end] = row.versions
    rewards = np.full(len(rows), trajectory.reward, np.float32)
    result: dict[str, Any] = {name: torch.from_numpy(array) for name, array in {**tensors, "rewards": rewards}.items()}
    pixels = [row.pixel_inputs(processor) for row in rows]
    if processor is None or not any(pixels):
        return result
    if any(not {"pixel_values"} <= of_row.keys() <= _PIXELS for of_row in pixels):
        names = ", ".join(sorted({name for of_row in pixels for name in of_row}))
        raise BatchError(
            f"AReaL takes {' and '.join(sorted(_PIXELS))} of images, in every row; trajectory {trajectory.id} has "
            f"{names}"
        )
    parts = (result["input_ids"] == processor.image_token_id) & result["attention_mask"]
    return {**result, "mm_token_type_ids": parts.long(), "multi_modal_input": pixels}
