"""`queue_rows`: trajectories as the rows that verl's V1 trainer reads from its TransferQueue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from toolgym.rollout.adapters.transfer_queue import QueueRow
from toolgym.rollout.adapters.verl.rows import VerlRow, metrics, rows_of, versions_of
from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.trajectory.trajectory import Trajectory


def queue_rows(
    trajectory: Trajectory,
    *,
    response_length: int,
    pad_token_id: int,
    global_steps: int,
    columns: Mapping[str, Any] | None = None,
    versions: tuple[int | None, int | None] | None = None,
    num_preempted: int = -1,
    routed_experts: Any = None,
    logprobs: bool = True,
    processor: ImageProcessor | None = None,
    temperature: float | None = 1.0,
) -> list[QueueRow]:
    """Return the rows of a trajectory, with the fields, keys and tags that verl's own worker gives them.

    The keys are `{uid}_{session}_{number}`, where the uid is the trajectory's `group_id` and the session its
    `sample_index`. (Source: `AgentLoopWorkerTQ._agent_loop_postprocess` in `verl/trainer/ppo/v1/agent_loop_tq.py`,
    0.9.1.) One that is not usable is a row whose mask is 0.

    Args:
        columns: further fields: the prompt's row. None: `data_source` and `index`, as the trajectory has them.
        versions: the first and last version of the weights; None: as the tokens say, else `global_steps`.
        num_preempted: how often the server put requests off; -1: not known.
        routed_experts: `[tokens, layers, experts]` of a trajectory of one sequence; None: not kept.
        logprobs: whether to give `rollout_log_probs`. verl wants them in all rows, or in none.
        processor: that of the rollout, for a model that takes images: it makes `multi_modal_inputs`, and
            `position_ids` `[4, prompt + response]` if verl bound `get_rope_index` to it.
        temperature: verl's `rollout.temperature`, by which its actor divides logits; None does not check it.

    Returns:
        For each sequence a row: int64 `prompts` `[prompt]`, `responses`, `response_mask` and `loss_mask` `[response]`,
        `input_ids` and `position_ids` `[prompt + response]`, float32 `rm_scores` (the reward at the last token) and
        `rollout_log_probs` `[response]`, and what is no tensor.
    """
    uid, session = trajectory.group_id, trajectory.sample_index
    if columns is None:
        columns = {"data_source": trajectory.source, "index": trajectory.task_index}
    columns = {**columns, "uid": uid, "session_id": session, "global_steps": global_steps}
    first, last = versions or versions_of(trajectory)
    rows = rows_of(
        trajectory,
        response_length=response_length,
        pad_token_id=pad_token_id,
        global_steps=(global_steps if first is None else first, global_steps if last is None else last),
        processor=processor,
        temperature=temperature,
    )
    queued = []
    for number, row in enumerate(rows):
        fields = _fields(row, logprobs, processor)
        if routed_experts is not None and len(rows) == 1:
            fields["routed_experts"] = _of_all_tokens(routed_experts, len(fields["input_ids"]))
        fields["metrics"] = metrics(trajectory, num_preempted)
        prompt, response = len(row.sequence.prompt_ids), row.sequence.response_tokens
        tag = {
            "status": "success",
            "prompt_len": prompt,
            "response_len": response,
            "seq_len": prompt + response,
            "global_steps": global_steps,
            **{name: row.extra_fields[name] for name in ("min_global_steps", "max_global_steps")},
        }
        queued.append(QueueRow(f"{uid}_{session}_{number}", {**fields, **columns}, tag))
    return queued


def _fields(row: VerlRow, logprobs: bool, processor: ImageProcessor | None) -> dict[str, Any]:
    sequence = row.sequence
    prompts, responses, response_mask = (
        torch.tensor(values, dtype=torch.int64)
        for values in (sequence.prompt_ids, sequence.response_ids, sequence.response_mask)
    )
    rm_scores = torch.zeros(len(responses), dtype=torch.float32)
    rm_scores[-1] = row.reward
    input_ids = torch.cat([prompts, responses])
    fields = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": response_mask,
        "loss_mask": response_mask,
        "input_ids": input_ids,
        "position_ids": row.position_ids(input_ids, torch.ones_like(input_ids), processor),
        "rm_scores": rm_scores,
        "num_turns": row.num_turns,
        "extra_fields": row.extra_fields,
        "multi_modal_inputs": row.multi_modal_inputs(),
    }
    if logprobs:
        fields["rollout_log_probs"] = torch.tensor(sequence.logprobs, dtype=torch.float32)
    return fields


def _of_all_tokens(experts: Any, tokens: int) -> torch.Tensor:
    """Return experts for all tokens of a row: 0 for those behind the last sampled one, which the engine did not see."""
    known = torch.as_tensor(experts, dtype=torch.int16)[:tokens]
    padded = known.new_zeros((tokens, *known.shape[1:]))
    padded[: len(known)] = known
    return padded
