"""`SearchTool`: the model sends queries, and reads the passages that a retriever finds.

```yaml
- class_name: toolgym.tools.SearchTool
  config: {retrieval_service_url: "http://10.0.0.7:8000/retrieve", topk: 3}
```

or without a server, `config: {corpus: passages.jsonl, topk: 3}`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pydantic

from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter, RateLimiter
from toolgym.tools.concurrency.run_limits import LimitScope, hold_permits, named_limiter
from toolgym.tools.config import read_options
from toolgym.tools.errors import ConfigError, RetrievalError
from toolgym.tools.schema import ToolSchema
from toolgym.tools.search.retriever import Passage, Retriever
from toolgym.tools.search.service import Protocol, RetrievalService

GLOBAL_LIMIT_NAME = "search"

SEARCH_FAILED = "[The search failed; your queries are not to blame]"
"""The reason, with its hosts, is in the call's metrics."""

NO_QUERIES = "'query_list' must be a list of at least one query, each a text that is not empty."


class SearchConfig(pydantic.BaseModel):
    """Options of `SearchTool`. The names are those of verl's former search tool."""

    model_config = pydantic.ConfigDict(extra="forbid", populate_by_name=True)

    retrieval_service_url: str | list[str] | None = None
    """Address of the retrieval server with its path, or of several equal ones, see `RetrievalService`. This or
    `corpus` is needed, unless the tool is given a retriever."""
    protocol: Protocol = "search-r1"
    """What the servers speak: `search-r1` (`/retrieve`), or `kilt` (`/observation_kilt/`)."""
    retrieval_token: pydantic.SecretStr | None = None
    """Bearer token for these servers."""
    corpus: str | None = None
    """A file of passages in JSON Lines, which is searched with BM25 in this process, see `BM25Retriever`."""
    index: str | None = None
    """Folder of its index; None: beside the file. `":memory:"`: it is not written."""
    topk: int = pydantic.Field(default=3, ge=1)
    """Most passages for each query."""
    num_workers: int = pydantic.Field(default=120, ge=1)
    """Calls that this tool object makes at once."""
    rate_limit: int = pydantic.Field(default=120, ge=1)
    """Calls that all search tools of the process make at once, first come, first served."""
    enable_global_rate_limit: bool = True
    """Whether `rate_limit` applies."""
    rate_limit_scope: LimitScope = "process"
    """`rate_limit` counts the calls of the `process`, or, with `cluster`, of all processes of the job on the Ray
    cluster that the process is connected to."""
    timeout: float = pydantic.Field(
        default=30.0, gt=0, validation_alias=pydantic.AliasChoices("timeout", "default_timeout")
    )
    """Seconds for one attempt at a call; waiting for a free place does not count."""
    patience: float = pydantic.Field(default=120.0, gt=0)
    """Seconds for a call with all its attempts."""
    max_result_chars: int = pydantic.Field(default=16384, ge=64)
    """Characters that the model sees of one call; what is beyond is cut at the end, and the text says so."""
    show_ids: bool = False
    """Whether the model sees the id of each passage that has one, so that another tool can open it."""
    max_passage_chars: int | None = pydantic.Field(default=None, ge=1)
    """Characters that the model sees of each passage. Default: all."""
    result_tag: str | None = pydantic.Field(default=None, pattern=r"^[A-Za-z_]+$")
    """A tag that the result stands in, such as Search-R1's `information`; None: no tag."""
    type: str = "native"
    """Kept so that verl's tool files load; only "native" exists."""


class SearchTool(BaseTool):
    """Answers a list of queries with the passages that were found for each.

    It keeps nothing per episode. A task's `execute_kwargs` may have another `topk`. The metrics of a call are `status`
    (`ok`, `no_results`, `wrong_arguments` or `search_failed`), `query_count`, `total_results`, `queue_seconds` and, if
    the retriever failed, `infra_failure` and `error`. Options are those of `SearchConfig`; a `retriever` that is given
    stays the caller's to close.
    """

    stays_on_loop = True
    task_kwargs: Mapping[str, Collection[str]] = {
        "create_kwargs": ("ground_truth", "question", "data_source"),  # verl's rows have them, for a scorer
        "execute_kwargs": ("topk",),
    }
    default_schema = ToolSchema(
        name="search",
        description="Search for passages about each of the queries.",
        parameters={
            "type": "object",
            "properties": {
                "query_list": {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "minItems": 1,
                    "description": "The queries, each a whole question or phrase.",
                }
            },
            "required": ["query_list"],
        },
    )

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        tool_schema: ToolSchema | Mapping[str, Any] | None = None,
        *,
        retriever: Retriever | None = None,
    ) -> None:
        super().__init__(config, tool_schema)
        self.options = options = read_options(SearchConfig, self.config, "search")
        self._owns_retriever = retriever is None
        self.retriever = retriever if retriever is not None else retriever_of(options, "search")
        self._limiters: list[RateLimiter] = [LocalRateLimiter(options.num_workers)]
        if options.enable_global_rate_limit:
            self._limiters.append(named_limiter(GLOBAL_LIMIT_NAME, options.rate_limit, options.rate_limit_scope))

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        queries = parameters["query_list"]
        if (
            not isinstance(queries, list)
            or not queries
            or not all(isinstance(query, str) and query for query in queries)
        ):
            return ToolResult(NO_QUERIES, 0.0, {"status": "wrong_arguments"})
        metrics: dict[str, Any] = {"status": "ok", "query_count": len(queries), "total_results": 0}
        async with hold_permits(self._limiters) as queued:
            metrics["queue_seconds"] = queued()
            try:
                passages = await self.retriever.search(queries, int(execute_kwargs.get("topk", self.options.topk)))
            except RetrievalError as error:
                metrics |= {"status": "search_failed", "infra_failure": True, "error": str(error)}
                return ToolResult(self._tagged(SEARCH_FAILED), 0.0, metrics)
        metrics["total_results"] = sum(map(len, passages))
        if not metrics["total_results"]:
            metrics["status"] = "no_results"
        options = self.options
        text = render_passages(
            passages, options.max_result_chars, show_ids=options.show_ids, max_passage_chars=options.max_passage_chars
        )
        return ToolResult(self._tagged(text), 0.0, metrics)

    def _tagged(self, text: str) -> str:
        tag = self.options.result_tag
        return text if tag is None else f"<{tag}>{text}</{tag}>"

    async def fork(self, instance_id: str) -> str:
        return await self.create()

    async def close(self) -> None:
        await super().close()
        self._limiters = []  # another tool may set another limit of the process now
        if self._owns_retriever:
            await self.retriever.close()


def render_passages(
    results: Sequence[Sequence[Passage]],
    max_chars: int = 16384,
    *,
    show_ids: bool = False,
    max_passage_chars: int | None = None,
) -> str:
    """Return the results in the form of Search-R1: numbered passages, `---` between queries. With `show_ids`, the id
    stands after the title."""
    if not any(results):
        return "No search results found."
    text = "\n---\n".join(
        "\n\n".join(
            f"Doc {number} ({_head(passage, show_ids)})\n{_cut(passage.text, max_passage_chars)}"
            for number, passage in enumerate(passages, 1)
        ).strip()
        for passages in results
    )
    return text if len(text) <= max_chars else f"{text[:max_chars]}\n... [{len(text) - max_chars} characters cut]"


def _head(passage: Passage, show_ids: bool) -> str:
    return f"Title: {passage.title}, id: {passage.id}" if show_ids and passage.id else f"Title: {passage.title}"


def _cut(text: str, max_chars: int | None) -> str:
    if max_chars is None or len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}... [{len(text) - max_chars} more characters]"


def retriever_of(options: SearchConfig, what: str) -> Retriever:
    """Return the retriever that options name; `what` is the tool's name in errors."""
    if (options.retrieval_service_url is None) == (options.corpus is None):
        raise ConfigError(
            f"{what}: give one of the options 'retrieval_service_url' (a server) and 'corpus' (a file), or the tool a "
            "retriever"
        )
    if options.corpus is not None:
        from toolgym.tools.search.bm25 import BM25Retriever

        return BM25Retriever(options.corpus, index=options.index, timeout=options.timeout)
    assert options.retrieval_service_url is not None
    token = options.retrieval_token
    return RetrievalService(
        options.retrieval_service_url,
        timeout=options.timeout,
        patience=options.patience,
        max_connections=options.num_workers,
        token=None if token is None else token.get_secret_value(),
        protocol=options.protocol,
    )
