"""`PassageIds`: from the id of a passage to its place in a corpus."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.search.corpus import Corpus
from toolgym.tools.search.retriever import Passage


class PassageIds:
    """Finds passages by id. Blocks; callable from many threads.

    An id that is the number of its line, counted from 0, is found at once. For any other id the file is read once, and
    16 bytes of memory are kept for each passage. Of passages with the same id, the first is found.
    """

    def __init__(self, corpus: Corpus, places: Sequence[int]) -> None:
        self._corpus, self._places = corpus, places
        self._lock = threading.Lock()
        self._hashes: NDArray[np.uint64] | None = None
        self._rows: NDArray[np.int64] | None = None

    def find(self, id: str) -> Passage | None:
        """Return the passage with an id; None if there is none. Raises `RetrievalError` if the file was changed."""
        if id.isascii() and id.isdigit() and len(id) < 19 and int(id) < len(self._places) - 1:
            passage = self._read(int(id))
            if passage.id == id:
                return passage
        hashes, rows = self._index()
        wanted = np.uint64(_hash(id))
        start, end = (int(np.searchsorted(hashes, wanted, side)) for side in ("left", "right"))
        passages = (self._read(int(row)) for row in np.sort(rows[start:end]))
        return next((passage for passage in passages if passage.id == id), None)

    def _read(self, row: int) -> Passage:
        return self._corpus.read(int(self._places[row]), int(self._places[row + 1]))

    def _index(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        with self._lock:
            if self._hashes is None or self._rows is None:
                hashes = np.fromiter((_hash(passage.id) for passage in self._corpus.scan(array("q"))), dtype=np.uint64)
                self._rows = np.argsort(hashes, kind="stable")
                self._hashes = hashes[self._rows]
            return self._hashes, self._rows


def _hash(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
