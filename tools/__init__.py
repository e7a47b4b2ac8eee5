"""Floor 1: what a model can call, and the sandbox that calls run in."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolgym.tools.base import BaseTool, ToolResult
    from toolgym.tools.code_interpreter import CodeInterpreterConfig, CodeInterpreterTool
    from toolgym.tools.config import from_config
    from toolgym.tools.errors import ToolgymError
    from toolgym.tools.function import FunctionTool, tool
    from toolgym.tools.message import Message
    from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError, ToolSchema

_HOMES = {
    "BaseTool": "base",
    "CallProblem": "schema",
    "CodeInterpreterConfig": "code_interpreter",
    "CodeInterpreterTool": "code_interpreter",
    "FunctionTool": "function",
    "Message": "message",
    "ToolCall": "schema",
    "ToolCallError": "schema",
    "ToolResult": "base",
    "ToolSchema": "schema",
    "ToolgymError": "errors",
    "from_config": "config",
    "tool": "function",
}

__all__ = [
    "BaseTool",
    "CallProblem",
    "CodeInterpreterConfig",
    "CodeInterpreterTool",
    "FunctionTool",
    "Message",
    "ToolCall",
    "ToolCallError",
    "ToolResult",
    "ToolSchema",
    "ToolgymError",
    "from_config",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
