"""Fields of a row in verl's shape, as a file may hold them: as objects, as JSON texts, or united by Arrow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ConfigError, shorten

ENV_COLUMN = "env_id"
"""Column of a row, or of its `extra_info`, with the id of the env that plays it."""

TASK_COLUMN = "toolgym_task"
"""Column of a data set that holds a whole task, as JSON of its row; a table cannot hold rows of different shapes."""


def verl_row(
    source: str, prompt: Any, ground_truth: Any, extra_info: Mapping[str, Any], **columns: Any
) -> dict[str, Any]:
    truth = {"style": "rule", "ground_truth": ground_truth}
    return {"data_source": source, "prompt": prompt, **columns, "reward_model": truth, "extra_info": dict(extra_info)}


def whole_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row that the column `toolgym_task` holds as JSON; the row itself if it has no such column."""
    stored = row.get(TASK_COLUMN)
    if stored is None:
        return row
    whole = stored
    if isinstance(stored, str):
        try:
            whole = json.loads(stored)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the column {TASK_COLUMN!r} must hold a task's row as JSON: {error}") from error
    if not isinstance(whole, Mapping):
        raise ConfigError(f"the column {TASK_COLUMN!r} must hold a task's row as JSON, got {shorten(repr(stored))}")
    return whole


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """A field that is an object, or a JSON text that holds one; empty if it is missing."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} is a text that is no JSON ({error}): {shorten(repr(value))}") from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be an object, or a JSON text that holds one, got {shorten(repr(value))}")
    return value


def tools_kwargs(value: Any, *, from_arrow: bool) -> dict[str, Mapping[str, Any]]:
    """`extra_info.tools_kwargs`: from each tool's name to its kwargs, of which any level may be a JSON text.

    A row `from_arrow` has the keys of all rows, None for those that it lacks. A tool would be called with arguments
    that it does not know, so None is left out at each level.
    """
    name = "extra_info.tools_kwargs"
    by_tool: dict[str, Mapping[str, Any]] = {}
    for tool, of_tool in mapping(name, value).items():
        if of_tool is None:
            continue
        kinds = {
            kind: kwargs if kwargs is None else mapping(f"{name}[{tool!r}][{kind!r}]", kwargs)
            for kind, kwargs in mapping(f"{name}[{tool!r}]", of_tool).items()
        }
        by_tool[tool] = _without_none(kinds) if from_arrow else kinds
    return by_tool


def _without_none(kinds: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    return {
        kind: {name: value for name, value in kwargs.items() if value is not None}
        for kind, kwargs in kinds.items()
        if kwargs is not None
    }
