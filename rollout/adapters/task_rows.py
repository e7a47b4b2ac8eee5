"""Tasks of trainers' rows, and rows of tasks for trainers whose env runs elsewhere."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.envs.served.catalog import load_env
from toolgym.envs.tasks.row_fields import TASK_COLUMN, mapping
from toolgym.envs.tasks.task import Task
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError
from toolgym.tools.schema import ToolSchema


def task_of_row(row: Mapping[str, Any]) -> Task:
    """Return the task of a row of verl's `RLHFDataset` or of SkyRL's; raises ConfigError if it has another shape.

    `raw_prompt`, `data_source`, `reward_model` (SkyRL's `reward_spec`), `extra_info` and `tools_kwargs` (or
    `extra_info.tools_kwargs`) are read as `Task.from_row` reads them: objects or JSON texts, or all of it from the
    column `toolgym_task`. Arrow unites the structs of all rows and fills up with None, which a text is safe from.
    """
    index = str(row.get("index", ""))
    if row.get(TASK_COLUMN) is not None:
        return Task.from_row(row, id=index)
    if "raw_prompt" not in row:
        raise ConfigError(
            f"expected a row of verl's with 'raw_prompt', got the fields {', '.join(sorted(row)) or 'none'}"
        )
    extra = dict(mapping("extra_info", row.get("extra_info")))
    extra["tools_kwargs"] = row.get("tools_kwargs") or extra.get("tools_kwargs")
    return Task.from_row(
        {
            "prompt": list(row["raw_prompt"]),
            "data_source": row.get("data_source"),
            "reward_model": row.get("reward_model") or row.get("reward_spec"),
            "extra_info": extra,
        },
        id=index,
        from_arrow=True,
    )


def labelled_task(prompt: str | Sequence[Any], label: Any, **further: Any) -> Task:
    """Return the task of a prompt and its label; raises ConfigError if they are none.

    The prompt is the messages, or the text of the user's only one. The label is the ground truth, or verl's
    `reward_model`, a mapping with a `ground_truth`.
    """
    scored = isinstance(label, Mapping) and "ground_truth" in label
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return Task.from_row({"prompt": messages, "reward_model": label if scored else {"ground_truth": label}, **further})


def tools_of(env: str, env_kwargs: Mapping[str, Any] | None) -> list[ToolSchema]:
    """Return the tools of an env, which is made for that and closed; raises ConfigError if it cannot be made."""
    with contextlib.closing(EventLoopThread(name="toolgym-tools-of")) as bridge:
        return bridge.run(load_env(env, dict(env_kwargs or {}), answer_tool=None, endless=1)).tools


def task_column(task: Task) -> dict[str, str]:
    """Return the column `toolgym_task` of a row: the task as JSON, which keeps rows of different shapes apart."""
    return {TASK_COLUMN: json.dumps(task.to_json_row())}
