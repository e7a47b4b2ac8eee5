"""The search server's settings, from a YAML file and from flags, checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic
from pydantic import Field

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.local.host.resources import available_processors
from toolgym.tools.search.retriever import Retriever
from toolgym.tools.serving.config import ServerSpec, ServingConfig, flag


class SearchServerConfig(ServingConfig):
    """Settings of `toolgym serve search`: those of every server (`ServingConfig`), and its own.

    Attributes:
        port: TCP port; 0: any free one.
        workers: processes that share the port. They read one index.
        max_concurrency: requests that search at once, all workers together. Default: 4 per processor.
        body_limit_mb: MiB of one request's body.
        corpus: the file of passages, in JSON Lines.
        index: folder of its index; None: the file's name with `.bm25` behind it, with a model `.dense`.
        model: folder of a model of sentence-transformers or transformers, whose vectors are compared; None: BM25.
        pooling: how such a model of transformers makes a vector: `mean` or `cls`.
        query_prefix: put before each query for the model, such as `query: `.
        passage_prefix: put before each passage for the model, such as `passage: `.
        device: where the model computes.
        topk: passages for each query, if a request does not say.
        max_topk: most passages for each query that a request may ask for.
        max_queries: most queries of one request.
        search_timeout: seconds for the search of one request.
    """

    spec = ServerSpec(
        command="search",
        name="search server",
        worker="toolgym.tools.search.server.worker",
    )

    port: int = flag(8000, ge=0, le=65535)
    workers: int = flag(1, ge=1, le=256)
    max_concurrency: int = flag(default_factory=lambda: 4 * available_processors(), ge=1)
    body_limit_mb: pydantic.FiniteFloat = Field(16.0, gt=0)
    corpus: Path | None = flag(None)
    index: Path | None = flag(None)
    model: Path | None = flag(None)
    pooling: Literal["mean", "cls"] = "mean"
    query_prefix: str = ""
    passage_prefix: str = ""
    device: str = "cpu"
    topk: int = flag(3, ge=1)
    max_topk: int = Field(100, ge=1)
    max_queries: int = Field(4096, ge=1)
    search_timeout: pydantic.FiniteFloat = Field(60.0, gt=0)

    def open_retriever(self) -> Retriever:
        if self.corpus is None:
            raise ConfigError("name the file of passages to serve: --corpus FILE.jsonl")
        if self.model is None:
            from toolgym.tools.search.bm25 import BM25Retriever

            return BM25Retriever(self.corpus, index=self.index, timeout=self.search_timeout)
        from toolgym.tools.search.dense import DenseRetriever
        from toolgym.tools.search.embedding import load_embedding

        return DenseRetriever(
            self.corpus,
            load_embedding(self.model, pooling=self.pooling, device=self.device),
            version=f"{self.model.absolute()}, {self.pooling}",
            index=self.index,
            query_prefix=self.query_prefix,
            passage_prefix=self.passage_prefix,
            timeout=self.search_timeout,
        )
