"""Tasks that stay where they are stored and are read when they are drawn, for data larger than the memory."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolgym.envs.tasks.images import COLUMN
from toolgym.envs.tasks.row_fields import plain_row, verl_row
from toolgym.envs.tasks.row_files import CACHE_BYTES, DatasetRows, JsonLinesRows, ParquetRows, Rows
from toolgym.envs.tasks.sources import CountedTasks
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest, require_whole_number, shorten
from toolgym.tools.message import user

Paths = str | Path | Sequence[str | Path]
COLUMNS = ("prompt", "ground_truth", "id", "source")


class StoredTasks(CountedTasks):
    """Tasks at their places in one or more files or data sets, read when they are drawn.

    A row that is not valid is an error when it is drawn. The same seed draws the same tasks as from `load_tasks`.
    """

    def __init__(self, parts: Sequence[Rows], columns: Mapping[str, str] | None = None) -> None:
        check_columns(columns)
        self._parts = tuple(parts)
        self._columns = columns
        self._ends = list(itertools.accumulate(map(len, self._parts)))
        if not self._ends or not self._ends[-1]:
            names = ", ".join(repr(part.name) for part in self._parts if part.name)
            raise ConfigError(f"{names or 'the source'} holds no tasks")

    @property
    def size(self) -> int:
        return self._ends[-1]

    def task(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(index)
        number = bisect.bisect_right(self._ends, index)
        part, place = self._parts[number], index - (self._ends[number - 1] if number else 0)
        return self._read(part, place, part.row(place))

    def __iter__(self) -> Iterator[Task]:
        for part in self._parts:
            for place, row in enumerate(part):
                yield self._read(part, place, row)

    def _read(self, part: Rows, place: int, row: object) -> Task:
        id = str(part.number(place))
        folder = str(Path(part.name).parent) if part.name else ""
        return read_task(row, self._columns, where=part.where(place), id=id, from_arrow=part.from_arrow, folder=folder)


class TaskSubset(CountedTasks):
    """The tasks at some places of another source."""

    def __init__(self, source: CountedTasks, places: Iterable[int]) -> None:
        self._source = source
        self._places = array("Q", places)
        if not self._places:
            raise ConfigError("a subset of tasks must not be empty")

    @property
    def size(self) -> int:
        return len(self._places)

    def task(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self._source.task(self._places[index])


def from_parquet(
    path: Paths, *, columns: Mapping[str, str] | None = None, cache_bytes: int = CACHE_BYTES
) -> StoredTasks:
    """Return the tasks of one or more Parquet files; a row group is read when one of its rows is drawn.

    A random draw reads a whole row group unless that is in the cache, so row groups should be small, as those of
    `write_tasks`; `cache_bytes` of decoded ones are kept for each file. `columns` and errors are those of `load_tasks`.
    """
    require_whole_number("cache_bytes", cache_bytes, at_least=0)
    return StoredTasks([ParquetRows(file, cache_bytes) for file in _paths(path)], columns)


def from_jsonl(path: Paths, *, columns: Mapping[str, str] | None = None) -> StoredTasks:
    """Return the tasks of one or more JSON Lines files in UTF-8, each read when it is drawn.

    A file is read once when it is opened, to find where its lines begin: 8 bytes for each stay in memory. `columns` and
    errors are those of `load_tasks`.
    """
    return StoredTasks([JsonLinesRows(file) for file in _paths(path)], columns)


def from_hf(dataset: Any, *, columns: Mapping[str, str] | None = None) -> StoredTasks:
    """Return the tasks of a `datasets.Dataset`, each read when it is drawn. `columns` are those of `load_tasks`.

    A `DatasetDict` or an `IterableDataset`, which has no places, is a `ConfigError`.
    """
    if isinstance(dataset, Mapping):
        names = ", ".join(repr(name) for name in dataset)
        raise ConfigError(f"expected a split, got a mapping: choose one of its values, of {shorten(names)}")
    if isinstance(dataset, str) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"expected a data set whose rows have places, got {shorten(repr(dataset))}; load_tasks reads one that is "
            "streamed, into memory"
        )
    return StoredTasks([DatasetRows(dataset)], columns)


def _paths(path: Paths) -> list[str | Path]:
    paths = [path] if isinstance(path, str | Path) else path
    if not isinstance(paths, Sequence) or not all(isinstance(item, str | Path) for item in paths):
        raise ConfigError(f"expected the path of a file, or several, got {shorten(repr(path))}")
    return list(paths)


def check_columns(columns: Mapping[str, str] | None) -> None:
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


def read_task(
    row: object, columns: Mapping[str, str] | None, *, where: str, id: str, from_arrow: bool, folder: str = ""
) -> Task:
    """Return the task of a row; see `load_tasks` for `columns` and errors, which name its place, `where`."""
    try:
        if not isinstance(row, Mapping):
            raise ConfigError(f"expected a JSON object, got {shorten(repr(row), 60)}")
        if columns is not None:
            row, is_of_frame = plain_row(row)
            from_arrow = from_arrow or is_of_frame
        fields = row if columns is None else _verl_row(row, columns)
        return Task.from_row(fields, id=id, from_arrow=from_arrow, folder=folder)
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
    images = {COLUMN: extra.pop(COLUMN)} if COLUMN in extra else {}
    return verl_row(parts.get("source") or "", messages, parts.get("ground_truth"), extra, **images)


def _hint(row: object) -> str:
    if not isinstance(row, Mapping) or (row.get("prompt") and not isinstance(row["prompt"], str)):
        return ""
    return (
        f". The row's columns are {shorten(', '.join(map(str, row)))}. Say which ones hold what with "
        "columns={'prompt': ..., 'ground_truth': ...} (--task-columns prompt=...,ground_truth=...)"
    )
