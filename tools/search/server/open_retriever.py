"""From the server's settings to its retriever."""

from __future__ import annotations

from toolgym.tools.errors import ConfigError
from toolgym.tools.search.retriever import Retriever
from toolgym.tools.search.server.config import SearchServerConfig


def open_retriever(config: SearchServerConfig) -> Retriever:
    """Return the retriever over the settings' corpus. Makes its index where there is none, which may take minutes.

    Raises:
        ConfigError: there is no corpus, or it, the index or the model cannot be used.
        MissingExtraError: a package is not installed.
    """
    if config.corpus is None:
        raise ConfigError("name the file of passages to serve: --corpus FILE.jsonl")
    if config.model is None:
        from toolgym.tools.search.bm25 import BM25Retriever

        return BM25Retriever(config.corpus, index=config.index, timeout=config.search_timeout)
    from toolgym.tools.search.dense import DenseRetriever
    from toolgym.tools.search.embedding import load_embedding

    return DenseRetriever(
        config.corpus,
        load_embedding(config.model, pooling=config.pooling, device=config.device),
        version=f"{config.model.absolute()}, {config.pooling}",
        index=config.index,
        query_prefix=config.query_prefix,
        passage_prefix=config.passage_prefix,
        timeout=config.search_timeout,
    )
