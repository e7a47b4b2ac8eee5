"""`ThreadedRetriever`: searches in threads. An index computes, so it must not do so on an event loop."""

from __future__ import annotations

import functools
import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from toolgym.tools.concurrency.blocking import NoThreadError
from toolgym.tools.concurrency.deadline import DeadlineError, together, with_deadline
from toolgym.tools.concurrency.execution_pool import ExecutionPool
from toolgym.tools.errors import RetrievalError, SandboxError, check_seconds
from toolgym.tools.search.retriever import Passage, Retriever


class ThreadedRetriever(Retriever):
    """Searches a file of passages beside all event loops. `_find` is given at most `at_once` queries, or all of a
    thread."""

    corpus: Path

    def __init__(self, *, timeout: float, max_threads: int, at_once: int | None = None) -> None:
        check_seconds(timeout=timeout)
        self._timeout, self._at_once = timeout, at_once
        self._pool = ExecutionPool(max_threads, queue_timeout=timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.corpus}>"

    @abstractmethod
    def _find(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        pass

    @abstractmethod
    def _open(self, id: str) -> Passage | None:
        """Return the passage with an id, in a thread."""

    async def open_passage(self, id: str) -> Passage | None:
        try:
            return await self._pool.run(functools.partial(self._open, id), name="open_passage")
        except (NoThreadError, SandboxError) as error:
            raise RetrievalError(str(error)) from error

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        try:
            return await with_deadline(self._search(queries, topk), self._timeout, queue=self._timeout)
        except DeadlineError as error:
            raise RetrievalError(f"the search {error}") from error
        except (NoThreadError, SandboxError) as error:  # the latter: it is closed
            raise RetrievalError(str(error)) from error

    async def close(self) -> None:
        self._pool.shutdown()

    async def _search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        give_up = time.monotonic() + 2 * self._timeout  # its share of waiting for a thread included
        size = math.ceil(len(queries) / self._pool.num_workers)
        parts = [queries[start : start + size] for start in range(0, len(queries), size)]
        answers = await together(self._part(part, topk, give_up) for part in parts)
        return [passages for answer in answers for passages in answer]

    async def _part(self, queries: Sequence[str], topk: int, give_up: float) -> list[list[Passage]]:
        step = self._at_once or len(queries)

        def run() -> list[list[Passage]]:
            passages: list[list[Passage]] = []
            for start in range(0, len(queries), step):
                if time.monotonic() > give_up:  # its caller has left it behind
                    break
                passages += self._find(queries[start : start + step], topk)
            return passages

        return await self._pool.run(run, name="search")
