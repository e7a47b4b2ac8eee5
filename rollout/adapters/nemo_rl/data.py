"""Trajectories as NeMo-RL's message logs, and rows of tasks as its `DatumSpec`s (`nemo_rl/data/interfaces.py`).

A log has a message for each span of tokens. NeMo-RL trains on the assistant's, and joins and pads them itself.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.task_rows import task_column, tools_of
from toolgym.rollout.adapters.trainer_row import TrainerRow
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ENV = "environment"


def to_message_log(
    trajectory: Trajectory, tokenizer: PreTrainedTokenizerBase, *, temperature: float | None = 1.0
) -> list[dict[str, Any]]:
    """Return the message log of a trajectory: its prompt, then a message for each span of policy's or env's tokens.

    Messages have `role`, `content`, `token_ids` int64 `[tokens]`, and for the assistant's `generation_logprobs` float32
    `[tokens]`. `temperature` is NeMo-RL's `policy.generation.temperature`, by which it divides logits; None does not
    check it. Raises BatchError unless there is exactly one token sequence in which the policy sampled something, and
    ConfigError if it was sampled at another temperature.
    """
    import torch

    rows = TrainerRow.all_of(trajectory, "NeMo-RL", several=False, temperature=temperature)
    if not rows:
        raise BatchError(f"trajectory {trajectory.id} ({trajectory.stop_reason.value}) has no tokens to train on")
    sequence = rows[0].sequence
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
    trajectories: Iterable[Trajectory],
    *,
    tokenizer: PreTrainedTokenizerBase,
    task_name: str = "toolgym",
    temperature: float | None = 1.0,
) -> dict[str, Any]:
    """Return what NeMo-RL's rollouts return for trajectories of whole groups, in order; give it to `BatchedDataDict`.

    A trajectory that is not usable keeps its place with the `loss_multiplier` 0. NeMo-RL takes the mean of a group over
    all of its rows; so such a row has the mean reward of the usable ones of its group, which keeps that mean. Raises
    BatchError if one has several token sequences, and ConfigError if one was sampled at another temperature than
    NeMo-RL's `policy.generation.temperature`.

    Returns:
        `message_log`, `extra_env_info`, `task_name` and `idx` as lists; `length` int64, `loss_multiplier` and
        `total_reward` float32 and `truncated` bool, each `[trajectories]`.
    """
    import torch

    episodes = require_trajectories(trajectories)
    rewards = defaultdict(list)
    for episode in episodes:
        if episode.usable:
            rewards[episode.group_id].append(float(episode.reward))
    means = {name: sum(values) / len(values) for name, values in rewards.items()}
    logs = [
        to_message_log(episode, tokenizer, temperature=temperature) if episode.usable else _masked(tokenizer)
        for episode in episodes
    ]
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
    import torch

    ids = torch.tensor([tokenizer.eos_token_id or 0])
    return [
        {"role": "user", "content": "", "token_ids": ids},
        {"role": "assistant", "content": "", "token_ids": ids, "generation_logprobs": torch.zeros(1)},
    ]


log = logging.getLogger("toolgym.rollout.adapters.nemo_rl")

CUT = 4
"""Tokens that a prompt keeps which is too long, as in NeMo-RL's own processors; its row is masked."""


class TaskProcessor:
    """A task data processor of NeMo-RL for the tasks of an env: the prompt is rendered with the env's tools.

    By `task_name` NeMo-RL finds the environment. Raises ConfigError if the env cannot be made.
    """

    @named_keywords
    def __init__(
        self,
        env: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        task_name: str = "toolgym",
    ) -> None:
        self._tools = tools_of(env, env_kwargs)
        self._template_kwargs = dict(template_kwargs or {})
        self._task_name = task_name

    def __call__(
        self,
        datum_dict: Mapping[str, Any],
        task_data_spec: Any,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int | None,
        idx: int,
    ) -> dict[str, Any]:
        """Make a `DatumSpec` of a row (see `Task.from_row`); one with a prompt above `max_seq_length` is masked."""
        import torch

        task = Task.from_row(datum_dict)
        renderer = ChatRenderer(tokenizer, self._tools, self._template_kwargs)
        ids = renderer.prompt(task.messages, examples=task.messages)
        fits = max_seq_length is None or len(ids) <= max_seq_length
        if not fits:
            log.warning("row %s is masked: its prompt has %s tokens, of at most %s", idx, len(ids), max_seq_length)
            ids = ids[:CUT]
        text = renderer.decode(ids)
        return {
            "message_log": [{"role": "user", "content": text, "token_ids": torch.tensor(ids, dtype=torch.int64)}],
            "length": len(ids),
            "extra_env_info": task_column(task),
            "loss_multiplier": float(fits),
            "idx": idx,
            "task_name": self._task_name,
        }
