"""Records of the files that users download: JSON Lines, also compressed; JSON; Parquet; and folders of these."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from toolgym.envs.tasks.row_files import ParquetRows, opened
from toolgym.tools.errors import ConfigError

SUFFIXES = (".json", ".jsonl", ".jsonl.gz", ".json.gz", ".parquet")
"""Names of files that are taken out of a folder end so."""


def records(path: Path) -> Iterator[tuple[str, object]]:
    """Yield each record with its place for errors, such as `train.jsonl, line 3`.

    A file of JSON Lines or Parquet is streamed; a JSON list is one value, and read whole.

    Raises:
        UnknownNameError: there is no such file; names the nearest one.
        ConfigError: a file cannot be read, or a folder has none.
        MissingExtraError: Parquet needs pyarrow.
    """
    if not path.is_dir():
        yield from _of_file(path)
        return
    files = sorted(one for one in path.rglob("*") if one.name.endswith(SUFFIXES) and one.is_file())
    if not files:
        raise ConfigError(f"the folder {str(path)!r} has no file whose name ends with {', '.join(SUFFIXES)}")
    for one in files:
        yield from _of_file(one)


def _of_file(path: Path) -> Iterator[tuple[str, object]]:
    with opened(path) as file:
        if file.read(4) == b"PAR1":
            rows = ParquetRows(path)
            yield from ((rows.where(place), row) for place, row in enumerate(rows))
            return
        file.seek(0)
        if not path.name.endswith(".gz"):
            yield from _json(path, file)
            return
        try:
            with gzip.open(file) as unpacked:
                yield from _json(path, cast(BinaryIO, unpacked))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ConfigError(f"cannot unpack {str(path)!r}: {error}") from error


def _json(path: Path, file: BinaryIO) -> Iterator[tuple[str, object]]:
    """JSON Lines, or one JSON value over several lines: a list of records, or one record."""
    first = _first_line(file)
    if not _is_record(first):
        try:
            value = json.loads((first + file.read()).decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: expected JSON, or a JSON object in each line: {error}") from error
        if isinstance(value, list):
            yield from ((f"{path}, row {number}", one) for number, one in enumerate(value, start=1))
        else:
            yield str(path), value
        return
    file.seek(0)
    for number, line in enumerate(file, start=1):
        if not line.isspace():
            try:
                yield f"{path}, line {number}", json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                got = line[:60].decode("utf-8", "replace").strip()
                raise ConfigError(f"{path}, line {number}: expected a JSON object, got {got!r}: {error}") from error


def _first_line(file: BinaryIO) -> bytes:
    """All up to the first line that is not blank."""
    line = b""
    for line in file:
        if not line.isspace():
            break
    return line


def _is_record(line: bytes) -> bool:
    """Whether a line is a whole object, as in JSON Lines."""
    line = line.removeprefix(b"\xef\xbb\xbf").lstrip()
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
