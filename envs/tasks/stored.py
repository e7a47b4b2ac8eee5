"""Tasks that stay where they are stored and are read when they are drawn, for data larger than the memory."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolgym.envs.tasks.row_files import CACHE_BYTES, DatasetRows, JsonLinesRows, ParquetRows, Rows
from toolgym.envs.tasks.rows import check_columns, read_task
from toolgym.envs.tasks.sources import CountedTasks
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, require_whole_number, shorten

Paths = str | Path | Sequence[str | Path]


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
        return read_task(row, self._columns, where=part.where(place), id=id, from_arrow=part.from_arrow)


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
    """Return the tasks of Parquet files; a row group is read when one of its rows is drawn.

    A random draw reads a whole row group unless that is in the cache, so row groups should be small, as those of
    `write_tasks`. Errors are those of `load_tasks`.

    Args:
        path: a file, or several.
        columns: for rows of another shape than verl's, as in `load_tasks`.
        cache_bytes: bytes of decoded row groups that are kept for each file.
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
