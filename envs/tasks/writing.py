"""`write_tasks`: tasks as a file that toolgym, verl, TRL and `datasets` read."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from toolgym.envs.tasks.arrow_shape import Shape
from toolgym.envs.tasks.row_fields import TASK_COLUMN
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.lazy import missing_package

GROUP_ROWS = 256
GROUP_BYTES = 8 * 2**20
"""A row group ends with so many rows, or so many bytes of JSON: a reader decodes one group to draw one row."""


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> int:
    """Write tasks to a file in verl's row shape, and return how many. Read back, each row is equal, with all its types.

    JSON Lines holds a row as it is. Parquet has one type for a field of all rows (see `Shape`), so that rows that
    differ in their keys or types would come back changed: then the file has a further column, `toolgym_task`, with the
    whole row as JSON, which `Task.from_row` reads and trainers ignore. No more than a row group is in memory at a time.
    The file appears when it is whole. Images of a column `images` become parts of the messages.

    Args:
        path: `.jsonl` or `.parquet`; a file that is there is replaced.
        tasks: the tasks, in the order of the rows.

    Raises:
        ConfigError: the name says no format, there are no tasks, one holds a value that JSON has not (names the row and
            the field), or the file cannot be written.
        MissingExtraError: pyarrow is not installed, and the file is Parquet.
    """
    path = Path(path)
    if path.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"tasks are written to .jsonl or .parquet, got {str(path)!r}")
    argument: object = tasks
    if isinstance(argument, str) or not isinstance(argument, Iterable):
        raise ConfigError(
            f"expected tasks, got {shorten(repr(argument))}; of an endless source give source.take(count)"
        )
    try:
        with whole_file(path) as file:
            if path.suffix == ".jsonl":
                count = sum(bool(file.write(json_line(row))) for row in _rows(tasks))
            else:
                count = _write_parquet(path, file, tasks)
            if not count:
                raise ConfigError(f"there are no tasks to write to {str(path)!r}")
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error}") from error
    return count


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which gets its name, and replaces an earlier one, at the end unless an error comes before."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def json_line(row: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(row, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can write
        return (json.dumps(row) + "\n").encode()


def _write_parquet(path: Path, file: IO[bytes], tasks: Iterable[Task]) -> int:
    """Write twice: as lines, from which the types become known, and from them as Parquet."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", f"Writing the Parquet file {str(path)!r}", error) from error
    shape, has_none = Shape(), False
    with tempfile.TemporaryFile(dir=path.parent) as lines:
        for row in _rows(tasks):
            shape.add(row)
            has_none = has_none or Task.from_row(row) != Task.from_row(row, from_arrow=True)
            lines.write(json_line(row))
        if not shape.count:
            return 0
        columns = [(name, field.arrow_type()) for name, field in shape.fields.items()]
        whole = has_none or not shape.exact
        schema = pyarrow.schema([*columns, (TASK_COLUMN, pyarrow.string())] if whole else columns)
        lines.seek(0)
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            for group in _groups(lines):
                stored = [_stored(line, shape, whole=whole) for line in group]
                writer.write_table(pyarrow.Table.from_pylist(stored, schema=schema))
    return shape.count


def _stored(line: bytes, shape: Shape, *, whole: bool) -> dict[str, Any]:
    row = json.loads(line)
    columns = {name: shape.fields[name].stored(value) for name, value in row.items()}
    return {**columns, TASK_COLUMN: json.dumps(row)} if whole else columns


def _groups(lines: IO[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for line in lines:
        group.append(line)
        size += len(line)
        if len(group) == GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _rows(tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
    for number, task in enumerate(tasks, start=1):
        if not isinstance(task, Task):
            raise ConfigError(f"row {number}: expected a toolgym Task, got {shorten(repr(task))}")
        row = task.to_json_row()
        if wrong := _no_json("", row):
            raise ConfigError(f"row {number} (task {task.id!r}): {wrong}: write JSON values only")
        yield row


def _no_json(name: str, value: Any) -> str | None:
    """The first part of a value that JSON does not have, with its place."""
    if value is None or type(value) in (bool, int, float, str):
        return None
    if type(value) in (list, tuple):
        inner = ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif type(value) is dict:
        for key in value:
            if not isinstance(key, str):
                return f"{name or 'the row'} has the key {key!r}, which is no text"
        inner = ((f"{name}.{key}" if name else key, item) for key, item in value.items())
    else:
        return f"{name} holds a {type(value).__name__}, {shorten(repr(value), 60)}"
    return next(filter(None, itertools.starmap(_no_json, inner)), None)
