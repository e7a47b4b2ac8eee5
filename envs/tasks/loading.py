"""`load_tasks`: tasks from files and data sets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, UnknownNameError, missing_file, missing_package, nearest, shorten

COLUMNS = ("prompt", "ground_truth", "id", "source")
"""Parts of a task that `columns` can name."""

_PARQUET = b"PAR1"
"""How a Parquet file begins (https://parquet.apache.org/docs/file-format/)."""

_Rows = Iterable[tuple[str, object]]
"""Rows, each with its place for errors, such as `line 3`."""


def load_tasks(
    source: str | Path | Iterable[Mapping[str, Any]], *, columns: Mapping[str, str] | None = None
) -> TaskList:
    """Read tasks from a file, from a data set of the library `datasets`, or from any rows.

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
    if columns is not None:
        _check_columns(columns)
    if isinstance(source, str | Path):
        path = Path(source)
        where, rows = f"{path}, ", _read(path)
    else:
        where, rows = "", _given(source)
    tasks = []
    for number, (place, row) in enumerate(rows, start=1):
        try:
            if not isinstance(row, Mapping):
                raise ConfigError(f"expected a JSON object, got {shorten(repr(row), 60)}")
            id = place.rpartition(" ")[2] or str(number)
            tasks.append(Task.from_row(row if columns is None else _verl_row(row, columns), id=id))
        except ConfigError as error:
            hint = "" if columns is not None or not _is_plain(row) else _hint(row)
            raise type(error)(f"{where}{place}: {error}{hint}") from error
    if not tasks:
        raise ConfigError(f"{f'the task file {str(source)!r}' if where else 'the source'} holds no tasks")
    return TaskList(tasks)


# ---------------------------------------------------------------------- rows of other shapes


def _check_columns(columns: Mapping[str, str]) -> None:
    if not isinstance(columns, Mapping) or not all(isinstance(one, str) for one in columns.values()):
        raise ConfigError(f"columns must map {', '.join(COLUMNS)} to names of columns, got {columns!r}")
    for name in columns:
        if name not in COLUMNS:
            raise UnknownNameError(
                f"columns are those of {', '.join(COLUMNS)}, not of {name!r}{nearest(name, COLUMNS)}"
            )
    if "prompt" not in columns:
        raise ConfigError(f"columns must say which one holds the prompt: {{'prompt': ...}}, got {dict(columns)!r}")


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


# ---------------------------------------------------------------------- sources of rows


def _given(source: object) -> _Rows:
    if isinstance(source, Mapping):  # a DatasetDict is one
        names = ", ".join(repr(name) for name in source)
        raise ConfigError(f"expected rows, got a mapping: choose one of its values, of {shorten(names)}")
    if hasattr(source, "to_dict") and hasattr(source, "iloc"):
        raise ConfigError("expected rows as mappings, got a data frame: give frame.to_dict('records')")
    if not isinstance(source, Iterable):
        raise ConfigError(f"expected a file or rows as mappings, got {shorten(repr(source))}")
    return ((f"row {number}", row) for number, row in enumerate(source, start=1))


def _read(path: Path) -> _Rows:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise missing_file("task file", path) from None
    except OSError as error:
        raise ConfigError(f"cannot read the task file {str(path)!r}: {error}") from error
    if data.startswith(_PARQUET):
        return _parquet(path, data)
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


def _parquet(path: Path, data: bytes) -> _Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_package("pyarrow", f"Reading the Parquet file {str(path)!r}", error) from error
    try:
        rows = pyarrow.parquet.read_table(pyarrow.BufferReader(data)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"cannot read the Parquet file {str(path)!r}: {' '.join(str(error).split())}") from error
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))


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
