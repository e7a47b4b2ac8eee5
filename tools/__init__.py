"""Layer 1: what a model can call, and the sandbox that calls run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.tools.base import BaseTool as BaseTool
    from toolgym.tools.base import ToolResult as ToolResult
    from toolgym.tools.concurrency.execution_pool import runs_inline as runs_inline
    from toolgym.tools.config import from_config as from_config
    from toolgym.tools.errors import ToolgymError as ToolgymError
    from toolgym.tools.function import FunctionTool as FunctionTool
    from toolgym.tools.function import ToolFunction as ToolFunction
    from toolgym.tools.function import tool as tool
    from toolgym.tools.library.bash import BashConfig as BashConfig
    from toolgym.tools.library.bash import BashTool as BashTool
    from toolgym.tools.library.code_interpreter import CodeInterpreterConfig as CodeInterpreterConfig
    from toolgym.tools.library.code_interpreter import CodeInterpreterTool as CodeInterpreterTool
    from toolgym.tools.library.editor import EditorConfig as EditorConfig
    from toolgym.tools.library.editor import EditorTool as EditorTool
    from toolgym.tools.message import Message as Message
    from toolgym.tools.message import image as image
    from toolgym.tools.message import text_part as text_part
    from toolgym.tools.schema import CallProblem as CallProblem
    from toolgym.tools.schema import ToolCall as ToolCall
    from toolgym.tools.schema import ToolCallError as ToolCallError
    from toolgym.tools.schema import ToolSchema as ToolSchema
    from toolgym.tools.search.bm25 import BM25Retriever as BM25Retriever
    from toolgym.tools.search.dense import DenseRetriever as DenseRetriever
    from toolgym.tools.search.open_page import OpenPageTool as OpenPageTool
    from toolgym.tools.search.retriever import Passage as Passage
    from toolgym.tools.search.retriever import Retriever as Retriever
    from toolgym.tools.search.service import RetrievalService as RetrievalService
    from toolgym.tools.search.tool import SearchTool as SearchTool
    from toolgym.tools.sessions.tool_group import ToolGroup as ToolGroup
    from toolgym.tools.sessions.tool_group import tool_method as tool_method
    from toolgym.tools.sessions.workspace import Workspace as Workspace
    from toolgym.tools.stateful import StatefulTool as StatefulTool
    from toolgym.tools.stateful import ToolSession as ToolSession
else:
    __getattr__, __dir__ = lazy_names(__name__)
