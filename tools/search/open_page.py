"""`OpenPageTool`: the model reads the whole of a passage that a search showed, by its id.

```yaml
- class_name: toolgym.tools.SearchTool
  config: {corpus: pages.jsonl, show_ids: true, max_passage_chars: 300}
- class_name: toolgym.tools.OpenPageTool
  config: {corpus: pages.jsonl}
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.config import read_options
from toolgym.tools.errors import ConfigError, RetrievalError
from toolgym.tools.schema import ToolSchema
from toolgym.tools.search.retriever import Retriever
from toolgym.tools.search.tool import SEARCH_FAILED, SearchConfig, retriever_of


class OpenPageTool(BaseTool):
    """Shows one passage, from a character on, at most `max_result_chars` at once.

    It keeps nothing per episode. The metrics of a call are `status` (`ok`, `no_page` or `search_failed`) and, if the
    retriever failed, `infra_failure` and `error`. Options are those of `SearchConfig`; a `retriever` that is given
    stays the caller's to close. Raises `ConfigError` if the retriever cannot open passages.
    """

    stays_on_loop = True
    task_kwargs: Mapping[str, Collection[str]] = {"execute_kwargs": ()}
    default_schema = ToolSchema(
        name="open_page",
        description="Read the whole of a passage that a search showed.",
        parameters={
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "The id that the search showed."},
                "start": {"type": "integer", "default": 0, "minimum": 0, "description": "The first character to read."},
            },
            "required": ["id"],
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
        self.options = read_options(SearchConfig, self.config, "open_page")
        if retriever is not None and not retriever.can_open:
            raise ConfigError(f"{retriever!r} cannot open a passage by its id: give it the method open_passage")
        self._owns_retriever = retriever is None
        self.retriever = retriever if retriever is not None else retriever_of(self.options, "open_page")

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        page, start = str(parameters["id"]).strip(), int(parameters.get("start") or 0)
        try:
            passage = await self.retriever.open_passage(page)
        except RetrievalError as error:
            metrics = {"status": "search_failed", "infra_failure": True, "error": str(error)}
            return ToolResult(SEARCH_FAILED, 0.0, metrics)
        if passage is None:
            return ToolResult(f"[There is no page with the id {page[:100]!r}]", 0.0, {"status": "no_page"})
        text = passage.contents[start : start + self.options.max_result_chars]
        remaining = len(passage.contents) - start - len(text)
        if not text:
            text = f"[The page has {len(passage.contents)} characters]"
        elif remaining > 0:
            text += f"\n... [{remaining} more characters; go on with start={start + len(text)}]"
        return ToolResult(text, 0.0, {"status": "ok"})

    async def fork(self, instance_id: str) -> str:
        return await self.create()

    async def close(self) -> None:
        await super().close()
        if self._owns_retriever:
            await self.retriever.close()
