"""The tools of an env: by their names, and who closes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from toolgym.tools.base import BaseTool
from toolgym.tools.errors import ConfigError
from toolgym.tools.function import ToolFunction, as_tool


class OwnTools:
    """Tools that an env and its forks own together: the last of them to close closes the tools.

    Attributes:
        tools: the tools.
        owners: how many envs own them; a fork adds itself.
    """

    def __init__(self, tools: Sequence[BaseTool]) -> None:
        self.tools = tools
        self.owners = 1

    async def drop(self) -> None:
        """Give up one env's part. Raises what closing a tool raised; the others are closed nevertheless."""
        self.owners -= 1
        if not self.owners:
            async with AsyncExitStack() as stack:  # all are closed, also when one raises
                for owned in self.tools:
                    stack.push_async_callback(owned.close)


def tools_by_name(tools: Sequence[BaseTool | ToolFunction[..., Any]]) -> dict[str, BaseTool]:
    """Return the tools by name, in their order.

    Raises:
        ConfigError: one is no tool, or two have the same name.
    """
    by_name: dict[str, BaseTool] = {}
    for place, named in enumerate(map(as_tool, tools)):
        if named.name in by_name:
            first = list(by_name).index(named.name)
            raise ConfigError(
                f"tools of one env need unique names, got two called {named.name!r}: tools {first} "
                f"({type(by_name[named.name]).__name__}) and {place} ({type(named).__name__})"
            )
        by_name[named.name] = named
    return by_name
