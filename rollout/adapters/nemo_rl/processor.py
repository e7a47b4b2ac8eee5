"""`TaskProcessor`: rows of tasks as NeMo-RL's `DatumSpec`s (`nemo_rl/data/interfaces.py`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolgym.envs.tasks.task import Task
from toolgym.rollout.adapters.task_rows import task_column, tools_of
from toolgym.rollout.tokens.renderer import ChatRenderer
from toolgym.tools.keywords import named_keywords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
        ids = renderer.prompt(task.messages)
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
