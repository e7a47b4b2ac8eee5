"""`load_tasks`: all tasks of a file or a data set, in memory; see `toolgym.envs.tasks.stored` for larger ones."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolgym.envs.tasks.row_files import opened
from toolgym.envs.tasks.rows import check_columns, read_task
from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tasks.stored import from_parquet
from toolgym.tools.errors import ConfigError, shorten

_PARQUET = b"PAR1"
"""How a Parquet file begins (https://parquet.apache.org/docs/file-format/)."""

_Rows = Iterable[tuple[str, object]]
"""Rows, each with its place for errors, such as `line 3`."""


def load_tasks(
    source: str | Path | Iterable[Mapping[str, Any]], *, columns: Mapping[str, str] | None = None
) -> TaskList:
    """Read all tasks of a file, of a data set of the library `datasets`, or of any rows, into memory.

    `from_parquet`, `from_jsonl` and `from_hf` read a task when it is drawn, for files larger than the memory.

    Args:
        source: a file: JSON Lines, a JSON list, Parquet (needs the package pyarrow), or CSV or TSV by its name; or rows
            as mappings, such as a split of a Hugging Face data set.
        columns: for rows of another shape than verl's, which column holds what: `prompt` (a text, which becomes the
            user's message, or a list of messages), and any of `ground_truth`, `id` and `source`. The other columns go
            into `Task.extra_info`. None: the rows are in verl's shape, see `Task.from_row`.

    Example:
        >>> tasks = load_tasks([{"question": "6 * 7?", "answer": "42", "level": 1}],
        ...                    columns={"prompt": "question", "ground_truth": "answer"})
        >>> tasks.tasks[0].messages, tasks.tasks[0].ground_truth, tasks.tasks[0].extra_info
        (({'role': 'user', 'content': '6 * 7?'},), '42', {'level': 1})

    Raises:
        UnknownNameError: there is no such file or column; names the nearest one.
        ConfigError: the file cannot be read, a row is not valid (names it), or there are no rows.
        MissingExtraError: the file's format needs a package that is not installed.
    """
    check_columns(columns)
    path = Path(source) if isinstance(source, str | Path) else None
    if path is not None and _begins_with(path, _PARQUET):
        return TaskList(list(from_parquet(path, columns=columns)))
    rows = _given(source) if path is None else _read(path)
    from_arrow = hasattr(source, "column_names")  # of the library `datasets`
    where = "" if path is None else f"{path}, "
    tasks = [
        read_task(row, columns, where=f"{where}{place}", id=place.rpartition(" ")[2], from_arrow=from_arrow)
        for place, row in rows
    ]
    if not tasks:
        raise ConfigError(f"{'the source' if path is None else f'the task file {str(path)!r}'} holds no tasks")
    return TaskList(tasks)


def _given(source: object) -> _Rows:
    if isinstance(source, Mapping):  # a DatasetDict is one
        names = ", ".join(repr(name) for name in source)
        raise ConfigError(f"expected rows, got a mapping: choose one of its values, of {shorten(names)}")
    if hasattr(source, "to_dict") and hasattr(source, "iloc"):
        raise ConfigError("expected rows as mappings, got a data frame: give frame.to_dict('records')")
    if not isinstance(source, Iterable):
        raise ConfigError(f"expected a file or rows as mappings, got {shorten(repr(source))}")
    return ((f"row {number}", row) for number, row in enumerate(source, start=1))


def _begins_with(path: Path, magic: bytes) -> bool:
    with opened(path) as file:
        return file.read(len(magic)) == magic


def _read(path: Path) -> _Rows:
    with opened(path) as file:
        data = file.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the task file {str(path)!r}: it is neither text in UTF-8 nor Parquet ({error})"
        ) from error
    if path.suffix.lower() in (".csv", ".tsv"):
        return _csv(path, text)
    if text.lstrip().startswith("["):
        return _json_list(path, text)
    return _json_lines(path, text)


def _csv(path: Path, text: str) -> Iterator[tuple[str, object]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ConfigError(
                    f"{path}, line {reader.line_num}: expected {len(reader.fieldnames or ())} fields, as the first "
                    "line names"
                )
            yield f"line {reader.line_num}", row
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: {error}") from error


def _json_list(path: Path, text: str) -> _Rows:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected a JSON list of rows: {error}") from error
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def _json_lines(path: Path, text: str) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            got = line.strip()[:60]
            raise ConfigError(f"{path}, line {number}: expected a JSON object, got {got!r}: {error}") from error
