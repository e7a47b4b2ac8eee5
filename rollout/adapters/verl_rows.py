"""Tasks from rows of verl's data sets, which SkyRL's resemble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.envs.tasks.row_fields import TASK_COLUMN, mapping
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, shorten


def task_of(row: Mapping[str, Any]) -> Task:
    """The task of a row of verl's `RLHFDataset`.

    `raw_prompt`, `data_source`, `reward_model`, `extra_info` and `tools_kwargs` (or `extra_info.tools_kwargs`) are read
    as `Task.from_row` reads them: objects or JSON texts, or all of it from the column `toolgym_task`. Arrow unites the
    structs of all rows and fills up with None what a row has not, which a text is safe from.

    Args:
        row: the keyword arguments of verl's `AgentLoopBase.run`.

    Raises:
        ConfigError: the row has another shape; names the field.
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
    prompt = row["raw_prompt"]
    for message in prompt:
        if isinstance(message, Mapping) and isinstance(message.get("content"), list):
            raise ConfigError(
                "a message of 'raw_prompt' has a list as its content, as for images: toolgym's envs play texts only; "
                f"got {shorten(repr(message))}"
            )
    return Task.from_row(
        {
            "prompt": list(prompt),
            "data_source": row.get("data_source"),
            "reward_model": row.get("reward_model"),
            "extra_info": extra,
        },
        id=index,
        from_arrow=True,
    )
