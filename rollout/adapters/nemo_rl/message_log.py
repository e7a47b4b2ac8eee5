"""Trajectories as NeMo-RL's message logs: a message for each span of tokens, trained on if it is the assistant's.

NeMo-RL makes the mask of the messages' roles, and joins and pads them on the right itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from toolgym.rollout.adapters.trainer_row import TrainerRow
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ENV = "environment"


def to_message_log(trajectory: Trajectory, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Return the message log of a trajectory: its prompt, then a message for each span of policy's or env's tokens.

    Returns:
        Messages with `role` (`user` for the prompt, then `assistant` or `environment`), `content`, `token_ids` int64
        `[tokens]`, and for the assistant's `generation_logprobs` float32 `[tokens]`.

    Raises:
        BatchError: there is not exactly one token sequence in which the policy sampled something.
    """
    rows = TrainerRow.all_of(trajectory, "NeMo-RL", several=False)
    if not rows:
        raise BatchError(f"trajectory {trajectory.id} ({trajectory.stop_reason.value}) has no tokens to train on")
    return _messages(rows[0].sequence, tokenizer)


def _messages(sequence: TokenSequence, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    import torch

    spans: list[tuple[str, Any, Any]] = [("user", sequence.prompt_ids, None)]
    for segment in sequence.segments:
        if len(segment):
            policy = segment.is_policy
            spans.append(("assistant" if policy else _ENV, segment.token_ids, segment.logprobs if policy else None))
    log: list[dict[str, Any]] = []
    for role, ids, logprobs in spans:
        text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        log.append({"role": role, "content": text, "token_ids": torch.tensor(ids.tolist(), dtype=torch.int64)})
        if logprobs is not None:
            log[-1]["generation_logprobs"] = torch.tensor(logprobs.tolist(), dtype=torch.float32)
    return log


@named_keywords
def to_batch(
    trajectories: Iterable[Trajectory], *, tokenizer: PreTrainedTokenizerBase, task_name: str = "toolgym"
) -> dict[str, Any]:
    """Return what NeMo-RL's rollouts return for trajectories of whole groups, in order; give it to `BatchedDataDict`.

    A trajectory that is not usable keeps its place with the `loss_multiplier` 0. NeMo-RL takes the mean of a group over
    all of its rows; so such a row has the mean reward of the usable ones of its group, which keeps that mean.

    Returns:
        `message_log`, `extra_env_info`, `task_name` and `idx` as lists; `length` int64, `loss_multiplier` and
        `total_reward` float32 and `truncated` bool, each `[trajectories]`.

    Raises:
        BatchError: a trajectory has several token sequences.
    """
    import torch

    episodes = require_trajectories(trajectories)
    rewards = defaultdict(list)
    for episode in episodes:
        if episode.usable:
            rewards[episode.group_id].append(float(episode.reward))
    means = {name: sum(values) / len(values) for name, values in rewards.items()}
    logs = [to_message_log(episode, tokenizer) if episode.usable else _masked(tokenizer) for episode in episodes]
    return {
        "message_log": logs,
        "length": torch.tensor([sum(len(message["token_ids"]) for message in log) for log in logs]),
        "loss_multiplier": torch.tensor([float(episode.usable) for episode in episodes]),
        "total_reward": torch.tensor(
            [float(episode.reward) if episode.usable else means.get(episode.group_id, 0.0) for episode in episodes]
        ),
        "truncated": torch.tensor([episode.stop_reason.truncated for episode in episodes], dtype=torch.bool),
        "extra_env_info": [
            {"trajectory_id": episode.id, "stop_reason": episode.stop_reason.value} for episode in episodes
        ],
        "task_name": [task_name] * len(episodes),
        "idx": list(range(len(episodes))),
    }


def _masked(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Return a log that keeps a row's place: two tokens, the second of them the assistant's."""
    import torch

    ids = torch.tensor([tokenizer.eos_token_id or 0])
    return [
        {"role": "user", "content": "", "token_ids": ids},
        {"role": "assistant", "content": "", "token_ids": ids, "generation_logprobs": torch.zeros(1)},
    ]
