"""Rows of files, each read when it is asked for: JSON Lines by the offsets of the lines, Parquet by row groups.

A file is opened for each read and closed after it, and is checked not to have changed. Reads may come from any thread.
The library `datasets` would copy each file into a cache on the disk, infer its types (a date becomes a time stamp), and
be needed for JSON Lines.
"""

from __future__ import annotations

import bisect
import itertools
import json
import logging
import os
import threading
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from toolgym.tools.errors import ConfigError, missing_file
from toolgym.tools.lazy import missing_package

if TYPE_CHECKING:
    import pyarrow

CACHE_BYTES = 16 * 2**20
"""Bytes of decoded row groups that a Parquet file keeps; the last one is kept in any case."""

_BATCH = 256
"""Rows that are decoded together if a file is read from end to end."""

PARQUET = b"PAR1"
"""The first bytes of a Parquet file (https://parquet.apache.org/docs/file-format/)."""

_log = logging.getLogger("toolgym.envs")


class Rows(ABC):
    """Rows at their places, counted from 0."""

    name = ""  # of the file, for errors; empty without one
    from_arrow = False  # whether None stands for what a row has not, see `Task.from_row`

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def row(self, index: int) -> object: ...

    def __iter__(self) -> Iterator[object]:
        return map(self.row, range(len(self)))

    def number(self, index: int) -> int:
        """The number that a user gives the row: its line, or counted from 1."""
        return index + 1

    def where(self, index: int) -> str:
        """The row's place for errors, such as `tasks.parquet, row 3`."""
        return f"{self.name}, row {self.number(index)}" if self.name else f"row {self.number(index)}"


class JsonLinesRows(Rows):
    """The lines of a JSON Lines file that are not blank; 8 bytes for each are kept."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._starts = array("Q")
        self._lines: Sequence[int] | None = None
        lines, offset = array("I"), 0
        with opened(self.path) as file:
            self._version = _version(file)
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    if not self._starts:
                        self._check_format(line)
                    self._starts.append(offset)
                    lines.append(number)
                offset += len(line)
        if lines and lines[-1] != len(lines):  # there are blank ones
            self._lines = lines

    def _check_format(self, line: bytes) -> None:
        if line.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"PK")):
            raise ConfigError(f"{self.name!r} is compressed: unpack it first, as rows are read at their places")
        if line.startswith(PARQUET):
            raise ConfigError(f"{self.name!r} is a Parquet file: read it with from_parquet")
        if line.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            raise ConfigError(f"{self.name!r} is a JSON list, not JSON Lines: read it with load_tasks")

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, index: int) -> object:
        with opened(self.path, self._version) as file:
            file.seek(self._starts[index])
            line = file.readline()
        return json_line(line, self.where(index))

    def __iter__(self) -> Iterator[object]:
        with opened(self.path, self._version) as file:
            lines = (line for line in file if not line.isspace())
            for index, line in enumerate(lines):
                yield json_line(line, self.where(index))

    def number(self, index: int) -> int:
        return index + 1 if self._lines is None else self._lines[index]

    def where(self, index: int) -> str:
        return f"{self.name}, line {self.number(index)}"


def json_line(line: bytes, where: str) -> object:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        got = line[:60].decode("utf-8", "replace").strip()
        raise ConfigError(f"{where}: expected a JSON object, got {got!r}: {error}") from error


class ParquetRows(Rows):
    """The rows of a Parquet file. A row group is decoded when a row of it is asked for, and kept as Arrow's table."""

    from_arrow = True

    def __init__(self, path: str | Path, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = Path(path)
        self.name = str(path)
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise missing_package("pyarrow", f"Reading the Parquet file {self.name!r}", error) from error
        self._arrow = pyarrow
        with opened(self.path) as file:
            self._version = _version(file)
            with self._errors():
                self._metadata = pyarrow.parquet.read_metadata(file)
        groups = [self._metadata.row_group(number) for number in range(self._metadata.num_row_groups)]
        self._ends = list(itertools.accumulate(group.num_rows for group in groups))
        self._cache_bytes = cache_bytes
        self._cache: OrderedDict[int, pyarrow.Table] = OrderedDict()
        self._lock = threading.Lock()
        largest = max((group.total_byte_size for group in groups), default=0)
        if largest > cache_bytes:
            _log.warning(
                "%s has row groups of up to %d MiB, and one of them is in memory at a time: write it again with "
                "write_tasks, whose row groups are small",
                self.name,
                largest // 2**20,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRows, (self.path, self._cache_bytes)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def row(self, index: int) -> object:
        group = bisect.bisect_right(self._ends, index)
        first = self._ends[group - 1] if group else 0
        return self._group(group).slice(index - first, 1).to_pylist()[0]

    def __iter__(self) -> Iterator[object]:
        with opened(self.path, self._version) as file:
            batches = self._arrow.parquet.ParquetFile(file, metadata=self._metadata).iter_batches(
                _BATCH, use_threads=False
            )
            with self._errors():
                batch = next(batches, None)
            while batch is not None:
                yield from batch.to_pylist()
                with self._errors():
                    batch = next(batches, None)

    def _group(self, number: int) -> pyarrow.Table:
        with self._lock:
            table = self._cache.get(number)
            if table is None:
                table = self._decoded(number)
                size = table.nbytes
                while self._cache and size + sum(kept.nbytes for kept in self._cache.values()) > self._cache_bytes:
                    self._cache.popitem(last=False)
                self._cache[number] = table
            self._cache.move_to_end(number)
            return table

    def _decoded(self, number: int) -> pyarrow.Table:
        with opened(self.path, self._version) as file, self._errors():
            return self._arrow.parquet.ParquetFile(file, metadata=self._metadata).read_row_group(
                number, use_threads=False
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (self._arrow.ArrowException, OSError) as error:
            raise ConfigError(f"cannot read the Parquet file {self.name!r}: {' '.join(str(error).split())}") from error


class DatasetRows(Rows):
    """The rows of a `datasets.Dataset`, which keeps them on disk itself, or of anything with rows at places."""

    from_arrow = True

    def __init__(self, dataset: Sequence[Any]) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int) -> object:
        return self._dataset[index]


_POINTER = b"version https://git-lfs.github.com/spec/"


Version = tuple[int, int]


def opened(path: Path, version: Version | None = None) -> BinaryIO:
    """Open a file of tasks for reading, and check that it is in this version."""
    try:
        file = path.open("rb")
        begins = file.read(len(_POINTER))
        file.seek(0)
    except FileNotFoundError:
        raise missing_file("task file", path) from None
    except OSError as error:
        raise ConfigError(f"cannot read the task file {str(path)!r}: {error}") from error
    if begins == _POINTER:
        file.close()
        raise ConfigError(
            f"{str(path)!r} is a Git LFS pointer, not the file that it stands for: `git lfs pull` fetches that"
        )
    if version is not None and _version(file) != version:
        file.close()
        raise ConfigError(f"the task file {str(path)!r} has changed since it was opened: open it again")
    return file


def _version(file: BinaryIO) -> Version:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
