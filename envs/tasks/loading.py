"""`load_tasks`: all tasks of a file or a data set, in memory; see `toolgym.envs.tasks.stored` for larger ones."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from toolgym.envs.tasks.row_files import PARQUET, ParquetRows, json_line, opened
from toolgym.envs.tasks.sources import TaskList
from toolgym.envs.tasks.stored import check_columns, from_parquet, read_task
from toolgym.tools.errors import ConfigError, shorten

SUFFIXES = (".json", ".jsonl", ".jsonl.gz", ".json.gz", ".parquet")
"""Ends of the names of files that are taken out of a folder."""

Record: TypeAlias = tuple[str, int, object]
"""A place for errors, such as `train.jsonl, line 3`; the number of the line or row; and its value."""


def load_tasks(
    source: str | Path | Iterable[Mapping[str, Any]], *, columns: Mapping[str, str] | None = None
) -> TaskList:
    """Read all tasks of a file, of a data set of the library `datasets`, or of any rows, into memory.

    `from_parquet`, `from_jsonl` and `from_hf` read a task when it is drawn, for files larger than the memory.

    Args:
        source: a file: JSON Lines, a JSON list, Parquet (needs the package pyarrow), or CSV or TSV by its name; or rows
            as mappings, such as a split of a Hugging Face data set; or a data frame of pandas or polars, or a table of
            pyarrow.
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
    if path is not None and _is_parquet(path):
        return TaskList(list(from_parquet(path, columns=columns)))
    from_arrow = hasattr(source, "column_names")  # of the library `datasets`, or a table of pyarrow
    if path is None:
        source, of_frame = _rows_of_frame(source)
        from_arrow = from_arrow or of_frame
        _check_rows(source)
    folder = "" if path is None else str(path if path.is_dir() else path.parent)
    tasks = [
        read_task(row, columns, where=where, id=str(number), from_arrow=from_arrow, folder=folder)
        for where, number, row in records(source)
    ]
    if not tasks:
        raise ConfigError(f"{'the source' if path is None else f'the task file {str(path)!r}'} holds no tasks")
    return TaskList(tasks)


def _rows_of_frame(source: Any) -> tuple[Any, bool]:
    """Return the rows of a data frame or an Arrow table as mappings, and whether it is one; else the source itself."""
    if hasattr(source, "to_dict") and hasattr(source, "iloc"):  # pandas
        return source.to_dict("records"), True
    if hasattr(source, "to_dicts") and hasattr(source, "rows"):  # polars
        return source.to_dicts(), True
    if hasattr(source, "to_pylist") and hasattr(source, "column_names"):  # pyarrow
        return source.to_pylist(), True
    return source, False


def _check_rows(source: object) -> None:
    if isinstance(source, Mapping):  # a DatasetDict is one
        names = ", ".join(repr(name) for name in source)
        raise ConfigError(f"expected rows, got a mapping: choose one of its values, of {shorten(names)}")
    if not isinstance(source, Iterable):
        raise ConfigError(f"expected a file or rows as mappings, got {shorten(repr(source))}")


def _is_parquet(path: Path) -> bool:
    with opened(path) as file:
        return file.read(len(PARQUET)) == PARQUET


def folder_records(folder: Path, *, skip: str | None = None) -> Iterator[Record]:
    """Yield the records of all files of a folder and its folders, but not of folders with the name `skip`."""
    paths = (path for path in folder.rglob("*") if path.name.endswith(SUFFIXES) and path.is_file())
    files = sorted(path for path in paths if skip is None or skip not in path.relative_to(folder).parts[:-1])
    if not files:
        raise ConfigError(f"the folder {str(folder)!r} has no file whose name ends with {', '.join(SUFFIXES)}")
    for path in files:
        yield from records(path)


def records(source: str | Path | Iterable[object]) -> Iterator[Record]:
    """Yield each record of rows, or of a file: JSON Lines, other JSON, CSV and TSV, each gzipped or not; or Parquet.

    JSON Lines and Parquet are streamed; all else is read whole. Errors are those of `load_tasks`.
    """
    if not isinstance(source, str | Path):
        yield from ((f"row {number}", number, row) for number, row in enumerate(source, start=1))
        return
    path = Path(source)
    with opened(path) as file:
        if file.read(len(PARQUET)) == PARQUET:
            rows = ParquetRows(path)
            yield from ((rows.where(index), rows.number(index), row) for index, row in enumerate(rows))
            return
        file.seek(0)
        is_table = path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))
        try:
            with gzip.open(file) if path.name.endswith(".gz") else nullcontext(file) as plain:
                yield from (_csv if is_table else _json)(path, cast(BinaryIO, plain))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ConfigError(f"cannot unpack {str(path)!r}: {error}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"cannot read the task file {str(path)!r}: it is neither text in UTF-8 nor Parquet ({error})"
            ) from error


def _csv(path: Path, file: BinaryIO) -> Iterator[Record]:
    separator = "\t" if ".tsv" in path.name.lower() else ","
    text = io.StringIO(file.read().decode("utf-8-sig"), newline="")
    reader = csv.DictReader(text, delimiter=separator)
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                fields = len(reader.fieldnames or ())
                raise ConfigError(f"{where}: expected {fields} fields, as the first line names")
            yield where, reader.line_num, row
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: {error}") from error


def _json(path: Path, file: BinaryIO) -> Iterator[Record]:
    """Read JSON Lines, or one JSON value over several lines: a list of records, or one record."""
    first = next((line for line in file if not line.isspace()), b"")
    if _is_object(first):
        file.seek(0)
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                where = f"{path}, line {number}"
                yield where, number, json_line(line, where)
        return
    text = (first + file.read()).decode("utf-8-sig")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        wanted = "a JSON list of rows, or a JSON object in each line"
        if not text.strip():
            raise ConfigError(f"{path} holds no tasks: expected {wanted}") from error
        if not text.startswith(("[", "{")):
            got = shorten(repr(text.partition("\n")[0]))
            raise ConfigError(
                f"{path}, line 1: expected a JSON object, got {got}; the file must hold {wanted}"
            ) from error
        raise ConfigError(f"{path}: expected {wanted}: {error}") from error
    if isinstance(value, list):
        yield from ((f"{path}, row {number}", number, row) for number, row in enumerate(value, start=1))
    else:
        yield f"{path}, line 1", 1, value


def _is_object(line: bytes) -> bool:
    line = line.removeprefix(b"\xef\xbb\xbf").lstrip()
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
