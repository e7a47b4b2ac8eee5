"""`BM25Retriever`: passages of a file by the words that they share with a query. Needs the extra `search` (bm25s)."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from toolgym.tools.errors import ConfigError, RetrievalError
from toolgym.tools.lazy import missing_extra
from toolgym.tools.sandbox.local.host.resources import available_processors
from toolgym.tools.search.corpus import Corpus, read_passages
from toolgym.tools.search.index_folder import index_folder
from toolgym.tools.search.passage_ids import PassageIds
from toolgym.tools.search.retriever import Passage
from toolgym.tools.search.threads import ThreadedRetriever

try:
    import bm25s
except ImportError as error:
    raise missing_extra("search", "Searching with BM25", error) from error

IN_MEMORY = ":memory:"
PLACES = "places.npy"
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")
"""A word; or one character of a script that puts no spaces between words."""

_BLOCK = 4 * 1024 * 1024
"""Scores that are sorted at once while an index is made."""

_WIDTH = 1024
"""Scores of one block, of which the best are looked for."""

logging.getLogger("bm25s").setLevel(logging.WARNING)


class BM25Retriever(ThreadedRetriever):
    """Searches a file of passages with BM25, in this process.

    The index lies on disk; the passages stay in their file. It is made when the first retriever for the file is (a
    million passages take some minutes), and again when the file has changed, and serves all processes. Words are
    compared in lower case, without English stop words; Chinese, Japanese and Korean characters one by one. A passage
    that shares no word with a query is not found. May be used from several event loops.

    Args:
        corpus: a file of JSON Lines, see `toolgym.tools.search.corpus`.
        index: the index's folder; None: the file's name with `.bm25` behind it; `":memory:"`: made each time, and not
            written.
        timeout: seconds for one call, not counting the wait for a free thread; as long again for that.
    """

    def __init__(self, corpus: str | Path, *, index: str | Path | None = None, timeout: float = 30.0) -> None:
        super().__init__(timeout=timeout, max_threads=available_processors(), at_once=1)
        self._index: _Index | None = _Index.shared(Path(corpus).absolute(), index)
        self.corpus = self._index.corpus.path

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index)

    async def close(self) -> None:
        self._index = None  # the last retriever to let go of it closes its files
        await super().close()

    def _open(self, id: str) -> Passage | None:
        index = self._index
        if index is None:
            raise RetrievalError("the retriever is closed")
        return index.ids.find(id)

    def _find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        index = self._index
        if index is None:
            raise RetrievalError("the retriever is closed")
        return [read_passages(index.corpus, index.places, index.best(query, topk)) for query in queries]


class _Index:
    _open: ClassVar[weakref.WeakValueDictionary[tuple[Any, ...], _Index]] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    def __init__(self, corpus: Corpus, scores: bm25s.BM25, places: Sequence[int]) -> None:
        self.corpus, self._scores, self.places = corpus, scores, places
        self.ids = PassageIds(corpus, places)
        self._words = _tokenizer()
        self._words.word_to_id = scores.vocab_dict
        scores.unique_token_ids_set = set()  # only for `retrieve`, and large
        weakref.finalize(self, corpus.close)

    @classmethod
    def shared(cls, path: Path, index: str | Path | None) -> _Index:
        in_memory = index == IN_MEMORY
        folder = path.with_name(f"{path.name}.bm25") if index is None else Path(index).absolute()
        corpus = Corpus(path)
        key = (path, IN_MEMORY if in_memory else folder, *corpus.fingerprint.values())
        with cls._lock:
            opened = cls._open.get(key)
            if opened is not None:
                corpus.close()
                return opened
            try:
                opened = cls(corpus, *_build(corpus)) if in_memory else cls._from_disk(corpus, folder)
            except BaseException:  # the corpus is this call's to close
                corpus.close()
                raise
            cls._open[key] = opened
            return opened

    @classmethod
    def _from_disk(cls, corpus: Corpus, folder: Path) -> _Index:
        def build(new: Path) -> None:
            scores, places = _build(corpus)
            scores.save(new, show_progress=False)
            np.save(new / PLACES, np.frombuffer(places, dtype=np.int64))

        with index_folder(folder, corpus, {"kind": "bm25", "bm25s": bm25s.__version__}, build):
            scores = bm25s.BM25.load(folder, mmap=True, show_progress=False)
            return cls(corpus, scores, np.load(folder / PLACES, mmap_mode="r"))

    def __len__(self) -> int:
        return len(self.places) - 1

    def best(self, query: str, topk: int) -> list[tuple[int, float]]:
        """Return the rows of the best passages and their scores, best first; of equal ones the first in the file."""
        [words] = self._words.streaming_tokenize([query], update_vocab="never", allow_empty=False)
        if not words:
            return []
        scores: NDArray[np.float32] = self._scores.get_scores_from_ids(words)
        least = _least(scores, topk)
        rows = np.flatnonzero(scores >= least if least > 0 else scores)
        rows = rows[np.lexsort((rows, -scores[rows]))][:topk]
        return list(zip(rows.tolist(), scores[rows].tolist(), strict=True))


def _least(scores: NDArray[np.float32], topk: int) -> float:
    blocks = len(scores) // _WIDTH
    if blocks > topk:  # the best are in those `topk` blocks whose maxima are the highest
        whole = scores[: blocks * _WIDTH].reshape(blocks, _WIDTH)
        highest = np.argpartition(whole.max(axis=1), -topk)[-topk:]
        scores = np.concatenate([whole[highest].ravel(), scores[blocks * _WIDTH :]])
    return float(np.partition(scores, -topk)[-topk]) if topk < len(scores) else 0.0


def _build(corpus: Corpus) -> tuple[bm25s.BM25, array[int]]:
    places, words = array("q"), _tokenizer()
    texts = (f"{passage.title} {passage.text}" for passage in corpus.scan(places))
    rows = _Rows()
    for ids in words.streaming_tokenize(texts, allow_empty=False):
        rows.append(ids)
    if not words.word_to_id:
        raise ConfigError(f"the passages of {str(corpus.path)!r} hold no words")
    scores = _BM25(method="lucene")
    scores.index(bm25s.tokenization.Tokenized(rows, words.word_to_id), create_empty_token=False, show_progress=False)
    return scores, places


def _tokenizer() -> bm25s.tokenization.Tokenizer:
    return bm25s.tokenization.Tokenizer(splitter=_WORD.findall, stopwords="english")


class _Rows:
    """Lists of numbers in one block of memory: a list of lists takes ten times as much."""

    def __init__(self) -> None:
        self._numbers, self._ends = array("i"), array("q", [0])

    def append(self, numbers: list[int]) -> None:
        self._numbers.extend(numbers)
        self._ends.append(len(self._numbers))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        for row in range(len(self)):
            yield self._numbers[self._ends[row] : self._ends[row + 1]].tolist()


class _BM25(bm25s.BM25):  # type: ignore[misc]  # it has no types
    """Sorts the scores by word in blocks. bm25s sorts all at once, which takes four times the memory of the index."""

    @staticmethod
    def _np_csc(
        data: NDArray[np.float32], rows: NDArray[np.int32], cols: NDArray[np.int32], shape: tuple[int, int]
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int64]]:
        ends = np.zeros(shape[1] + 1, dtype=np.int64)
        np.cumsum(np.bincount(cols, minlength=shape[1]), out=ends[1:])
        free = ends[:-1].copy()  # where each word's next score goes
        sorted_data, sorted_rows = np.empty_like(data), np.empty_like(rows)
        for start in range(0, len(data), _BLOCK):
            block = cols[start : start + _BLOCK]
            order = np.argsort(block, kind="stable")
            words, firsts, counts = np.unique(block[order], return_index=True, return_counts=True)
            within = np.arange(len(block)) - np.repeat(firsts, counts)
            targets = np.repeat(free[words], counts) + within
            sorted_data[targets], sorted_rows[targets] = data[start:][order], rows[start:][order]
            free[words] += counts
        return sorted_data, sorted_rows, ends
