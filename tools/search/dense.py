"""`DenseRetriever`: passages of a file by the inner product of their vectors with a query's, computed exactly."""

from __future__ import annotations

import itertools
import weakref
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.errors import ConfigError, RetrievalError, error_text, require_whole_number
from toolgym.tools.search.corpus import Corpus, read_passages
from toolgym.tools.search.index_folder import index_folder
from toolgym.tools.search.passage_ids import PassageIds
from toolgym.tools.search.retriever import Passage
from toolgym.tools.search.threads import ThreadedRetriever

Embed = Callable[[Sequence[str]], NDArray[Any]]
"""From texts to their vectors, [text, dimension]. It is called from threads, one at a time; but one whose call took too
long may still be at it."""

_ROWS = 65536

VECTORS, PLACES = "vectors.f32", "places.npy"


class DenseRetriever(ThreadedRetriever):
    """Searches a file of passages by vectors, in this process.

    The vectors lie in a memory-mapped file of float32, made when the first retriever for the file is, and again when
    the file or the embedding has changed. May be used from several event loops.

    Args:
        corpus: a file of JSON Lines, see `toolgym.tools.search.corpus`.
        embed: gives the vectors, such as `toolgym.tools.search.embedding.load_embedding(FOLDER)`.
        version: names the embedding: under another name, the vectors are made again.
        index: folder of the vectors; None: the file's name with `.dense` behind it.
        query_prefix: put before each query, as some models want it: E5's is `"query: "`.
        passage_prefix: put before each passage: E5's is `"passage: "`.
        batch_size: texts that `embed` gets at once.
        timeout: seconds for one call, not counting the wait for a free thread; as long again for that.
    """

    def __init__(
        self,
        corpus: str | Path,
        embed: Embed,
        *,
        version: str,
        index: str | Path | None = None,
        query_prefix: str = "",
        passage_prefix: str = "",
        batch_size: int = 64,
        timeout: float = 60.0,
    ) -> None:
        require_whole_number("batch_size", batch_size, at_least=1)
        self._embed, self._prefix, self._batch_size = embed, query_prefix, batch_size
        super().__init__(timeout=timeout, max_threads=1)
        self._corpus = Corpus(corpus)
        # A thread may still read the file, which is closed once none refers to this retriever.
        weakref.finalize(self, self._corpus.close)
        path = self.corpus = self._corpus.path
        folder = path.with_name(f"{path.name}.dense") if index is None else Path(index).absolute()
        about = {"kind": "dense", "version": version, "prefix": passage_prefix}
        with index_folder(folder, self._corpus, about, lambda new: self._build(new, passage_prefix)):
            self._places = np.load(folder / PLACES, mmap_mode="r")
            numbers = np.memmap(folder / VECTORS, dtype=np.float32, mode="r")
            self._vectors = numbers.reshape(len(self._places) - 1, -1)

        self._ids = PassageIds(self._corpus, self._places)

    def __len__(self) -> int:
        return len(self._vectors)

    def _build(self, folder: Path, prefix: str) -> None:
        places = array("q")
        passages = self._corpus.scan(places)
        with open(folder / VECTORS, "wb") as file:
            while batch := list(itertools.islice(passages, self._batch_size)):
                file.write(self._vectors_of([prefix + passage.contents for passage in batch]).tobytes())
        np.save(folder / PLACES, np.frombuffer(places, dtype=np.int64))

    def _vectors_of(self, texts: list[str]) -> NDArray[np.float32]:
        vectors = np.asarray(self._embed(texts), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise ConfigError(
                f"an embedding gives a finite vector for each text: expected [{len(texts)}, dimension], got the shape "
                f"{list(vectors.shape)}"
            )
        return vectors

    def _open(self, id: str) -> Passage | None:
        return self._ids.find(id)

    def _find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        try:
            asked = self._vectors_of([self._prefix + query for query in queries])
            best = _best(self._vectors, asked, topk)
        except Exception as error:
            raise RetrievalError(f"the embedding failed: {error_text(error)}") from error
        return [read_passages(self._corpus, self._places, hits) for hits in best]


def _best(vectors: NDArray[np.float32], asked: NDArray[np.float32], topk: int) -> list[list[tuple[int, float]]]:
    """For `vectors` [passage, dimension] and `asked` [query, dimension]: rows with their inner products, best first."""
    if vectors.shape[1] != asked.shape[1]:
        raise ConfigError(f"the index has {vectors.shape[1]} dimensions, the query's vector {asked.shape[1]}")
    rows = np.empty((len(asked), 0), dtype=np.int64)
    scores = np.empty((len(asked), 0), dtype=np.float32)
    for start in range(0, len(vectors), _ROWS):
        block = asked @ vectors[start : start + _ROWS].T
        numbers = np.broadcast_to(np.arange(start, start + block.shape[1]), block.shape)
        rows, scores = np.concatenate([rows, numbers], axis=1), np.concatenate([scores, block], axis=1)
        if topk < scores.shape[1]:
            keep = np.argpartition(scores, -topk, axis=1)[:, -topk:]
            rows, scores = np.take_along_axis(rows, keep, 1), np.take_along_axis(scores, keep, 1)
    order = [np.lexsort((numbers, -values)) for numbers, values in zip(rows, scores, strict=True)]
    return [
        list(zip(numbers[places].tolist(), values[places].tolist(), strict=True))
        for numbers, values, places in zip(rows, scores, order, strict=True)
    ]
