"""From a row of a file or a data set to its task, with errors that name the file, the row and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, shorten

COLUMNS = ("prompt", "ground_truth", "id", "source")
"""Parts of a task that `columns` can name."""


def check_columns(columns: Mapping[str, str] | None) -> None:
    """Check what is given as `columns`.

    Raises:
        UnknownNameError: a task has no such part; names the nearest one.
        ConfigError: it is of the wrong kind, or does not say where the prompt is.
    """
    if columns is None:
        return
    if not isinstance(columns, Mapping) or not all(isinstance(one, str) for one in columns.values()):
        raise ConfigError(f"columns must map {', '.join(COLUMNS)} to names of columns, got {columns!r}")
    for name in columns:
        if name not in COLUMNS:
            raise UnknownNameError(
                f"columns are those of {', '.join(COLUMNS)}, not of {name!r}{nearest(name, COLUMNS)}"
            )
    if "prompt" not in columns:
        raise ConfigError(f"columns must say which one holds the prompt: {{'prompt': ...}}, got {dict(columns)!r}")


def read_task(row: object, columns: Mapping[str, str] | None, *, where: str, id: str, from_arrow: bool) -> Task:
    """Return the task of a row.

    Args:
        row: in verl's shape, or in another one with `columns`.
        columns: which column holds what; None for verl's shape.
        where: the row's place for errors, such as `tasks.jsonl, line 3`.
        id: the task's, where the row has none.
        from_arrow: as in `Task.from_row`.

    Raises:
        UnknownNameError: the row has no such column; names the nearest one.
        ConfigError: the row is not valid; names its place and the field.
    """
    try:
        if not isinstance(row, Mapping):
            raise ConfigError(f"expected a JSON object, got {shorten(repr(row), 60)}")
        return Task.from_row(row if columns is None else _verl_row(row, columns), id=id, from_arrow=from_arrow)
    except ConfigError as error:
        hint = "" if columns is not None or not _is_plain(row) else _hint(row)
        raise type(error)(f"{where}: {error}{hint}") from error


def _verl_row(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    for column in columns.values():
        if column not in row:
            raise UnknownNameError(
                f"there is no column {column!r}{nearest(column, row) or '.'} Columns: {', '.join(row)}"
            )
    prompt = row[columns["prompt"]]
    given = {name: row[column] for name, column in columns.items()}
    extra = {name: value for name, value in row.items() if name not in columns.values()}
    if given.get("id") is not None:
        extra["index"] = given["id"]
    return {
        "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
        "reward_model": {"style": "rule", "ground_truth": given.get("ground_truth")},
        "data_source": given.get("source") or "",
        "extra_info": extra,
    }


def _is_plain(row: object) -> bool:
    return isinstance(row, Mapping) and (not row.get("prompt") or isinstance(row["prompt"], str))


def _hint(row: object) -> str:
    assert isinstance(row, Mapping)
    return (
        f". The row's columns are {shorten(', '.join(map(str, row)))}. Say which ones hold what with "
        "columns={'prompt': ..., 'ground_truth': ...} (--task-columns prompt=...,ground_truth=...)"
    )
