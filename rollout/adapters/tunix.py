"""Trajectories as Tunix's `TrajectoryItem`s, in whole groups, as its queues and its GRPO learner take them.

The format is what `agentic_grpo_learner.py` of Tunix 0.1.7 reads in the mode `Token`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from toolgym.envs.types import StopReason
from toolgym.rollout.adapters.trainer_row import TrainerRow
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.advantages.advantages import grouped
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import BatchError, require_whole_number

with needs("google-tunix", "The adapter for Tunix"):
    from tunix.rl.agentic.agents.agent_types import TrajectoryItem, TrajectoryStatus

log = logging.getLogger("toolgym.rollout.adapters.tunix")

_STATUS = {
    StopReason.MAX_TURNS: TrajectoryStatus.MAX_STEPS_REACHED,
    StopReason.LENGTH: TrajectoryStatus.MAX_CONTEXT_LIMIT_REACHED,
    StopReason.BUDGET: TrajectoryStatus.MAX_CONTEXT_LIMIT_REACHED,
}


def to_items(
    trajectories: Iterable[Trajectory],
    *,
    group_size: int,
    pad_token_id: int,
    max_prompt_length: int,
    max_response_length: int,
    temperature: float | None,
    first_group: int = 0,
) -> list[TrajectoryItem]:
    """Return the items of whole groups, group by group, for `GroupQueueManager.put`.

    Tunix takes groups of one size only, and each reward counts in its group. So a group of which a trajectory is not
    usable is left out as a whole, and a warning says so. Those of one run, one task and one role are a group.

    `group_size` is Tunix's `num_generations`, and of the number of a group, from `first_group` on, it makes its
    training step. `temperature` is that of the learner's `RolloutConfig`, by which Tunix divides logits; it has no
    default here because Tunix's is 0.9. Tunix does not divide at 0, as at 1. None does not check it. Tunix takes each
    `pad_token_id` in a prompt for padding.

    Raises:
        BatchError: no group is left, or Tunix would cut or misread a trajectory, or wait for one.
        ConfigError: a trajectory was sampled at another temperature.
    """
    require_whole_number("group_size", group_size, at_least=1)
    require_whole_number("max_prompt_length", max_prompt_length, at_least=1)
    require_whole_number("max_response_length", max_response_length, at_least=1)
    require_whole_number("first_group", first_group, at_least=0)
    trains_at = 1.0 if temperature == 0 else temperature  # Tunix does not divide logits by 0
    groups = grouped(trajectories)
    for members in groups:
        if len(members) != group_size:
            raise BatchError(
                f"group {members[0].group_id} has {len(members)} trajectories, and Tunix waits for "
                f"group_size={group_size}"
            )
    whole = [members for members in groups if all(member.usable for member in members)]
    reasons = ", ".join(sorted({m.stop_reason.value for members in groups for m in members if not m.usable}))
    if not whole:
        raise BatchError(f"no group is left of {len(groups)}: each has a trajectory that does not count ({reasons})")
    if reasons:
        log.warning(
            "%d of %d groups were left out, since a trajectory of theirs does not count (%s)",
            len(groups) - len(whole), len(groups), reasons,
        )  # fmt: skip
    items = []
    for number, members in enumerate(whole, start=first_group):
        for pair, trajectory in enumerate(sorted(members, key=lambda member: member.sample_index)):
            [row] = TrainerRow.all_of(trajectory, "Tunix", several=False, temperature=trains_at)
            _check(row, pad_token_id, max_prompt_length, max_response_length)
            items.append(
                TrajectoryItem(
                    pair_index=pair,
                    group_id=number,
                    start_step=0,
                    traj=_fields(row, number),
                    metadata={"generation_id": pair, "trajectory_id": trajectory.id},
                )
            )
    return items


def _fields(row: TrainerRow, group: int) -> dict[str, Any]:
    trajectory, sequence = row.trajectory, row.sequence
    return {
        "conversation_text": [dict(message) for message in trajectory.messages],
        "prompt_tokens": sequence.prompt_ids.astype(np.int32),
        "conversation_tokens": sequence.response_ids.astype(np.int32),
        "conversation_masks": sequence.response_mask.astype(np.int32),
        "status": _STATUS.get(trajectory.stop_reason, TrajectoryStatus.SUCCEEDED).name,
        "trajectory_reward": float(trajectory.reward),
        "env_time": {"step": trajectory.env_seconds},
        "reward_time": {},
        "old_logprobs": sequence.logprobs.astype(np.float32),
        "policy_version": row.oldest_version,
        "original_input": {"prompts": [trajectory.prompt_text], "task_id": [trajectory.task_id]},
        "group_id": group,
    }


def _check(row: TrainerRow, pad_token_id: int, max_prompt_length: int, max_response_length: int) -> None:
    trajectory, sequence = row.trajectory, row.sequence
    for name, length, most in (
        ("max_prompt_length", len(sequence.prompt_ids), max_prompt_length),
        ("max_response_length", sequence.response_tokens, max_response_length),
    ):
        if length > most:
            raise BatchError(
                f"trajectory {trajectory.id} has {length} tokens where {name}={most}; Tunix would cut them: raise it, "
                "or limit the rollout"
            )
    if (sequence.prompt_ids == pad_token_id).any():
        raise BatchError(
            f"field prompt_tokens: trajectory {trajectory.id} has the id {pad_token_id} in its prompt, which Tunix "
            "takes for padding"
        )
