"""Trajectories as SkyRL's `GeneratorOutput`.

The format is that of SkyRL 0.4.0 (`skyrl/train/generators/base.py`, and `validate_generator_output` in
`skyrl/train/utils/trainer_utils.py`): lists of prompts and of responses, and of masks, log-probabilities and rewards
with a value for each token of the response, which ends with a token that the policy sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolgym.envs.types import StopReason
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.advantages.reward_placement import token_rewards
from toolgym.rollout.engines.sglang.aligned import ROUTED_EXPERTS, SAMPLING_MASK
from toolgym.rollout.trajectory.context_routing import ContextRouting
from toolgym.rollout.trajectory.token_sequence import TokenSequence, joined_payload
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError, named_keywords

if TYPE_CHECKING:
    from skyrl.train.generators.base import GeneratorOutput, TrajectoryID

BROKEN_OFF = "abort"
"""The `stop_reason` of a row whose episode something broke off: it is masked, and its reward says nothing."""


@dataclass
class _Row:
    """One sequence as SkyRL has it. `None` in `sequence`: a masked row of one token."""

    trajectory: Trajectory
    trajectory_id: TrajectoryID
    last: bool
    sequence: TokenSequence | None
    rewards: NDArray[np.float64]
    routing: ContextRouting | None

    def __post_init__(self) -> None:
        sampled = np.flatnonzero(self.sequence.response_mask) if self.sequence is not None else [0]
        self.length = int(sampled[-1]) + 1  # what the env said last trains nothing, and SkyRL leaves it out too


@named_keywords
def to_generator_output(
    trajectories: Iterable[Trajectory],
    *,
    filler_id: int,
    step_wise: bool = False,
    trajectory_ids: Sequence[TrajectoryID] | None = None,
    routing: Sequence[ContextRouting] | None = None,
) -> GeneratorOutput:
    """What a generator returns for these trajectories, in their order.

    One that may not be trained on, does not count, or in which the policy sampled nothing, is a masked row of one token
    with the reward 0 and the `stop_reason` "abort" (see `CountedEpisodes`).

    Args:
        trajectories: of one batch.
        filler_id: the token of masked rows, such as the tokenizer's end of sequence.
        step_wise: SkyRL's `step_wise_trajectories`: a trajectory with several token sequences is as many rows, of which
            the last one has the whole reward, the only one that SkyRL then reads. Without, each turn's last token has
            the turn's reward.
        trajectory_ids: SkyRL's, one for each; None: made of `group_id` and `sample_index`.
        routing: the routed experts of whole contexts, one for each; None: they are not replayed.

    Returns:
        All fields but the images'. `rollout_sample_support` holds the payload `sampling_mask` where turns have it, and
        is None else, as is `rollout_expert_indices` without `routing`.

    Raises:
        ConfigError: something else than trajectories was given.
        BatchError: there are none, a number is not finite, a trajectory has several token sequences without
            `step_wise`, or some turns lack a payload that others have; names the field and the row.
        MissingExtraError: SkyRL is not installed, or too old.
    """
    given = require_trajectories(trajectories)
    with needs("skyrl", "A generator's output for SkyRL"):
        from skyrl.train.generators.base import TrajectoryID
    ids = trajectory_ids or [TrajectoryID(one.group_id, one.sample_index) for one in given]
    if not given or len(ids) != len(given) or (routing is not None and len(routing) != len(given)):
        raise BatchError(f"got {len(given)} trajectories, {len(ids)} ids and {len(routing or given)} routings")
    routings: Sequence[ContextRouting | None] = routing or [None] * len(given)
    rows = [
        row
        for one, name, its_routing in zip(given, ids, routings, strict=True)
        for row in _rows(one, name, its_routing, step_wise)
    ]
    return {
        "prompt_token_ids": [_prompt(row, filler_id) for row in rows],
        "response_ids": [
            row.sequence.response_ids[: row.length].tolist() if row.sequence else [filler_id] for row in rows
        ],
        "rewards": [_finite("rewards", number, row.rewards[: row.length]) for number, row in enumerate(rows)],
        "loss_masks": [row.sequence.response_mask[: row.length].tolist() if row.sequence else [0] for row in rows],
        "stop_reasons": [stop_reason(row.trajectory) for row in rows],
        "rollout_metrics": None,
        "rollout_logprobs": [
            _finite("rollout_logprobs", number, row.sequence.logprobs[: row.length] if row.sequence else np.zeros(1))
            for number, row in enumerate(rows)
        ],
        "trajectory_ids": [row.trajectory_id for row in rows],
        "trajectory_generation_times": [row.trajectory.seconds for row in rows],
        "trajectory_time_splits": {
            "llm": [row.trajectory.engine_seconds for row in rows],
            "env": [row.trajectory.env_seconds for row in rows],
        },
        "rollout_expert_indices": _expert_indices(rows),
        "rollout_sample_support": _sample_support(rows),
        "is_last_step": [row.last for row in rows] if step_wise else None,
        "env_metrics": [_metrics(row.trajectory) for row in rows],
    }


def stop_reason(trajectory: Trajectory) -> str:
    """SkyRL's word for how it ended: "stop", "length" where it was cut by a number of tokens, or "abort"."""
    if not trajectory.usable:
        return BROKEN_OFF
    return "length" if trajectory.stop_reason in (StopReason.LENGTH, StopReason.BUDGET) else "stop"


def _rows(trajectory: Trajectory, name: TrajectoryID, routing: ContextRouting | None, step_wise: bool) -> list[_Row]:
    if not trajectory.usable:
        return [_Row(trajectory, name, True, None, np.zeros(1), None)]
    placed = token_rewards(trajectory, "outcome" if step_wise else "turns")
    made = [
        _Row(trajectory, name, False, one, rewards, routing)
        for one, rewards in zip(trajectory.sequences, placed, strict=True)
        if one.policy_tokens
    ]
    if len(made) > 1 and not step_wise:
        raise BatchError(
            f"trajectory {trajectory.id} has {len(made)} token sequences: set generator.step_wise_trajectories=true, "
            "or play with history='append' and without a context policy that revises messages"
        )
    made[-1].last = True
    return made


def _prompt(row: _Row, filler_id: int) -> list[int]:
    ids: list[int] = row.sequence.prompt_ids.tolist() if row.sequence is not None else [filler_id]
    return ids


def _finite(field: str, number: int, values: NDArray[np.float64]) -> list[float]:
    if not np.isfinite(values).all():
        raise BatchError(f"field {field}: row {number} holds {values[~np.isfinite(values)][0]}, which is not finite")
    listed: list[float] = values.tolist()
    return listed


def _expert_indices(rows: Sequence[_Row]) -> list[NDArray[Any]] | None:
    """Rows for every token but the last, in SkyRL's smallest type; a masked row has one of other experts' numbers."""
    for number, row in enumerate(rows):
        if row.routing is None and row.sequence and any(ROUTED_EXPERTS in one.aligned for one in row.sequence.segments):
            raise BatchError(
                f"field rollout_expert_indices: row {number} has the routed experts of sampled tokens, and SkyRL "
                "replays those of the prompt too: play with ToolgymGenerator, or without that payload"
            )
    if all(row.routing is None for row in rows):
        return None
    from skyrl.backends.skyrl_train.utils.routed_experts import compact_routed_expert_indices

    made: list[NDArray[Any] | None] = [None] * len(rows)
    for number, row in enumerate(rows):
        if row.routing is not None and row.sequence is not None:
            whole = np.concatenate([row.sequence.prompt_ids, row.sequence.response_ids[: row.length]])
            made[number] = compact_routed_expert_indices(row.routing.rows(whole))
    layers, count = next(one.shape[1:] for one in made if one is not None)
    filler = np.tile(np.arange(count, dtype=np.uint8), (1, layers, 1))
    return [filler.copy() if one is None else one for one in made]


def _sample_support(rows: Sequence[_Row]) -> list[NDArray[np.int32]] | None:
    """The ids among which each token was sampled, `[response, most ids]`; -1 for the env's tokens and as filling."""
    segments = [
        (number, one) for number, row in enumerate(rows) if row.sequence for one in row.sequence.policy_segments
    ]
    if not any(SAMPLING_MASK in one.aligned for _, one in segments):
        return None
    for number, one in segments:
        if SAMPLING_MASK not in one.aligned:
            raise BatchError(f"field rollout_sample_support: a turn of row {number} has no payload {SAMPLING_MASK!r}")
    width = max(one.aligned[SAMPLING_MASK].shape[1] for _, one in segments)
    made = []
    for row in rows:
        support = np.full((row.length, width), -1, np.int32)
        if row.sequence is not None:
            mask = row.sequence.response_mask[: row.length].astype(bool)
            support[mask] = joined_payload(SAMPLING_MASK, row.sequence.policy_segments, width)
        made.append(support)
    return made


def _metrics(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "turns": len(trajectory.turns),
        "tool_calls": len(trajectory.tool_calls),
        "tool_errors": sum(one.status != "ok" for one in trajectory.tool_calls),
        "broken_off": not trajectory.usable,
        "ended_with": trajectory.stop_reason.value,
        "error": trajectory.error.message if trajectory.error is not None else None,
    }
