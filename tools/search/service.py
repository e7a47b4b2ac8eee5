"""`RetrievalService`: passages from a retrieval server, in the protocol of Search-R1.

The request is `POST {"queries": [...], "topk": 3, "return_scores": true}`, to the very address that is given. The
answer is `{"result": [[{"document": {"contents": "title\\ntext"}, "score": 0.5}, ...], ...]}`, one list for each query;
a document may also stand there by itself. (Source: `search_r1/search/retrieval_server.py` of Search-R1, and the search
tool that verl had until 0.8, `verl/tools/utils/search_r1_like_utils.py`.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.errors import ConfigError, RetrievalError, check_seconds, shorten
from toolgym.tools.http.addresses import check_address
from toolgym.tools.http.client import (
    CallError,
    ClientClosedError,
    GarbledError,
    HttpClient,
    Request,
    excerpt,
    json_body,
)
from toolgym.tools.http.replicas import Replica
from toolgym.tools.http.retries import Retries
from toolgym.tools.http.session import HttpSession, Reply
from toolgym.tools.search.retriever import Passage, Retriever

MAX_ANSWER = 32 * 1024 * 1024
"""Most bytes of one answer."""


class RetrievalService(Retriever):
    """Searches on one or several equal servers. Belongs to the event loop that first searches with it.

    A call goes to the server that has the least to do, and again, maybe to another one, where a server cannot be
    reached, breaks off, is full, or answers with a status of 500 and more.

    Args:
        urls: the servers' addresses, with the path: `http://host:8000/retrieve`.
        timeout: seconds for one attempt.
        patience: seconds for a call with all its attempts.
        max_connections: connections at once, to all servers.
        token: sent as a bearer token; None: nothing is sent.

    Raises:
        ConfigError: an address or a time cannot be used; says which.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        timeout: float = 30.0,
        patience: float = 120.0,
        max_connections: int = 120,
        token: str | None = None,
    ) -> None:
        given = [urls] if isinstance(urls, str) else urls
        if not isinstance(given, Sequence) or not given:
            raise ConfigError(f"a RetrievalService needs at least one address, got {urls!r}")
        self.urls = tuple(dict.fromkeys(check_address(url, "a retrieval server") for url in given))
        check_seconds(timeout=timeout, patience=patience)
        self._retries = Retries(attempt_margin=timeout, patience=patience)
        self._max_connections = max_connections
        self._token = token
        self._client: HttpClient[Replica] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.urls)}>"

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """See `Retriever.search`.

        Raises:
            RetrievalError: no server answered properly in time, or the service is closed.
            ConfigError: another event loop uses it already.
        """
        body = json_body({"queries": list(queries), "topk": topk, "return_scores": True})
        try:
            found, _ = await self._connected().call(Request("POST", "", body), lambda reply: _read(reply, len(queries)))
        except (CallError, ClientClosedError) as error:
            raise RetrievalError(str(error)) from error
        return found

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()

    def _connected(self) -> HttpClient[Replica]:
        here = asyncio.get_running_loop()
        if self._closed:
            raise ClientClosedError("the retrieval service is closed")
        if self._client is None or self._loop is None or self._loop.is_closed():
            session = HttpSession(self._token, self._max_connections, self._retries.connect_timeout, MAX_ANSWER)
            # A health check asks the same address: what it answers a GET, be it that it takes none, will do.
            self._client = HttpClient([Replica(url) for url in self.urls], self._retries, session, health_path="")
            self._loop = here
        if self._loop is not here:
            raise ConfigError(f"{self!r} belongs to another event loop: make one for each")
        return self._client


def _read(reply: Reply, queries: int) -> list[list[Passage]]:
    if reply.status >= 500:
        raise GarbledError(f"it answered {reply.status}: {excerpt(reply.body)}")  # it may be better the next time
    if reply.status != 200:
        raise CallError(f"the retrieval server answered {reply.status}: {excerpt(reply.body)}")
    try:
        answer = json.loads(reply.body)
    except ValueError as error:
        raise GarbledError(f"the answer is no JSON: {error}") from None
    results = answer.get("result") if isinstance(answer, Mapping) else None
    if not isinstance(results, list) or len(results) != queries or not all(isinstance(one, list) for one in results):
        raise GarbledError(f"expected 'result' with a list for each of {queries} queries, got {shorten(repr(answer))}")
    return [[_passage(one) for one in found] for found in results]


def _passage(item: Any) -> Passage:
    document = item.get("document", item) if isinstance(item, Mapping) else None
    contents = document.get("contents") if isinstance(document, Mapping) else None
    if not isinstance(contents, str):
        raise GarbledError(f"a passage needs a text 'contents', got {shorten(repr(item))}")
    title, _, text = contents.partition("\n")
    score = item.get("score")
    return Passage(title, text, float(score) if isinstance(score, int | float) else None)
