"""From a row of a file or a data set to its task, with errors that name the file, the row and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.envs.tasks.row_fields import verl_row
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, shorten
from toolgym.tools.message import user

COLUMNS = ("prompt", "ground_truth", "id", "source")


def check_columns(columns: Mapping[str, str] | None) -> None:
    """Check the argument `columns` of a loader."""
    if columns is None:
        return
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns.values()):
        raise ConfigError(f"columns must map {', '.join(COLUMNS)} to names of columns, got {columns!r}")
    for name in columns:
        if name not in COLUMNS:
            raise UnknownNameError(
                f"columns are those of {', '.join(COLUMNS)}, not of {name!r}{nearest(name, COLUMNS)}"
            )
    if "prompt" not in columns:
        raise ConfigError(f"columns must say which one holds the prompt: {{'prompt': ...}}, got {dict(columns)!r}")


def read_task(row: object, columns: Mapping[str, str] | None, *, where: str, id: str, from_arrow: bool) -> Task:
    """Return the task of a row; see `load_tasks` for `columns` and errors, which name its place, `where`."""
    try:
        if not isinstance(row, Mapping):
            raise ConfigError(f"expected a JSON object, got {shorten(repr(row), 60)}")
        return Task.from_row(row if columns is None else _verl_row(row, columns), id=id, from_arrow=from_arrow)
    except ConfigError as error:
        raise type(error)(f"{where}: {error}{_hint(row) if columns is None else ''}") from error


def _verl_row(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    for column in columns.values():
        if column not in row:
            raise UnknownNameError(
                f"there is no column {column!r}{nearest(column, row) or '.'} Columns: {', '.join(row)}"
            )
    parts = {name: row[column] for name, column in columns.items()}
    prompt = parts["prompt"]
    extra = {name: value for name, value in row.items() if name not in columns.values()}
    if parts.get("id") is not None:
        extra["index"] = parts["id"]
    messages = [user(prompt)] if isinstance(prompt, str) else prompt
    return verl_row(parts.get("source") or "", messages, parts.get("ground_truth"), extra)


def _hint(row: object) -> str:
    """Advice for a row without a conversation, which is likely to need `columns`."""
    if not isinstance(row, Mapping) or (row.get("prompt") and not isinstance(row["prompt"], str)):
        return ""
    return (
        f". The row's columns are {shorten(', '.join(map(str, row)))}. Say which ones hold what with "
        "columns={'prompt': ..., 'ground_truth': ...} (--task-columns prompt=...,ground_truth=...)"
    )
