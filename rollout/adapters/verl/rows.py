"""Rows of verl, of one trajectory, the same for its loop and its batches, and its validation over them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolgym.rollout.adapters.trainer_row import TrainerRow
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

_OF_REWARD = ("acc", "reward", "score")


@dataclass(frozen=True)
class VerlRow:
    """One sequence as a row of verl's, without padding; a row without a response would have no place for its reward."""

    sequence: TokenSequence
    reward: float
    num_turns: int
    extra_fields: dict[str, Any]
    pixel_inputs: Mapping[str, Tensor]

    def position_ids(self, input_ids: Tensor, attention_mask: Tensor, processor: ImageProcessor | None) -> Tensor:
        """Return the positions of ids `[tokens]` as verl's loops do it: int64 `[tokens]`, or `[4, tokens]`, of the text
        and of images by time, height and width, if verl has bound the model's `get_rope_index` to its processor."""
        positions = (attention_mask.cumsum(dim=0) - 1).clamp(min=0)  # verl's go on in the padding
        if processor is None or not hasattr(processor.processor, "get_rope_index"):
            return positions
        theirs = processor.processor
        options = {"mm_token_type_ids": (input_ids == processor.image_token_id).long()[None]}
        if "mm_token_type_ids" not in inspect.signature(theirs.get_rope_index).parameters:
            options = {}
        rotary, _ = theirs.get_rope_index(
            input_ids=input_ids[None],
            attention_mask=attention_mask[None],
            image_grid_thw=self.pixel_inputs.get("image_grid_thw"),
            video_grid_thw=None,
            **options,
        )
        import torch

        return torch.cat([positions.where(attention_mask == 1, 1)[None], rotary[:, 0]])

    def multi_modal_inputs(self) -> dict[str, Tensor]:
        """Return what verl hands to the model, and the number of patches of each image, which verl counts."""
        inputs = dict(self.pixel_inputs)
        if "image_grid_thw" in inputs:
            frames, height, width = inputs["image_grid_thw"].T
            inputs["images_seqlens"] = (height * width).repeat_interleave(frames)
        return inputs


def rows_of(
    trajectory: Trajectory,
    *,
    response_length: int,
    pad_token_id: int,
    prompt_length: int | None = None,
    global_steps: tuple[int | None, int | None] | None = None,
    processor: ImageProcessor | None = None,
    temperature: float | None = 1.0,
) -> list[VerlRow]:
    """Return a row for each sequence with tokens of the policy; for an episode that is not usable one whose mask is 0.

    A response keeps `response_length` tokens; the runner's own limits allow no more. A prompt above `prompt_length`,
    or an image that would be cut, raises ConfigError. `global_steps` are the first and last version of the weights;
    None: see `versions_of`. `processor` makes pixel inputs of images. `temperature`: see `require_known_distribution`.
    """
    rows = TrainerRow.all_of(trajectory, "verl", several=True, temperature=temperature, processor=processor)
    masked = not rows
    verl_rows = []
    for row in rows or [TrainerRow.masked(trajectory, pad_token_id, keep_tokens=processor is None)]:
        prompt = row.sequence.prompt_ids
        if prompt_length is not None and len(prompt) > prompt_length:
            if not masked:
                raise ConfigError(
                    f"trajectory {trajectory.id} (task {trajectory.task_id!r}): prompt_ids has {len(prompt)} tokens, "
                    f"and prompt_length allows {prompt_length}: shorten the task, or raise prompt_length"
                )
            prompt = prompt[-prompt_length:]
        segments, left = [], response_length
        for segment in row.sequence.segments:
            segments.append(segment[:left])
            left -= len(segments[-1])
        images = row.sequence.images
        if images and images[-1].start + images[-1].tokens > len(prompt) + response_length:
            raise ConfigError(
                f"trajectory {trajectory.id} (task {trajectory.task_id!r}): response_length={response_length} would "
                "cut an image: raise it, or limit the rollout"
            )
        verl_rows.append(
            VerlRow(
                sequence=TokenSequence(prompt, tuple(segments), images=images),
                reward=row.reward,
                num_turns=max(2 * len(trajectory.turns), 1),
                extra_fields=extra_fields(trajectory, global_steps),
                pixel_inputs=row.pixel_inputs(processor),
            )
        )
    return verl_rows


def extra_fields(trajectory: Trajectory, global_steps: tuple[int | None, int | None] | None = None) -> dict[str, Any]:
    first, last = global_steps or versions_of(trajectory)
    return {
        "turn_scores": [0.0 if turn.reward is None else float(turn.reward) for turn in trajectory.turns],
        "tool_rewards": [float(record.reward) for record in trajectory.tool_calls],
        "reward_extra_info": reward_extra_info(trajectory),
        "min_global_steps": first,
        "max_global_steps": last,
        "trajectory_id": trajectory.id,
        "env_id": trajectory.env_id,
        "stop_reason": trajectory.stop_reason.value,
        "error": trajectory.error.message if trajectory.error is not None else None,
    }


def reward_extra_info(trajectory: Trajectory) -> Mapping[str, float | None]:
    """Return numbers about an episode under the same names for every trajectory, as verl demands it.

    Of one that does not count `acc` is 0, since DAPO's filter needs a number, and `acc_counted` is None, by which
    `without_failures` leaves it out of verl's validation. An evaluation counts an episode without a token.
    """
    masked = not trajectory.in_group_statistics
    reward = 0.0 if masked else float(trajectory.reward)
    score = trajectory.metrics.get("score", 0.0)
    return {
        "acc": reward,  # verl's name for the number that it logs as `val-core`
        "acc_counted": None if masked else reward,
        "score": float(score) if isinstance(score, int | float) and not masked else 0.0,
        "policy_turns": float(len(trajectory.turns)),
        "tool_calls": float(len(trajectory.tool_calls)),
        "tool_errors": float(sum(record.status != "ok" for record in trajectory.tool_calls)),
        "truncated": float(trajectory.stop_reason.truncated),
        "failed": float(trajectory.failed),
    }


def metrics(trajectory: Trajectory, num_preempted: int = -1) -> dict[str, float]:
    """Return verl's `AgentLoopMetrics` of one trajectory; -1 preemptions: not known."""
    return {
        "generate_sequences": trajectory.engine_seconds,
        "tool_calls": trajectory.env_seconds,
        "compute_score": 0.0,
        "num_preempted": num_preempted,
    }


def versions_of(trajectory: Trajectory) -> tuple[int | None, int | None]:
    """Return the lowest and highest weight version of a trajectory's tokens; None if they are no numbers."""
    versions = {
        version
        for sequence in trajectory.sequences
        for segment in sequence.policy_segments
        for version, _ in segment.version_runs
    }
    if not versions or not all(version.isdecimal() for version in versions):
        return None, None
    return min(map(int, versions)), max(map(int, versions))


def without_failures(process: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap verl's `process_validation_metrics`, which leaves None out, to see our failed episodes' rewards as None.

    verl's V1 trainer puts a 0 in for each episode without an `acc` (`expected_acc_counts`). Rows of other loops, which
    lack `acc_counted`, stay as they are.
    """

    @functools.wraps(process)
    def processed(
        data_sources: Sequence[Any], sample_uids: Sequence[Any], infos_dict: Mapping[str, Sequence[Any]], **options: Any
    ) -> Any:
        # Both are in every row of ours, and verl says None for a row that lacks them.
        counted, ours = infos_dict.get("acc_counted"), infos_dict.get("policy_turns")
        if counted is None or ours is None:
            return process(data_sources, sample_uids, infos_dict, **options)
        failed = [turns is not None and acc is None for turns, acc in zip(ours, counted, strict=True)]
        infos = {
            name: [None if out else value for out, value in zip(failed, values, strict=True)]
            if name in _OF_REWARD
            else values
            for name, values in infos_dict.items()
        }
        if options.get("expected_acc_counts"):
            played = {str(source) for source, turns in zip(data_sources, ours, strict=True) if turns is not None}
            expected = options["expected_acc_counts"].items()
            options["expected_acc_counts"] = {key: number for key, number in expected if key[0] not in played}
        return process(data_sources, sample_uids, infos, **options)

    return processed
