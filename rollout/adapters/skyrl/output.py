"""Trajectories as SkyRL's `GeneratorOutput`.

In SkyRL 0.4.0 (`skyrl/train/generators/base.py`) masks, log-probabilities and rewards have a value for each token of
the response, which ends with a sampled token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolgym.envs.types import StopReason
from toolgym.rollout.adapters.trainer_row import TrainerRow
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.advantages.reward_placement import token_rewards
from toolgym.rollout.engines.sglang.aligned import ROUTED_EXPERTS, SAMPLING_MASK
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.trajectory.context_routing import ContextRouting
from toolgym.rollout.trajectory.token_sequence import joined_payload
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from skyrl.train.generators.base import GeneratorOutput, TrajectoryID

BROKEN_OFF = "abort"
"""The `stop_reason` of a row whose episode something broke off: it is masked, and its reward says nothing."""


class _OutputRow(NamedTuple):
    """A row of the output, without what the env said last: it trains nothing, and SkyRL leaves it out too."""

    row: TrainerRow
    trajectory_id: TrajectoryID
    is_last: bool
    rewards: NDArray[np.float64]
    routing: ContextRouting | None


@named_keywords
def to_generator_output(
    trajectories: Iterable[Trajectory],
    *,
    filler_id: int,
    step_wise: bool = False,
    trajectory_ids: Sequence[TrajectoryID] | None = None,
    routing: Sequence[ContextRouting] | None = None,
    processor: ImageProcessor | None = None,
    temperature: float | None = 1.0,
) -> GeneratorOutput:
    """Return what a generator returns for these trajectories, in their order.

    One that is not usable is a masked row of the token `filler_id` with the reward 0 and the `stop_reason` "abort" (see
    `CountedEpisodes`). `rollout_sample_support` holds the payload `sampling_mask` if turns have it. Raises BatchError,
    with field and row, if something does not fit.

    Args:
        step_wise: SkyRL's `step_wise_trajectories`: a trajectory with several token sequences is as many rows, of which
            the last one has the whole reward, the only one that SkyRL then reads. Without, each turn's last token has
            the turn's reward.
        trajectory_ids: SkyRL's, one for each; None: made of `group_id` and `sample_index`.
        routing: the routed experts of whole contexts, one for each; None: they are not replayed.
        processor: that of the rollout, for images: it must make `pixel_values` and `image_grid_thw`.
        temperature: SkyRL's `generator.sampling_params.temperature`, by which it divides logits. Another one of a
            trajectory raises ConfigError; None does not check it.
    """
    episodes = require_trajectories(trajectories)
    with needs("skyrl", "A generator's output for SkyRL"):
        from skyrl.train.generators.base import TrajectoryID
    ids = trajectory_ids or [TrajectoryID(trajectory.group_id, trajectory.sample_index) for trajectory in episodes]
    if not episodes or len(ids) != len(episodes) or (routing is not None and len(routing) != len(episodes)):
        raise BatchError(f"got {len(episodes)} trajectories, {len(ids)} ids and {len(routing or episodes)} routings")
    routings: Sequence[ContextRouting | None] = routing or [None] * len(episodes)
    rows = [
        row
        for trajectory, name, its_routing in zip(episodes, ids, routings, strict=True)
        for row in _rows(trajectory, name, its_routing, step_wise, filler_id, processor, temperature)
    ]
    sequences = [row.row.sequence for row in rows]
    episodes = [row.row.trajectory for row in rows]
    return {
        "prompt_token_ids": [sequence.prompt_ids.tolist() for sequence in sequences],
        "response_ids": [sequence.response_ids.tolist() for sequence in sequences],
        "rewards": _finite("rewards", [row.rewards for row in rows]),
        "loss_masks": [sequence.response_mask.tolist() for sequence in sequences],
        "stop_reasons": [stop_reason(trajectory) for trajectory in episodes],
        "rollout_metrics": None,
        "rollout_logprobs": _finite("rollout_logprobs", [sequence.logprobs for sequence in sequences]),
        "trajectory_ids": [row.trajectory_id for row in rows],
        "trajectory_generation_times": [trajectory.seconds for trajectory in episodes],
        "trajectory_time_splits": {
            "llm": [trajectory.engine_seconds for trajectory in episodes],
            "env": [trajectory.env_seconds for trajectory in episodes],
        },
        "rollout_expert_indices": _expert_indices(rows),
        "rollout_sample_support": _sample_support([row.row for row in rows]),
        "is_last_step": [row.is_last for row in rows] if step_wise else None,
        "env_metrics": [_metrics(trajectory) for trajectory in episodes],
        **_pixels([row.row for row in rows], processor),
    }


def stop_reason(trajectory: Trajectory) -> str:
    """Return SkyRL's word for its end: "stop", "length" if a number of tokens cut it, or "abort"."""
    if not trajectory.usable:
        return BROKEN_OFF
    return "length" if trajectory.stop_reason in (StopReason.LENGTH, StopReason.BUDGET) else "stop"


def _rows(
    trajectory: Trajectory,
    name: TrajectoryID,
    routing: ContextRouting | None,
    step_wise: bool,
    filler_id: int,
    processor: ImageProcessor | None,
    temperature: float | None,
) -> list[_OutputRow]:
    advice = ", or set generator.step_wise_trajectories=true"
    rows = TrainerRow.all_of(
        trajectory, "SkyRL", several=step_wise, temperature=temperature, advice=advice, processor=processor
    )
    if not rows:
        return [_OutputRow(TrainerRow.masked(trajectory, filler_id), name, True, np.zeros(1), None)]
    placed = token_rewards(trajectory, "outcome" if step_wise else "turns")
    rewards = [part for part, sequence in zip(placed, trajectory.sequences, strict=True) if sequence.policy_tokens]
    trimmed = []
    for number, (row, earned) in enumerate(zip(rows, rewards, strict=True), start=1):
        row = row.without_tail()
        trimmed.append(_OutputRow(row, name, number == len(rows), earned[: row.sequence.response_tokens], routing))
    return trimmed


def _finite(field: str, rows: Sequence[NDArray[np.float64]]) -> list[list[float]]:
    for number, values in enumerate(rows):
        if not np.isfinite(values).all():
            wrong = values[~np.isfinite(values)][0]
            raise BatchError(f"field {field}: row {number} holds {wrong}, which is not finite")
    return [values.tolist() for values in rows]


def _expert_indices(rows: Sequence[_OutputRow]) -> list[NDArray[Any]] | None:
    """Return rows for every token but the last, in SkyRL's smallest type; a masked row has any valid experts."""
    for number, row in enumerate(rows):
        segments = row.row.sequence.segments
        if row.routing is None and any(ROUTED_EXPERTS in segment.aligned for segment in segments):
            raise BatchError(
                f"field rollout_expert_indices: row {number} has the routed experts of sampled tokens, and SkyRL "
                "replays those of the prompt too: play with ToolgymGenerator, or without that payload"
            )
    if all(row.routing is None for row in rows):
        return None
    from skyrl.backends.skyrl_train.utils.routed_experts import compact_routed_expert_indices

    indices = [
        None if row.routing is None else compact_routed_expert_indices(row.routing.rows(row.row.token_ids))
        for row in rows
    ]
    layers, count = next(array.shape[1:] for array in indices if array is not None)
    filler = np.tile(np.arange(count, dtype=np.uint8), (1, layers, 1))
    return [filler.copy() if array is None else array for array in indices]


def _sample_support(rows: Sequence[TrainerRow]) -> list[NDArray[np.int32]] | None:
    """Return the ids among which each token was sampled, `[response, most ids]`, and -1 elsewhere."""
    segments = [(number, segment) for number, row in enumerate(rows) for segment in row.sequence.policy_segments]
    if not any(SAMPLING_MASK in segment.aligned for _, segment in segments):
        return None
    for number, segment in segments:
        if SAMPLING_MASK not in segment.aligned:
            raise BatchError(f"field rollout_sample_support: a turn of row {number} has no payload {SAMPLING_MASK!r}")
    width = max(segment.aligned[SAMPLING_MASK].shape[1] for _, segment in segments)
    supports = []
    for row in rows:
        mask = row.sequence.response_mask.astype(bool)
        support = np.full((len(mask), width), -1, np.int32)
        if mask.any():
            support[mask] = joined_payload(SAMPLING_MASK, row.sequence.policy_segments, width)
        supports.append(support)
    return supports


def _pixels(rows: Sequence[TrainerRow], processor: ImageProcessor | None) -> dict[str, Any]:
    """Return the two fields of images, if any row has some; SkyRL wants a tensor in each row."""
    pixels = [row.pixel_inputs(processor) for row in rows]
    first = next(filter(None, pixels), None)
    if first is None:
        return {}
    if first.keys() != {"pixel_values", "image_grid_thw"}:
        raise BatchError(f"SkyRL takes pixel_values and image_grid_thw of images, and got {', '.join(sorted(first))}")
    return {name: [of_row.get(name, value[:0]) for of_row in pixels] for name, value in first.items()}


def _metrics(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "turns": len(trajectory.turns),
        "tool_calls": len(trajectory.tool_calls),
        "tool_errors": sum(record.status != "ok" for record in trajectory.tool_calls),
        "broken_off": not trajectory.usable,
        "ended_with": trajectory.stop_reason.value,
        "error": trajectory.error.message if trajectory.error is not None else None,
    }
