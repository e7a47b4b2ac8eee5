"""`tools_of`: the tools of an env that has a code interpreter if it is asked for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import ToolFunction, as_tool
from toolgym.tools.library.code_interpreter import CodeInterpreterTool


def tools_of(
    own: Sequence[BaseTool],
    given: Sequence[BaseTool | ToolFunction[..., Any]],
    *,
    code_interpreter: bool,
    tool_config: Mapping[str, Any] | None,
) -> tuple[list[BaseTool], list[BaseTool]]:
    """Return all tools of an env, and those of them that it closes.

    Args:
        own: the env's own. One that has the name of a given one is left out.
        given: the caller's, which stay the caller's to close.
        code_interpreter: whether the env has a code interpreter of its own.
        tool_config: its options.

    Raises:
        ConfigError: `given` is no list of tools, or there are options for no interpreter.
    """
    if not isinstance(given, Sequence):
        raise ConfigError(f"tools must be a list of tools, got {given!r}")
    if tool_config is not None and not code_interpreter:
        raise ConfigError("tool_config is for the env's code interpreter: give code_interpreter=True with it")
    theirs = [as_tool(one) for one in given]
    names = {one.name for one in theirs}
    made = [*own, *([CodeInterpreterTool(tool_config)] if code_interpreter else [])]
    ours = [one for one in made if one.name not in names]
    return [*ours, *theirs], ours
