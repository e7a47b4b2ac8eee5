"""`RetrievalService`: passages from a retrieval server, in the protocol of Search-R1 or the older one of KILT.

Search-R1: the request is `POST {"queries": [...], "topk": 3, "return_scores": true}`, to the very address that is
given. The answer is `{"result": [[{"document": {"contents": "title\\ntext"}, "score": 0.5}, ...], ...]}`, one list for
each query; a document may also stand there by itself. (Source: `search_r1/search/retrieval_server.py` of Search-R1, and
the search tool that verl had until 0.8, `verl/tools/utils/search_r1_like_utils.py`.)

KILT: the request is `POST {"content": query, "translate": false}` for each query, to the address that ends in
`/observation_kilt/`; the answer is `[{"content": "title\\ntext"}, ...]`, as many as the server likes. (Source: the
description of the sandbox server that verl's former multi-turn branch asked.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

from toolgym.tools.concurrency.deadline import together
from toolgym.tools.errors import ConfigError, RetrievalError, check_seconds, shorten
from toolgym.tools.http.addresses import check_address, check_addresses
from toolgym.tools.http.client import (
    CallError,
    ClientClosedError,
    GarbledError,
    HttpRequest,
    LazyClient,
    excerpt,
    json_body,
)
from toolgym.tools.http.retries import Retries
from toolgym.tools.http.session import HttpResponse
from toolgym.tools.search.retriever import Passage, Retriever

T = TypeVar("T")

Protocol = Literal["search-r1", "kilt"]

MAX_ANSWER = 32 * 1024 * 1024


class RetrievalService(Retriever):
    """Searches on one or several equal servers. Belongs to the event loop that first searches with it.

    A call goes to the server that has the least to do, and again, maybe to another one, if a server cannot be reached,
    breaks off, is full, or answers with a status of 500 and more. `urls` are addresses with the path:
    `http://host:8000/retrieve`. `timeout` is the seconds for one attempt, `patience` those for a call with all its
    attempts.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        timeout: float = 30.0,
        patience: float = 120.0,
        max_connections: int = 120,
        token: str | None = None,
        protocol: Protocol = "search-r1",
    ) -> None:
        if protocol not in get_args(Protocol):
            raise ConfigError(f"protocol must be one of {', '.join(get_args(Protocol))}, got {protocol!r}")
        self.protocol = protocol
        self.urls = check_addresses(urls, "a RetrievalService", _address)
        check_seconds(timeout=timeout, patience=patience)

        def client(urls: Sequence[str]) -> LazyClient:
            # A health check asks the same address: any answer to a GET will do, also that it takes none.
            return LazyClient(
                self,
                urls,
                Retries(attempt_margin=timeout, patience=patience),
                token=token,
                max_connections=max_connections,
                max_answer=MAX_ANSWER,
                health_path="",
            )

        self._client = client(self.urls)
        opens = all(url.endswith("/retrieve") for url in self.urls)
        self._pages = client([f"{url.removesuffix('retrieve')}passages" for url in self.urls]) if opens else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.urls)}>"

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        if self.protocol == "kilt":
            return [passages[:topk] for passages in await together(map(self._kilt, queries))]
        message = {"queries": list(queries), "topk": topk, "return_scores": True}
        return await self._call(message, lambda answer: _read(answer, len(queries)))

    @property
    def can_open(self) -> bool:
        return self._pages is not None

    async def open_passage(self, id: str) -> Passage | None:
        if self._pages is None:
            raise RetrievalError(f"{self!r} cannot open a passage: its addresses do not end in /retrieve")
        request = HttpRequest("POST", "", json_body({"ids": [id]}))
        try:
            passages, _ = await self._pages.connected().call(request, lambda reply: _read_pages(_json(reply)))
        except (CallError, ClientClosedError) as error:
            raise RetrievalError(str(error)) from error
        return passages

    async def _kilt(self, query: str) -> list[Passage]:
        return await self._call({"content": query, "translate": False}, _read_kilt)

    async def _call(self, message: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        request = HttpRequest("POST", "", json_body(message))
        try:
            passages, _ = await self._client.connected().call(request, lambda reply: read(_json(reply)))
        except (CallError, ClientClosedError) as error:
            raise RetrievalError(str(error)) from error
        return passages

    async def close(self) -> None:
        await self._client.close()
        if self._pages is not None:
            await self._pages.close()


def _address(url: object) -> str:
    """A slash at its end is kept: `/observation_kilt/` is another path without it."""
    checked = check_address(url, "a retrieval server")
    return f"{checked}/" if str(url).strip().endswith("/") else checked


def _json(reply: HttpResponse) -> Any:
    if reply.status >= 500:
        raise GarbledError(f"it answered {reply.status}: {excerpt(reply.body)}")  # it may be better the next time
    if reply.status != 200:
        raise CallError(f"the retrieval server answered {reply.status}: {excerpt(reply.body)}")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise GarbledError(f"the answer is no JSON: {error}") from None


def _read(answer: Any, queries: int) -> list[list[Passage]]:
    results = answer.get("result") if isinstance(answer, Mapping) else None
    if (
        not isinstance(results, list)
        or len(results) != queries
        or not all(isinstance(result, list) for result in results)
    ):
        raise GarbledError(f"expected 'result' with a list for each of {queries} queries, got {shorten(repr(answer))}")
    return [[_passage(hit) for hit in result] for result in results]


def _read_pages(answer: Any) -> Passage | None:
    result = answer.get("result") if isinstance(answer, Mapping) else None
    if not isinstance(result, list) or len(result) != 1:
        raise GarbledError(f"expected 'result' with one passage or null, got {shorten(repr(answer))}")
    return None if result[0] is None else _passage(result[0])


def _read_kilt(answer: Any) -> list[Passage]:
    if not isinstance(answer, list) or not all(
        isinstance(item, Mapping) and isinstance(item.get("content"), str) for item in answer
    ):
        raise GarbledError(f"expected a list of passages with a text 'content', got {shorten(repr(answer))}")
    return [Passage.of_contents(item["content"]) for item in answer]


def _passage(item: Any) -> Passage:
    document = item.get("document", item) if isinstance(item, Mapping) else None
    contents = document.get("contents") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(contents, str):
        raise GarbledError(f"a passage needs a text 'contents', got {shorten(repr(item))}")
    score, id = item.get("score"), document.get("id")
    known = isinstance(score, int | float) and not isinstance(score, bool)
    return Passage.of_contents(contents, score=float(score) if known else None, id="" if id is None else str(id))
