"""Trajectories as the samples that TRL's `AsyncGRPOTrainer` trains on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError

if TYPE_CHECKING:
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample


def to_rollout_samples(
    trajectories: Sequence[Trajectory], advantages: Sequence[float | None], *, first_group: int = 0
) -> list[RolloutSample]:
    """The samples of trajectories, one for each token sequence, in order; TRL packs those of a group together.

    Each sample holds a whole sequence: `input_ids` and `completion_mask` int64 `[tokens]`, 1 for what the policy
    sampled, `old_log_probs` float32 `[tokens]`, 0 elsewhere. Its `model_version` is the oldest one of its tokens.
    Trajectories that may not be trained on or do not count, and sequences without a token of the policy's, are left
    out.

    Args:
        trajectories: of whole groups.
        advantages: one for each trajectory, in the same order, as `group_advantages` gives them: None for one that does
            not count.
        first_group: number of the first group; the others follow it. Numbers must not come twice in a run.

    Raises:
        ConfigError: something else than trajectories was given.
        BatchError: there are not as many advantages, one is not finite, or a weight version is no number: TRL counts
            its versions.
        MissingExtraError: TRL is not installed, or too old.
    """
    with needs("trl", "Samples for TRL's async trainer"):
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
    given = require_trajectories(trajectories)
    if len(advantages) != len(given):
        raise BatchError(f"{len(given)} trajectories need as many advantages, got {len(advantages)}")
    groups = {group_id: first_group + n for n, group_id in enumerate(dict.fromkeys(one.group_id for one in given))}
    samples = []
    for trajectory, advantage in zip(given, advantages, strict=True):
        if not trajectory.usable:
            continue
        if advantage is None or not np.isfinite(advantage):
            raise BatchError(f"the advantage of trajectory {trajectory.id} is {advantage!r}")
        for sequence in trajectory.sequences:
            if not sequence.policy_tokens:
                continue
            context = len(sequence.prompt_ids)
            samples.append(
                RolloutSample(
                    prompt=[{**one} for one in trajectory.messages[: _prompt_length(trajectory)]],
                    completion=[{**one} for one in trajectory.messages[_prompt_length(trajectory) :]],
                    input_ids=np.concatenate([sequence.prompt_ids, sequence.response_ids]).astype(np.int64),
                    completion_mask=np.concatenate([np.zeros(context), sequence.response_mask]).astype(np.int64),
                    old_log_probs=np.concatenate([np.zeros(context), sequence.logprobs]).astype(np.float32),
                    advantage=float(advantage),
                    model_version=_version(trajectory, sequence),
                    group_id=groups[trajectory.group_id],
                    metrics={"reward": trajectory.reward, "turns": float(len(trajectory.turns))},
                )
            )
    return samples


def _prompt_length(trajectory: Trajectory) -> int:
    """How many messages come before the policy's first."""
    places = trajectory.turn_places
    return places[0] if places else len(trajectory.messages)


def _version(trajectory: Trajectory, sequence: TokenSequence) -> int:
    names = {version for segment in sequence.policy_segments for version, _ in segment.version_runs}
    try:
        return min(map(int, names))
    except ValueError:
        raise BatchError(
            f"trajectory {trajectory.id} has the weight versions {', '.join(sorted(names))}; TRL's are whole numbers"
        ) from None
