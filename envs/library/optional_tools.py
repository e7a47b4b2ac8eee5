"""`tools_of`: the tools of an env that has a code interpreter if it is asked for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import ToolFunction, as_tool
from toolgym.tools.library.code_interpreter import CodeInterpreterTool


def tools_of(
    tools: Sequence[BaseTool],
    further: Sequence[BaseTool | ToolFunction[..., Any]],
    *,
    code_interpreter: bool,
    tool_config: Mapping[str, Any] | None,
) -> tuple[list[BaseTool], list[BaseTool]]:
    """Return all tools of an env, and those of them that it closes: its own ones without those that a further one
    replaces.
    """
    if not isinstance(further, Sequence):
        raise ConfigError(f"tools must be a list of tools, got {further!r}")
    if tool_config is not None and not code_interpreter:
        raise ConfigError("tool_config is for the env's code interpreter: give code_interpreter=True with it")
    theirs = [*map(as_tool, further)]
    names = {tool.name for tool in theirs}
    interpreters = [CodeInterpreterTool(tool_config)] if code_interpreter else []
    ours = [tool for tool in (*tools, *interpreters) if tool.name not in names]
    return [*ours, *theirs], ours
