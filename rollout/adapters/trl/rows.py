"""Trajectories as what TRL's `rollout_func` returns, and the checks that TRL leaves out.

The format is that of `GRPOTrainer._generate` (TRL 1.16): lists without padding, one entry for each prompt;
`logprobs[i][t]` and `env_mask[i][t]` belong to `completion_ids[i][t]`; 1 in the mask for what the policy sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolgym.rollout.adapters.trainer_row import TrainerRow, check_values
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError

REWARD = "toolgym_reward"
"""Field of the rewards; None for an episode whose reward says nothing about the policy."""

STOP_REASON = "toolgym_stop_reason"

_IDS = ("prompt_ids", "completion_ids")
_PER_TOKEN = ("logprobs", "env_mask")


def to_output(trajectories: Sequence[Trajectory], *, filler_id: int) -> dict[str, Any]:
    """Return what `rollout_func` returns for these trajectories, in their order.

    A trajectory that is not usable keeps its place with a mask of 0 and a reward of None: TRL wants a row for each
    prompt, and leaves one without a reward out of its group's mean and deviation. `filler_id` is for rows that have no
    prompt or no completion, which TRL refuses; the end-of-sequence id.

    Raises:
        BatchError: a usable trajectory has several token sequences, and TRL has one row for it.
    """
    output: dict[str, Any] = {name: [] for name in (*_IDS, *_PER_TOKEN, REWARD, STOP_REASON)}
    advice = ", or train with the async trainer, which takes a row for each sequence (`to_rollout_samples`)"
    for trajectory in require_trajectories(trajectories):
        rows = TrainerRow.all_of(trajectory, "TRL", several=False, advice=advice)
        [row] = rows or [TrainerRow.masked(trajectory, filler_id, keep_tokens=True)]
        arrays = row.sequence.prompt_ids, row.sequence.response_ids, row.sequence.logprobs, row.sequence.response_mask
        reward = trajectory.reward if rows else None
        values = (*(array.tolist() for array in arrays), reward, trajectory.stop_reason.value)
        for name, value in zip(output, values, strict=True):
            output[name].append(value)
    return output


def check_output(output: Mapping[str, Any], *, prompts: int, max_completion_length: int | None = None) -> None:
    """Check what a `rollout_func` is about to return. TRL 1.16 takes most mistakes silently, and trains on them.

    Args:
        output: token ids, `logprobs`, `env_mask`, and further fields of one entry for each prompt.
        prompts: how many prompts TRL asked for.
        max_completion_length: the most tokens of a completion; None: no limit.

    Raises:
        BatchError: a field is missing, does not fit the prompts or the ids, or is no list, which TRL gives to each row
            as a
            whole; a row is empty or too long; a mask or a log-probability cannot be. Names the field and the row.
    """
    for name in (*_IDS, *_PER_TOKEN):
        if name not in output:
            raise BatchError(
                f"rollout_func must return {name!r}: without it TRL would "
                + ("train on the env's tokens too" if name == "env_mask" else "stop")
            )
    for name, values in output.items():
        if not isinstance(values, list):
            raise BatchError(
                f"field {name!r} must be a list with one entry for each prompt, got {type(values).__name__}: TRL would "
                "give the whole of it to each row"
            )
        if len(values) != prompts:
            raise BatchError(f"field {name!r} has {len(values)} entries for {prompts} prompts")
    for row in range(prompts):
        _check_row(output, row, max_completion_length)


def _check_row(output: Mapping[str, Any], row: int, most: int | None) -> None:
    for name in _IDS:
        ids = output[name][row]
        if len(ids) == 0:
            raise BatchError(f"{name} of row {row} is empty")
        if not all(isinstance(token, int | np.integer) and token >= 0 for token in ids):
            raise BatchError(f"{name} of row {row} holds something else than token ids")
    count = len(output["completion_ids"][row])
    if most is not None and count > most:
        raise BatchError(f"completion_ids of row {row} has {count} ids, more than max_completion_length={most}")
    mask, logprobs = (("env_mask", output["env_mask"][row]), ("logprobs", output["logprobs"][row]))
    check_values(row, f"{count} ids of the completion", mask, logprobs)
