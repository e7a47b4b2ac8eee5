"""Trajectories as what TRL's `rollout_func` returns, and the checks that TRL leaves out.

The format is that of `GRPOTrainer._generate` (TRL 1.16): lists without padding, one entry for each prompt;
`logprobs[i][t]` and `env_mask[i][t]` belong to `completion_ids[i][t]`; 1 in the mask for what the policy sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolgym.rollout.adapters.trainer_row import TrainerRow, check_values
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError

if TYPE_CHECKING:
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

REWARD = "toolgym_reward"
"""Field of the rewards; None for an episode whose reward says nothing about the policy."""

STOP_REASON = "toolgym_stop_reason"

_IDS = ("prompt_ids", "completion_ids")
_PER_TOKEN = ("logprobs", "env_mask")


def to_output(trajectories: Sequence[Trajectory], *, filler_id: int, temperature: float | None = 1.0) -> dict[str, Any]:
    """Return what `rollout_func` returns for these trajectories, in their order.

    A trajectory that is not usable keeps its place with a mask of 0 and a reward of None: TRL wants a row for each
    prompt, and leaves one without a reward out of its group's mean and deviation. `filler_id`, the end-of-sequence id,
    is for rows that have no prompt or no completion, which TRL refuses. `temperature` is that of the `GRPOConfig`, by
    which TRL divides logits; None does not check it. Raises BatchError if one has several token sequences, and
    ConfigError if one was sampled at another temperature.
    """
    output: dict[str, Any] = {name: [] for name in (*_IDS, *_PER_TOKEN, REWARD, STOP_REASON)}
    advice = ", or train with the async trainer, which takes a row for each sequence (`to_rollout_samples`)"
    for trajectory in require_trajectories(trajectories):
        rows = TrainerRow.all_of(trajectory, "TRL", several=False, temperature=temperature, advice=advice)
        [row] = rows or [TrainerRow.masked(trajectory, filler_id, keep_tokens=True)]
        arrays = row.sequence.prompt_ids, row.sequence.response_ids, row.sequence.logprobs, row.sequence.response_mask
        reward = trajectory.reward if rows else None
        values = (*(array.tolist() for array in arrays), reward, trajectory.stop_reason.value)
        for name, value in zip(output, values, strict=True):
            output[name].append(value)
    return output


def check_output(output: Mapping[str, Any], *, prompts: int, max_completion_length: int | None = None) -> None:
    """Check what a `rollout_func` is about to return. TRL 1.16 takes most mistakes silently, and trains on them.

    Raises BatchError, with field and row, if a field is missing, does not fit the prompts or the ids, or is no list; a
    row is empty or too long; or a mask or a log-probability cannot be.
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


def to_rollout_samples(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float | None],
    *,
    first_group: int = 0,
    temperature: float | None = 1.0,
) -> list[RolloutSample]:
    """Return the samples of whole groups, one for each token sequence, in order; TRL packs those of a group together.

    Each sample holds a whole sequence: `input_ids` and `completion_mask` int64 `[tokens]`, 1 for what the policy
    sampled, `old_log_probs` float32 `[tokens]`, 0 elsewhere. Its `model_version` is the oldest one of its tokens.
    Trajectories that are not usable, and sequences without a token of the policy's, are left out.

    `advantages` are those of `group_advantages`. Groups are numbered from `first_group`; no number may come twice in a
    run. Raises BatchError if an advantage is missing or not finite, or a weight version is no number: TRL counts its
    versions. `temperature` is as in `to_output`.
    """
    with needs("trl", "Samples for TRL's async trainer"):
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
    episodes = require_trajectories(trajectories)
    if len(advantages) != len(episodes):
        raise BatchError(f"{len(episodes)} trajectories need as many advantages, got {len(advantages)}")
    names = dict.fromkeys(trajectory.group_id for trajectory in episodes)
    groups = {group_id: first_group + number for number, group_id in enumerate(names)}
    samples = []
    for trajectory, advantage in zip(episodes, advantages, strict=True):
        if trajectory.usable and (advantage is None or not np.isfinite(advantage)):
            raise BatchError(f"the advantage of trajectory {trajectory.id} is {advantage!r}")
        messages = [{**message} for message in trajectory.messages]
        first = next(iter(trajectory.turn_places), len(messages))
        for row in TrainerRow.all_of(trajectory, "TRL", several=True, temperature=temperature):
            samples.append(
                RolloutSample(
                    prompt=messages[:first],
                    completion=messages[first:],
                    input_ids=row.token_ids.astype(np.int64),
                    completion_mask=row.behind_prompt(row.sequence.response_mask).astype(np.int64),
                    old_log_probs=row.behind_prompt(row.sequence.logprobs).astype(np.float32),
                    advantage=float(advantage or 0.0),
                    model_version=row.oldest_version,
                    group_id=groups[trajectory.group_id],
                    metrics={"reward": trajectory.reward, "turns": float(len(trajectory.turns))},
                )
            )
    return samples
