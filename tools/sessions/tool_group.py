"""`ToolGroup`: several tools that work on one state, which each episode has for itself.

```python
class Desk(ToolGroup):
    def __init__(self, orders):
        self.orders = {customer: list(names) for customer, names in orders.items()}

    @tool_method
    def cancel(self, customer: str, order: str) -> str:
        \"\"\"Cancel an order.\"\"\"
        self.orders[customer].remove(order)
        return "cancelled"

env = ToolEnv(Desk.tools(), tasks, scorer=lambda outcome: outcome.session("cancel").state.orders == ...)
```
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Self, TypeVar

from toolgym.tools.base import BaseTool, ToolResult, keywords_of
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, ForkNotSupportedError, error_text
from toolgym.tools.function import FunctionTool, tool_of_method
from toolgym.tools.sessions.tool_scope import current_scope
from toolgym.tools.stateful import StatefulTool, ToolSession

M = TypeVar("M", bound=Callable[..., Any])

_MARK = "_toolgym_is_tool"


def tool_method(method: M) -> M:
    """Make a method of a `ToolGroup` a tool.

    The name, the description and the schema come from the method, as those of `tool` come from a function. The method
    may be async; a plain method runs in a thread.
    """
    setattr(method, _MARK, True)
    return method


class ToolGroup:
    """The state of one episode, and the tools that work on it: its methods with `tool_method`.

    The state is made when the episode begins, with the `create_kwargs` that the task has for the first of the tools.
    Calls run one after another. A fork of the env has a deep copy of the state; override `fork` to copy it another way.
    A scorer gets the state with `outcome.session(NAME).state`, where NAME is any of the tools.
    """

    @classmethod
    def tools(cls) -> list[BaseTool]:
        """Return the tools, in the order of their definition; they serve many episodes at once.

        Raises:
            ConfigError: no method is a tool, or the schema of a method cannot be made.
        """
        methods = {
            name: method
            for base in reversed(cls.__mro__)
            for name, method in vars(base).items()
            if getattr(method, _MARK, False)
        }
        if not methods:
            raise ConfigError(f"{cls.__name__} has no tools: put @tool_method above the methods that are tools")
        states = _States(cls)
        return [_GroupTool(states, method, tool_of_method(getattr(cls, method))) for method in methods]

    async def fork(self) -> Self:
        """Return an independent state that is equal to this one. The default is a deep copy."""
        try:
            return copy.deepcopy(self)
        except Exception as error:
            raise ForkNotSupportedError(
                f"{type(self).__name__} cannot be copied, so write its fork: {error_text(error)}"
            ) from error

    async def close(self) -> None:
        """Free what the state holds. Called exactly once."""


class _Shared:
    """The state of one episode; the last of its `users` closes it."""

    def __init__(self) -> None:
        self.state: ToolGroup | None = None
        self.users = 0
        self.making = asyncio.Lock()
        self.calls = asyncio.Lock()


class _States:
    """The states of all episodes that one list of tools serves, by the scope of the episode."""

    def __init__(self, kind: type[ToolGroup]) -> None:
        self.kind = kind
        self._shared: dict[str, _Shared] = {}

    async def open(self, tool: _GroupTool, create_kwargs: dict[str, Any]) -> _GroupSession:
        async def make() -> ToolGroup:
            try:
                return self.kind(**create_kwargs)
            except TypeError as error:
                raise ConfigError(
                    f"the create_kwargs of the tool {tool.name!r} do not make a {self.kind.__name__}: {error}"
                ) from error

        session, is_new = await self._join(tool, make)
        if create_kwargs and not is_new:
            await session.close()
            raise ConfigError(
                f"the tool {tool.name!r} has create_kwargs, but the {self.kind.__name__} of the episode was made for a "
                "tool before it: give them to the first of the tools"
            )
        return session

    async def fork(self, tool: _GroupTool, state: ToolGroup) -> _GroupSession:
        return (await self._join(tool, state.fork))[0]

    async def _join(self, tool: _GroupTool, make: Callable[[], Awaitable[ToolGroup]]) -> tuple[_GroupSession, bool]:
        scope = current_scope()
        shared = _Shared() if scope is None else self._shared.setdefault(scope, _Shared())
        shared.users += 1
        try:
            async with shared.making:
                is_new = shared.state is None
                if shared.state is None:
                    shared.state = await make()
                return _GroupSession(self, scope, shared, tool, shared.state), is_new
        except BaseException:
            await self.leave(scope, shared)
            raise

    async def leave(self, scope: str | None, shared: _Shared) -> None:
        shared.users -= 1
        if not shared.users:
            if scope is not None and self._shared.get(scope) is shared:
                del self._shared[scope]
            if shared.state is not None:
                await shielded(shared.state.close())


class _GroupTool(StatefulTool):
    stays_on_loop = True

    def __init__(self, states: _States, method: str, function_tool: FunctionTool) -> None:
        super().__init__(None, function_tool.tool_schema)
        self.states, self.method, self.function_tool = states, method, function_tool

    def _names_of(self, call: str) -> Collection[str] | None:
        return keywords_of(self.states.kind) if call == "create_kwargs" else ()

    async def open(self, **create_kwargs: Any) -> ToolSession:
        return await self.states.open(self, create_kwargs)


class _GroupSession(ToolSession):
    """A tool's handle of the state of an episode."""

    def __init__(self, states: _States, scope: str | None, shared: _Shared, tool: _GroupTool, state: ToolGroup) -> None:
        self._states, self._scope, self._shared, self._tool, self.state = states, scope, shared, tool, state

    async def execute(self, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        async with self._shared.calls:
            return await self._tool.function_tool.call(getattr(self.state, self._tool.method), parameters)

    async def fork(self) -> ToolSession:
        async with self._shared.calls:
            return await self._states.fork(self._tool, self.state)

    async def close(self) -> None:
        await self._states.leave(self._scope, self._shared)
