"""Tasks from rows of verl's data sets, which SkyRL's resemble."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, shorten


def task_of(row: Mapping[str, Any]) -> Task:
    """The task of a row of verl's `RLHFDataset`.

    `raw_prompt`, `data_source`, `reward_model`, `extra_info` and `tools_kwargs` (or `extra_info.tools_kwargs`) are read
    as `Task.from_row` reads them. `tools_kwargs`, what it holds for a tool, `extra_info` and `reward_model` may be JSON
    texts: Arrow unites the structs of all rows and fills up with None what a row has not, which a text is safe from.

    Args:
        row: the keyword arguments of verl's `AgentLoopBase.run`.

    Raises:
        ConfigError: the row has another shape; names the field.
    """
    if "raw_prompt" not in row:
        raise ConfigError(
            f"expected a row of verl's with 'raw_prompt', got the fields {', '.join(sorted(row)) or 'none'}"
        )
    extra = dict(_mapping("extra_info", row.get("extra_info")))
    kwargs = _mapping("tools_kwargs", row.get("tools_kwargs") or extra.get("tools_kwargs"))
    extra["tools_kwargs"] = {name: _of_tool(name, value) for name, value in kwargs.items() if value is not None}
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
            "reward_model": _mapping("reward_model", row.get("reward_model")),
            "extra_info": extra,
        },
        id=str(row.get("index", "")),
    )


def _of_tool(name: str, value: Any) -> dict[str, Any]:
    """What `tools_kwargs` holds for one tool. The kwargs themselves may be a JSON text too."""
    kwargs = _mapping(f"tools_kwargs[{name!r}]", value)
    return {
        kind: _mapping(f"tools_kwargs[{name!r}][{kind!r}]", given)
        for kind, given in kwargs.items()
        if given is not None
    }


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except ValueError as error:
            raise ConfigError(f"{name} is a text that is no JSON ({error}): {shorten(repr(value))}") from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be an object, or a JSON text that holds one, got {shorten(repr(value))}")
    return value
