"""`Retriever`: the contract of everything that finds passages for queries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.errors import RetrievalError


class Passage(NamedTuple):
    """A passage that a retriever found. Its text is without the title; `score` (the higher, the better) and `id` are
    missing if the retriever does not say."""

    title: str
    text: str
    score: float | None = None
    id: str = ""

    @property
    def contents(self) -> str:
        """Title and text as Search-R1 writes them: the first line is the title."""
        return f"{self.title}\n{self.text}" if self.text else self.title

    @classmethod
    def of_contents(cls, contents: str, *, score: float | None = None, id: str = "") -> Passage:
        title, _, text = contents.partition("\n")
        return cls(title, text, score, id)


class Retriever(AsyncCloseable):
    """Finds passages. One serves many episodes at once."""

    @abstractmethod
    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Return at most `topk` passages for each of the queries, best first.

        Raises:
            RetrievalError: the retriever failed, and the queries are not to blame.
        """

    @property
    def can_open(self) -> bool:
        """Whether it implements `open_passage`."""
        return type(self).open_passage is not Retriever.open_passage

    async def open_passage(self, id: str) -> Passage | None:
        """Return the passage with an id; None if there is none.

        Raises:
            RetrievalError: the retriever failed, or cannot open passages.
        """
        raise RetrievalError(f"{self!r} cannot open a passage by its id")
