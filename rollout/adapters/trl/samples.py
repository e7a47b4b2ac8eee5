"""Trajectories as the samples that TRL's `AsyncGRPOTrainer` trains on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toolgym.rollout.adapters.trainer_row import TrainerRow
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError

if TYPE_CHECKING:
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample


def to_rollout_samples(
    trajectories: Sequence[Trajectory], advantages: Sequence[float | None], *, first_group: int = 0
) -> list[RolloutSample]:
    """Return the samples of trajectories, one for each token sequence, in order; TRL packs those of a group together.

    Each sample holds a whole sequence: `input_ids` and `completion_mask` int64 `[tokens]`, 1 for what the policy
    sampled, `old_log_probs` float32 `[tokens]`, 0 elsewhere. Its `model_version` is the oldest one of its tokens.
    Trajectories that are not usable, and sequences without a token of the policy's, are left out.

    Args:
        trajectories: of whole groups.
        advantages: one for each trajectory, as `group_advantages` gives them: None for one that does not count.
        first_group: number of the first group; the others follow it. Numbers must not come twice in a run.

    Raises:
        BatchError: there are not as many advantages, one is not finite, or a weight version is no number: TRL counts
            its versions.
        MissingExtraError: TRL is not installed, or too old.
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
        for row in TrainerRow.all_of(trajectory, "TRL", several=True):
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
