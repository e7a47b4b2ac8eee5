"""The golden set through NeMo-RL's message logs, which it joins itself: a message of the assistant's is trained on."""

from __future__ import annotations

import torch

from tests.rollout.adapters.golden import assert_golden, whole_row
from toolgym.rollout.adapters.nemo_rl import to_batch


def row_of(log, weight, reward):
    ids = [message["token_ids"] for message in log]
    masks = [torch.full_like(one["token_ids"], one["role"] == "assistant" and weight > 0) for one in log]
    logprobs = [one.get("generation_logprobs", torch.zeros(len(one["token_ids"]))) for one in log]
    return whole_row(torch.cat(ids), torch.cat(masks), torch.cat(logprobs), reward)


def test_the_golden_set(tokenizer):
    def read(trajectories):
        batch = to_batch(trajectories, tokenizer=tokenizer)
        columns = (
            batch["message_log"],
            batch["loss_multiplier"],
            batch["total_reward"],
        )
        return [[row_of(*row)] for row in zip(*columns, strict=True)]

    assert_golden(read, several_rows=False)
