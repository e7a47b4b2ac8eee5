"""The search server's service: `/retrieve` as Search-R1 has it, and the older `/observation_kilt/`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pydantic
from aiohttp import web

from toolgym.tools.errors import RetrievalError
from toolgym.tools.search.retriever import Passage, Retriever
from toolgym.tools.search.server.config import SearchServerConfig
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.json_bodies import parse, problem
from toolgym.tools.serving.metrics import ServerMetrics
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError, answer

METRICS_PREFIX = "toolgym_search"


class RetrieveRequest(pydantic.BaseModel):
    """A request of Search-R1's clients; without `topk` the server's setting counts."""

    queries: Annotated[list[str], pydantic.Field(min_length=1)]
    topk: Annotated[int, pydantic.Field(ge=1)] | None = None
    return_scores: bool = False


class RetrieveResponse(pydantic.BaseModel):
    """A list for each query, best first: `{"document": {"id", "contents"}, "score"}`, or the documents without
    scores."""

    result: list[list[dict[str, Any]]]


class PassagesRequest(pydantic.BaseModel):
    """Ids of passages to open."""

    ids: Annotated[list[str], pydantic.Field(min_length=1, max_length=64)]


class PassagesResponse(pydantic.BaseModel):
    """A document `{"id", "contents"}` for each id; null if no passage has the id."""

    result: list[dict[str, Any] | None]


class KiltRequest(pydantic.BaseModel):
    """A request of clients of the older protocol. `translate` has no effect: the server has nothing to translate
    with."""

    content: str
    translate: bool = False


class SearchApp(HttpApp):
    """The service over one retriever, which the caller closes. `folder` holds the workers' sockets; None: this is the
    only one."""

    title = "toolgym search"
    summary = "Passages for queries, as Search-R1's retrieval server answers."

    def __init__(
        self, retriever: Retriever, config: SearchServerConfig, *, worker: int = 0, folder: Path | None = None
    ) -> None:
        gate = Gate(config.share(config.max_concurrency), config.share(config.max_queue), config.queue_timeout)
        self._figures = ServerMetrics(METRICS_PREFIX)
        super().__init__(config, gate, self._figures, worker, folder)
        self._retriever, self._settings = retriever, config
        kilt = {"POST": Operation(self._kilt, "Find passages for one text", KiltRequest, "application/json")}
        retrieve = Operation(self._retrieve, "Find passages for queries", RetrieveRequest, RetrieveResponse)
        passages = Operation(self._passages, "Open passages by their ids", PassagesRequest, PassagesResponse)
        self.add_routes(
            [
                Route("/passages", {"POST": passages}, runs=True),
                Route("/retrieve", {"POST": retrieve}, runs=True),
                Route("/observation_kilt/", kilt, runs=True),
                Route("/observation_kilt", kilt, runs=True),
                self.health_route(),
            ]
        )

    async def _retrieve(self, call: Call) -> web.Response:
        request = parse(RetrieveRequest, call.body)
        most = self._settings.max_queries
        if len(request.queries) > most:
            raise problem(["queries"], f"one request has at most {most} queries here, not {len(request.queries)}")
        topk = self._settings.topk if request.topk is None else request.topk
        if topk > self._settings.max_topk:
            raise problem(["topk"], f"topk is at most {self._settings.max_topk} here", value=topk)
        passages = await self._search(request.queries, topk)
        return answer(
            {"result": [[_document(passage, request.return_scores) for passage in each] for each in passages]}
        )

    async def _passages(self, call: Call) -> web.Response:
        request = parse(PassagesRequest, call.body)
        async with self.gate.slot() as seconds:
            self._figures.queue_seconds.observe(seconds)
            try:
                passages = [await self._retriever.open_passage(id) for id in request.ids]
            except RetrievalError as error:
                raise RequestRefusedError(503, str(error)) from error
        return answer({"result": [None if each is None else _document(each, False) for each in passages]})

    async def _kilt(self, call: Call) -> web.Response:
        request = parse(KiltRequest, call.body)
        [passages] = await self._search([request.content], self._settings.topk)
        return answer([{"content": passage.contents} for passage in passages])

    async def _search(self, queries: list[str], topk: int) -> list[list[Passage]]:
        async with self.gate.slot() as seconds:
            self._figures.queue_seconds.observe(seconds)
            try:
                return await self._retriever.search(queries, topk)
            except RetrievalError as error:  # a ConnectionError, which would look like a client that is gone
                raise RequestRefusedError(503, str(error)) from error

    def about(self) -> Mapping[str, Any]:
        return {"corpus": self._settings.corpus.name if self._settings.corpus is not None else ""}


def _document(passage: Passage, with_score: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": passage.contents}
    return {"document": document, "score": passage.score} if with_score else document
