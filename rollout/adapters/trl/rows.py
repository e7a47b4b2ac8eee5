"""Trajectories as what TRL's `rollout_func` returns, and the checks that TRL leaves out.

The format is that of `GRPOTrainer._generate` (TRL 1.16): lists without padding, one entry for each prompt;
`logprobs[i][t]` and `env_mask[i][t]` belong to `completion_ids[i][t]`; 1 in the mask for what the policy sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError

REWARD = "toolgym_reward"
"""Field of the rewards; None for an episode whose reward says nothing about the policy."""

STOP_REASON = "toolgym_stop_reason"
"""Field of the names of the stop reasons."""

_IDS = ("prompt_ids", "completion_ids")
_PER_TOKEN = ("logprobs", "env_mask")


def to_output(trajectories: Sequence[Trajectory], *, filler_id: int) -> dict[str, Any]:
    """What `rollout_func` returns for these trajectories, in their order.

    A trajectory that may not be trained on or does not count, or in which the policy sampled nothing, keeps its place
    with a mask of 0 and a reward of None: TRL wants a row for each prompt, and leaves one without a reward out of its
    group's mean and deviation.

    Args:
        trajectories: one for each prompt.
        filler_id: an id for rows that have no prompt or no completion, which TRL refuses; the end-of-sequence id.

    Raises:
        ConfigError: something else than trajectories was given.
        BatchError: a trajectory that may be trained on has several token sequences, and TRL has one row for it.
    """
    output: dict[str, Any] = {name: [] for name in (*_IDS, *_PER_TOKEN, REWARD, STOP_REASON)}
    for trajectory in require_trajectories(trajectories):
        usable = trajectory.usable
        if usable and len(trajectory.sequences) > 1:
            raise BatchError(
                f"trajectory {trajectory.id} has {len(trajectory.sequences)} token sequences, and TRL takes one row "
                "for each prompt: play with history='append' and without a context policy that revises messages, or "
                "train with the async trainer, which takes a row for each sequence (`to_rollout_samples`)"
            )
        prompt, completion = [filler_id], [filler_id]
        logprobs, mask = [0.0], [0]
        if trajectory.sequences:
            sequence = trajectory.sequences[-1]
            prompt = sequence.prompt_ids.tolist()
            if sequence.response_tokens:
                completion = sequence.response_ids.tolist()
                logprobs, mask = [0.0] * len(completion), [0] * len(completion)
                if usable:
                    logprobs, mask = sequence.logprobs.tolist(), sequence.response_mask.tolist()
        reward = trajectory.reward if usable else None
        row = (prompt, completion, logprobs, mask, reward, trajectory.stop_reason.value)
        for name, value in zip(output, row, strict=True):
            output[name].append(value)
    return output


def check_output(output: Mapping[str, Any], *, prompts: int, max_completion_length: int | None = None) -> None:
    """Check what a `rollout_func` is about to return. TRL 1.16 takes most mistakes silently, and trains on them.

    Args:
        output: what `rollout_func` returns: token ids, `logprobs`, `env_mask`, and further fields of one entry for
            each prompt.
        prompts: how many prompts TRL asked for.
        max_completion_length: the most tokens of a completion; None: no limit.

    Raises:
        BatchError: a field is missing, has another number of entries than there are prompts, or is no list (TRL gives
            any other value to each row as a whole); a row is empty; a mask or log-probabilities do not have one value
            for each id of the completion; a mask holds something else than 0 and 1; a trained token has a
            log-probability that is not finite; a completion is too long. Names the field and the row.
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
        if not all(isinstance(one, int | np.integer) and one >= 0 for one in ids):
            raise BatchError(f"{name} of row {row} holds something else than token ids")
    count = len(output["completion_ids"][row])
    if most is not None and count > most:
        raise BatchError(f"completion_ids of row {row} has {count} ids, more than max_completion_length={most}")
    for name in _PER_TOKEN:
        if len(output[name][row]) != count:
            raise BatchError(
                f"{name} of row {row} has {len(output[name][row])} values for {count} ids of the completion"
            )
    mask, logprobs = output["env_mask"][row], output["logprobs"][row]
    if any(one not in (0, 1) for one in mask):
        raise BatchError(f"env_mask of row {row} must hold 0 (the env's) and 1 (the policy's)")
    for place, (trained, logprob) in enumerate(zip(mask, logprobs, strict=True)):
        if not isinstance(logprob, float | int | np.floating) or not math.isfinite(logprob):
            raise BatchError(f"logprobs of row {row} has {logprob!r} at {place}")
        if not trained and logprob:
            raise BatchError(f"logprobs of row {row} has {logprob!r} at {place}, which the env put there: it must be 0")
