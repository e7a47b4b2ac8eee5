"""`to_data_proto`: trajectories as the padded batch that verl's own loops give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolgym.rollout.adapters.verl.rows import VerlRow, metrics, rows_of
from toolgym.rollout.adapters.versions import needs
from toolgym.rollout.batch.fields import FIELDS
from toolgym.rollout.batch.make import padded, policy_places
from toolgym.rollout.batch.row import RowSource
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.trajectory.distribution import UNSCALED
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, require_whole_number

if TYPE_CHECKING:
    from verl import DataProto

_ALWAYS = ("turn_scores", "tool_rewards", "min_global_steps", "max_global_steps", "extras")
"""Fields that verl's own batches always have (`AgentLoopWorker._postprocess`)."""

_TENSORS = ("prompts", "responses", "response_mask", "input_ids", "attention_mask", "rollout_log_probs")


def to_data_proto(
    trajectories: Sequence[Trajectory],
    *,
    prompt_length: int,
    response_length: int,
    pad_token_id: int,
    logprobs: bool = True,
    processor: ImageProcessor | None = None,
    temperature: float | None = 1.0,
) -> DataProto:
    """Return a batch for verl's V0 trainer, recipes and losses, in order; its tensors equal verl's own to the bit.

    Failed episodes are rows whose mask is 0; give `algorithm.adv_estimator=toolgym_grpo` to leave them out of their
    group's statistics. `temperature` is verl's `rollout.temperature`, by which its actor divides logits; None does not
    check it. `uid` is the trajectory's `group_id`. Prompts are padded on the left, responses on the right,
    and cut. Raises ConfigError if a prompt is too long, or a trajectory has several sequences or another temperature.
    With the rollout's `processor` of images there are `multi_modal_inputs`, and `position_ids` are
    `[batch, 4, prompt_length + response_length]` if verl bound `get_rope_index` to it.

    Returns:
        int64 `prompts` `[batch, prompt_length]`, `responses` and `response_mask` `[batch, response_length]`,
        `input_ids`, `attention_mask` and `position_ids` `[batch, prompt_length + response_length]`, and float32
        `rollout_log_probs` and `rm_scores` `[batch, response_length]`. The rest is in `non_tensor_batch`, as in verl's.
    """
    with needs("verl", "A batch for verl"):
        from verl import DataProto

    for name, value in (("prompt_length", prompt_length), ("response_length", response_length)):
        require_whole_number(name, value, at_least=1)
    if not trajectories:
        raise ConfigError("expected trajectories, got none: verl has no empty batch")
    rows = []
    for trajectory in trajectories:
        parts = rows_of(
            trajectory,
            prompt_length=prompt_length,
            response_length=response_length,
            pad_token_id=pad_token_id,
            processor=processor,
            temperature=temperature,
        )
        if len(parts) > 1:
            raise ConfigError(
                f"trajectory {trajectory.id} (task {trajectory.task_id!r}) has {len(parts)} token sequences, and a "
                "row of verl's batch holds one: roll out with history='append' and no context policy that rewrites"
            )
        rows += parts
    batch_rows = [
        RowSource(trajectory, row.sequence, trajectory.id, number, 0, {}, np.zeros(0), UNSCALED)
        for number, (trajectory, row) in enumerate(zip(trajectories, rows, strict=True))
    ]
    widths = (prompt_length, response_length)
    names = _TENSORS if logprobs else _TENSORS[:-1]
    sampled = policy_places(batch_rows, response_length)
    tensors = {
        field.name: padded(field, batch_rows, widths, pad_token_id, sampled) for field in FIELDS if field.name in names
    }
    masked = zip(rows, tensors["input_ids"], tensors["attention_mask"], strict=True)
    tensors["position_ids"] = torch.stack([row.position_ids(ids, mask, processor) for row, ids, mask in masked])
    scores = torch.zeros((len(rows), response_length))
    for number, row in enumerate(rows):
        scores[number, row.sequence.response_tokens - 1] = row.reward
    return DataProto.from_dict(
        tensors={**tensors, "rm_scores": scores},
        non_tensors=_non_tensors(rows, [trajectory.group_id for trajectory in trajectories]),
        meta_info={
            "metrics": [metrics(trajectory) for trajectory in trajectories],
            "reward_extra_keys": list(rows[0].extra_fields["reward_extra_info"]),
        },
    )


def _non_tensors(rows: Sequence[VerlRow], group_ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    fields: dict[str, NDArray[Any]] = {
        "__num_turns__": np.array([row.num_turns for row in rows], np.int32),
        "uid": _objects(group_ids),
        "multi_modal_inputs": _objects([row.multi_modal_inputs() for row in rows]),
    }
    infos = [row.extra_fields["reward_extra_info"] for row in rows]
    fields |= {name: np.array([info[name] for info in infos]) for name in infos[0]}
    names = dict.fromkeys([*rows[0].extra_fields, *_ALWAYS])
    return fields | {name: _objects([row.extra_fields.get(name) for row in rows]) for name in names}


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array
