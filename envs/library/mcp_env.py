"""`McpEnv`: the tools of an MCP server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from toolgym.envs.base import Action
from toolgym.envs.library.stock import StockTasks, gold_turns, make_server
from toolgym.envs.rewards.answer import final_answer_score
from toolgym.envs.rewards.base import Scorer
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.envs.tool_env import ToolEnv
from toolgym.envs.types import ResetOptions, ResetResult
from toolgym.tools.base import BaseTool, ToolResult
from toolgym.tools.closeable import closed_on_error
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, UnknownNameError, check_seconds, nearest
from toolgym.tools.function import ToolFunction
from toolgym.tools.mcp.connection import McpConnection
from toolgym.tools.mcp.server import McpServer, McpTarget
from toolgym.tools.schema import ToolSchema


class McpEnv(ToolEnv):
    """An env whose tools are those of an MCP server, with a session for each episode.

    The server is asked for its tools when an episode begins, or when `tool_schemas` is read before; then the caller
    waits. One that cannot be reached is an `McpError`. Sessions cannot be forked.

    Args:
        server: a URL; a command as a list, or as `{"command", "args", "env", "cwd"}`, which is started for each
            episode; or a function that makes an `mcp.server.MCPServer`. None: the embedded server, a shop's stock.
        tasks: where tasks come from; they go with a server. None: questions about the embedded server's stock.
        headers: sent with each request to a URL.
        images: whether the policy sees the images that the server sends. It must be able to; else a text names them.
        only: names of the tools that the policy has. None: all.
        tools: further tools, beside the server's. They stay the caller's to close.
        scorer: as for `ToolEnv`. None: the final answer after `####` equals the ground truth.
        connect_timeout: wall seconds until the server is ready, and for its list of tools.
        env_kwargs: the other arguments of `ToolEnv`; `tool_timeout` bounds each call.
    """

    def __init__(
        self,
        server: McpTarget | None = None,
        tasks: TaskSource | Sequence[Task] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        images: bool = False,
        only: Sequence[str] | None = None,
        tools: Sequence[BaseTool | ToolFunction[..., Any]] | None = None,
        scorer: Scorer | None = None,
        connect_timeout: float = 60.0,
        **env_kwargs: Any,
    ) -> None:
        if (server is None) != (tasks is None):
            raise ConfigError("give a server and the tasks for it, or neither: MCP-v0 then has a server of its own")
        if isinstance(only, str) or not isinstance(only, Sequence | None):
            raise ConfigError(f"only must be a list of names of tools, got {only!r}")
        check_seconds(connect_timeout=connect_timeout)
        self.server = McpServer(make_server if server is None else server, headers, images=images)
        env_kwargs["scorer"] = scorer or final_answer_score
        super().__init__(tools or [], StockTasks() if tasks is None else tasks, **env_kwargs)
        self.only = None if only is None else tuple(only)
        self.connect_timeout = connect_timeout
        self._further = dict(self.tools)
        self._decorators: list[Callable[[BaseTool], BaseTool]] = []
        self._known = False

    @property
    def tool_schemas(self) -> list[ToolSchema]:
        if not self._known:
            bridge = EventLoopThread(name="toolgym-mcp-schemas")
            try:
                self._take(bridge.run(self._ask()))
            finally:
                bridge.close()
        return super().tool_schemas

    def decorate_tools(self, decorate: Callable[[BaseTool], BaseTool]) -> None:
        super().decorate_tools(decorate)
        self._further = {name: self.tools[name] for name in self._further}
        self._decorators.append(decorate)

    async def reset(self, *, seed: int | None = None, options: ResetOptions = None) -> ResetResult:
        self._over = True
        await self._release()
        connection = await McpConnection.open(self.server, self.connect_timeout)
        async with closed_on_error(lambda: shielded(connection.close())):
            self._take(await connection.schemas(self.connect_timeout))
            begun = await super().reset(seed=seed, options=options)
        self._held = connection
        return begun

    def gold_actions(self) -> list[Action] | None:
        return gold_turns(self.task) if self.task is not None and isinstance(self.tasks, StockTasks) else None

    def _take(self, schemas: Sequence[ToolSchema]) -> None:
        names = [schema.name for schema in schemas]
        for name in self.only or ():
            if name not in names:
                raise UnknownNameError(
                    f"the MCP server {self.server.name!r} has no tool {name!r}{nearest(name, names) or ';'} "
                    f"it has {', '.join(names) or 'none'}"
                )
        tools: dict[str, BaseTool] = {}
        for schema in schemas:
            if schema.name in tools or schema.name in self._further:
                raise ConfigError(f"tools of one env need unique names, got two called {schema.name!r}")
            if self.only is None or schema.name in self.only:
                tool: BaseTool = _McpTool(self, self._same(schema))
                for decorate in self._decorators:
                    tool = decorate(tool)
                tools[schema.name] = tool
        self.tools = {**tools, **self._further}
        self._schemas = {name: tool.tool_schema for name, tool in self.tools.items()}
        self._known = True

    def _same(self, schema: ToolSchema) -> ToolSchema:
        """The schema that is known already, if it is equal: what was made of it need not be made again."""
        known = self._schemas.get(schema.name)
        return known if known is not None and known.canonical_json == schema.canonical_json else schema

    async def _ask(self) -> list[ToolSchema]:
        async with await McpConnection.open(self.server, self.connect_timeout) as connection:
            return await connection.schemas(self.connect_timeout)

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        assert isinstance(self._held, McpConnection)
        return await self._held.call(name, arguments)


class _McpTool(BaseTool):
    stays_on_loop = True
    calls_server = True
    task_kwargs: Mapping[str, Collection[str]] = {"execute_kwargs": ()}

    def __init__(self, env: McpEnv, schema: ToolSchema) -> None:
        super().__init__(None, schema)
        self._env = env

    async def execute(self, instance_id: str, parameters: dict[str, Any], **execute_kwargs: Any) -> ToolResult:
        return await self._env.call(self.name, parameters)
