"""`to_data_proto`: trajectories as the padded batch that verl's own loops give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolgym.rollout.adapters.verl.rows import Row, metrics, rows_of
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, require_whole_number

if TYPE_CHECKING:
    from verl import DataProto

_ALWAYS = ("turn_scores", "tool_rewards", "min_global_steps", "max_global_steps", "extras")
"""Fields that verl's own batches always have (`AgentLoopWorker._postprocess`)."""


def to_data_proto(
    trajectories: Sequence[Trajectory],
    *,
    prompt_length: int,
    response_length: int,
    pad_token_id: int,
    logprobs: bool = True,
) -> DataProto:
    """A batch for verl's V0 trainer, recipes and losses, in order; its tensors equal those that verl makes, to the bit.

    Failed episodes are rows whose mask is 0; give `algorithm.adv_estimator=toolgym_grpo` to leave them out of their
    group's statistics. `uid` is the trajectory's `group_id`, by which verl groups.

    Args:
        trajectories: at least one, each of one sequence.
        prompt_length: width of the prompts, which are padded on the left.
        response_length: width of the responses, which are padded on the right, and cut.
        pad_token_id: what is padded with.
        logprobs: whether to give `rollout_log_probs`.

    Returns:
        int64 `prompts` `[batch, prompt_length]`, `responses` and `response_mask` `[batch, response_length]`,
        `input_ids`, `attention_mask` and `position_ids` `[batch, prompt_length + response_length]`, and float32
        `rollout_log_probs` and `rm_scores` `[batch, response_length]`. The rest is in `non_tensor_batch`, as in verl's.

    Raises:
        ConfigError: there are no trajectories, a prompt is too long, or a trajectory has several sequences; names it.
        MissingExtraError: verl is not installed, or too old.
    """
    with needs("verl", "A batch for verl"):
        from verl import DataProto

    for name, value in (("prompt_length", prompt_length), ("response_length", response_length)):
        require_whole_number(name, value, at_least=1)
    if not trajectories:
        raise ConfigError("expected trajectories, got none: verl has no empty batch")
    rows = []
    for trajectory in trajectories:
        found = rows_of(
            trajectory, prompt_length=prompt_length, response_length=response_length, pad_token_id=pad_token_id
        )
        if len(found) > 1:
            raise ConfigError(
                f"trajectory {trajectory.id} (task {trajectory.task_id!r}) has {len(found)} token sequences, and a "
                "row of verl's batch holds one: roll out with history='append' and no context policy that rewrites"
            )
        rows += found
    return DataProto.from_dict(
        tensors=_tensors(rows, prompt_length, response_length, pad_token_id, logprobs),
        non_tensors=_non_tensors(rows, [one.group_id for one in trajectories]),
        meta_info={
            "metrics": [metrics(trajectory) for trajectory in trajectories],
            "reward_extra_keys": list(rows[0].extra_fields["reward_extra_info"]),
        },
    )


def _tensors(
    rows: Sequence[Row], prompt_length: int, response_length: int, pad: int, logprobs: bool
) -> dict[str, torch.Tensor]:
    prompts, prompt_mask = _padded([row.prompt_ids for row in rows], prompt_length, pad, left=True)
    responses, attended = _padded([row.response_ids for row in rows], response_length, pad)
    response_mask, _ = _padded([row.response_mask for row in rows], response_length, 0)
    attention_mask = np.concatenate([prompt_mask, attended], axis=1)
    scores = np.zeros(responses.shape, np.float32)
    scores[np.arange(len(rows)), attended.sum(axis=1) - 1] = [row.reward for row in rows]
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": response_mask,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": attention_mask,
        "position_ids": np.clip(attention_mask.cumsum(axis=1) - 1, 0, None),
        "rm_scores": scores,
    }
    if logprobs:
        tensors["rollout_log_probs"], _ = _padded([row.logprobs for row in rows], response_length, 0, np.float32)
    return {name: torch.from_numpy(array) for name, array in tensors.items()}


def _padded(
    rows: Sequence[NDArray[Any]], width: int, value: int, dtype: Any = np.int64, *, left: bool = False
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The rows as one array `[rows, width]`, and 1 wherever one of them has a value."""
    array = np.full((len(rows), width), value, dtype)
    there = np.zeros((len(rows), width), np.int64)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        array[number, place], there[number, place] = row, 1
    return array, there


def _non_tensors(rows: Sequence[Row], group_ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    fields: dict[str, NDArray[Any]] = {
        "__num_turns__": np.array([row.num_turns for row in rows], np.int32),
        "uid": _objects(group_ids),
        "multi_modal_inputs": _objects([{} for _ in rows]),
    }
    infos = [row.extra_fields["reward_extra_info"] for row in rows]
    fields |= {name: np.array([info[name] for info in infos]) for name in infos[0]}
    names = dict.fromkeys([*rows[0].extra_fields, *_ALWAYS])
    return fields | {name: _objects([row.extra_fields.get(name) for row in rows]) for name in names}


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array
