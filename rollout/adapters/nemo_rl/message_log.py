"""Trajectories as NeMo-RL's message logs: a message for each span of tokens, trained on where it is the assistant's.

NeMo-RL makes the mask of the messages' roles, and joins and pads them on the right itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError, named_keywords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ENV = "environment"
"""The role of what NeMo-RL does not train on."""


def to_message_log(trajectory: Trajectory, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """The message log of a trajectory: its prompt, then a message for each span of the policy's or the env's tokens.

    Args:
        trajectory: with one token sequence.
        tokenizer: decodes the texts, which NeMo-RL only shows.

    Returns:
        Messages with `role` (`user` for the prompt, then `assistant` or `environment`), `content`, `token_ids` int64
        `[tokens]`, and for the assistant's `generation_logprobs` float32 `[tokens]`.

    Raises:
        ConfigError: something else than a trajectory was given.
        BatchError: there is not exactly one token sequence in which the policy sampled something.
    """
    import torch

    [trajectory] = require_trajectories([trajectory])
    sequences = [one for one in trajectory.sequences if one.policy_tokens]
    if len(sequences) != 1:
        raise BatchError(
            f"trajectory {trajectory.id} has {len(sequences)} token sequences with tokens that the policy sampled, and "
            "a message log is exactly one: play with history='append' and no context policy that revises messages"
        )
    [sequence] = sequences
    spans: list[tuple[str, Any, Any]] = [("user", sequence.prompt_ids, None)]
    for one in sequence.segments:
        if len(one):
            spans.append(("assistant", one.token_ids, one.logprobs) if one.is_policy else (_ENV, one.token_ids, None))
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
    """What NeMo-RL's rollouts return for such episodes; give it to `BatchedDataDict`.

    A trajectory that may not be trained on, does not count, or in which the policy sampled nothing keeps its place with
    the `loss_multiplier` 0. NeMo-RL takes the mean of a group over all of its rows; so such a one has the mean reward
    of those of its group that count, which changes nothing about that mean.

    Args:
        trajectories: of whole groups, in order.
        tokenizer: see `to_message_log`.
        task_name: of all of them.

    Returns:
        `message_log`, `extra_env_info`, `task_name` and `idx` as lists; `length` int64, `loss_multiplier` and
        `total_reward` float32 and `truncated` bool, each `[trajectories]`.

    Raises:
        ConfigError: something else than trajectories was given.
        BatchError: one of them has several token sequences.
    """
    import torch

    given = require_trajectories(trajectories)
    usable = [one.usable for one in given]
    rewards = defaultdict(list)
    for one, use in zip(given, usable, strict=True):
        if use:
            rewards[one.group_id].append(float(one.reward))
    means = {name: sum(values) / len(values) for name, values in rewards.items()}
    logs = [
        to_message_log(one, tokenizer) if use else _masked(tokenizer) for one, use in zip(given, usable, strict=True)
    ]
    return {
        "message_log": logs,
        "length": torch.tensor([sum(len(message["token_ids"]) for message in log) for log in logs]),
        "loss_multiplier": torch.tensor([float(use) for use in usable]),
        "total_reward": torch.tensor(
            [float(one.reward) if use else means.get(one.group_id, 0.0) for one, use in zip(given, usable, strict=True)]
        ),
        "truncated": torch.tensor([one.stop_reason.truncated for one in given], dtype=torch.bool),
        "extra_env_info": [{"trajectory_id": one.id, "stop_reason": one.stop_reason.value} for one in given],
        "task_name": [task_name] * len(given),
        "idx": list(range(len(given))),
    }


def _masked(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """A log that keeps a row's place: two tokens, the second of them the assistant's."""
    import torch

    ids = torch.tensor([tokenizer.eos_token_id or 0])
    return [
        {"role": "user", "content": "", "token_ids": ids},
        {"role": "assistant", "content": "", "token_ids": ids, "generation_logprobs": torch.zeros(1)},
    ]
