"""A corpus: a file with a passage in each line, which stays on disk.

A line is a JSON object in one of two shapes: Search-R1's `{"id": "7", "contents": "title\\ntext"}`, with any further
fields, or `{"title": "...", "text": "..."}`, in which the title and an `id` may be missing. (Source of the first:
`search_r1/search/retrieval_server.py` of Search-R1; FlashRAG's corpora have it too.)
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from toolgym.tools.errors import ConfigError, RetrievalError, missing_file, shorten
from toolgym.tools.search.retriever import Passage

_GZIP, _BOM = b"\x1f\x8b", b"\xef\xbb\xbf"


class Corpus:
    """The passages of a file of JSON Lines, each read from it when it is asked for. Safe for many threads."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115  `close` closes it
        except FileNotFoundError:
            raise missing_file("corpus", self.path) from None
        except OSError as error:
            raise ConfigError(f"cannot read the corpus {str(path)!r}: {error}") from error
        if os.pread(self._file.fileno(), 2, 0) == _GZIP:
            self.close()
            raise ConfigError(
                f"the corpus {str(path)!r} is compressed: unpack it first (gunzip), to find passages fast"
            )

    @property
    def fingerprint(self) -> dict[str, int]:
        """Other versions of the file do not have this size and time."""
        stat = os.fstat(self._file.fileno())
        return {"size": stat.st_size, "changed_ns": stat.st_mtime_ns}

    def close(self) -> None:
        self._file.close()

    def scan(self, places: array[int]) -> Iterator[Passage]:
        """Read the file once, without keeping it. `places` gets the place in bytes of each passage, and at last the
        end. A line that is no passage is a `ConfigError` that names it, and so is a file without any."""
        place = 0
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if content.strip():
                    places.append(place)
                    try:
                        yield read_passage(content)
                    except ConfigError as error:
                        raise ConfigError(f"{self.path}, line {number}: {error}") from None
                place += len(line)
        if not places:
            raise ConfigError(f"the corpus {str(self.path)!r} holds no passages")
        places.append(place)

    def read(self, place: int, end: int) -> Passage:
        """Return the passage between two places. Raises `RetrievalError` if the file was changed."""
        try:
            return read_passage(os.pread(self._file.fileno(), end - place, place).removeprefix(_BOM))
        except (OSError, ValueError, ConfigError) as error:
            raise RetrievalError(f"the corpus {str(self.path)!r} was changed while it is searched: {error}") from error


def read_passage(line: bytes) -> Passage:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"expected a JSON object, got {shorten(line.decode('utf-8', 'replace').strip(), 60)!r}: {error}"
        ) from None
    if not isinstance(row, dict):
        raise ConfigError(f"expected a JSON object, got {shorten(repr(row), 60)}")
    id = row.get("id")
    id = "" if id is None else str(id)
    if "contents" in row:
        return Passage.of_contents(_text(row, "contents"), id=id)
    if "text" in row:
        title = _text(row, "title") if row.get("title") is not None else ""
        return Passage(title, _text(row, "text"), id=id)
    names = shorten(", ".join(map(str, row)), 100)
    raise ConfigError(f"a passage has 'contents', or 'text' and 'title'; this one has {names or 'nothing'}")


def _text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise ConfigError(f"{name!r} must be text, got {shorten(repr(value), 60)}")
    return value


def read_passages(corpus: Corpus, places: Sequence[int], hits: Sequence[tuple[int, float]]) -> list[Passage]:
    return [corpus.read(int(places[row]), int(places[row + 1]))._replace(score=score) for row, score in hits]
