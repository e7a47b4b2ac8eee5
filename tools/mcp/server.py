"""`McpServer`: the MCP server to speak to, and the way to reach it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import pydantic

from toolgym.tools.config import read_options
from toolgym.tools.errors import ConfigError
from toolgym.tools.http.addresses import check_address
from toolgym.tools.lazy import missing_extra
from toolgym.tools.mcp.tolerant import tolerant_transport

MAX_EVENT = 64 * 1024 * 1024
"""Bytes of one event of a server with a URL; a longer one breaks the call off."""

McpTarget: TypeAlias = "str | Mapping[str, Any] | Sequence[str] | Callable[[], Any]"
"""A URL; a command as a list, or its options (`McpCommand`); or a function that makes a `mcp.server.MCPServer`, which
then runs in this process, a new one for each episode."""


class McpCommand(pydantic.BaseModel):
    """A server that is started for each episode, and spoken to over its standard input and output. The names are those
    of the `mcpServers` that many MCP clients read."""

    model_config = pydantic.ConfigDict(extra="forbid")

    command: str
    args: list[str] = []
    env: dict[str, str] = {}
    """Variables beside the few that the SDK passes on."""
    cwd: str | None = None


class McpServer:
    """One MCP server; `headers` are sent with each request to a URL, such as `{"Authorization": "Bearer ..."}`. With
    `images`, a result carries the images that the server sends; without, its text names them."""

    def __init__(self, target: McpTarget, headers: Mapping[str, str] | None = None, *, images: bool = False) -> None:
        self._target = _checked(target)
        self.images = images
        self._headers = dict(headers or {})
        self.modes: tuple[str, ...] = ("legacy", "auto")
        """How to begin a session, in the order of trying: by the handshake that nearly all servers take, or by asking
        for the protocol of 2026. The other way round, some older servers would fail for good."""
        if self._headers and not isinstance(self._target, str):
            raise ConfigError("headers are for a server with a URL")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def name(self) -> str:
        if isinstance(self._target, str):
            return self._target
        if isinstance(self._target, McpCommand):
            return " ".join([self._target.command, *self._target.args])
        return getattr(self._target, "__name__", repr(self._target))

    @property
    def in_process(self) -> bool:
        """Whether the server runs in this process."""
        return not isinstance(self._target, str | McpCommand)

    async def client(self, mode: str, opened: AsyncExitStack, log: Any) -> Any:
        """Return an `mcp.Client` that is not yet connected. `opened` closes what it needs, `log` is a file for what a
        command writes to its standard error."""
        try:
            import httpx2
            from mcp import Client, StdioServerParameters, stdio_client
            from mcp.client.streamable_http import streamable_http_client
        except ImportError as error:
            raise missing_extra("mcp", "An MCP server", error) from error
        target = self._target
        if isinstance(target, str):
            # Each call has its own deadline, so reading has none here: a server may think for long.
            timeout = httpx2.Timeout(30.0, read=None)
            http = await opened.enter_async_context(httpx2.AsyncClient(headers=self._headers, timeout=timeout))
            transport = streamable_http_client(target, http_client=http, max_sse_event_size=MAX_EVENT)
            return Client(tolerant_transport(transport), mode=mode)
        if isinstance(target, McpCommand):
            options = StdioServerParameters(
                command=target.command,
                args=target.args,
                env=target.env,
                cwd=target.cwd,
                encoding_error_handler="replace",
            )
            return Client(tolerant_transport(stdio_client(options, errlog=log)), mode=mode)
        return Client(target(), mode=mode)


def _checked(target: Any) -> str | McpCommand | Callable[[], Any]:
    if isinstance(target, str):
        return check_address(target, "an MCP server")
    if isinstance(target, Mapping):
        return read_options(McpCommand, dict(target), "MCP server")
    if isinstance(target, Sequence) and target and all(isinstance(part, str | os.PathLike) for part in target):
        command, *arguments = map(os.fspath, target)
        return McpCommand(command=command, args=arguments)
    if callable(target):
        return target  # type: ignore[no-any-return]
    raise ConfigError(
        "an MCP server is a URL such as 'http://localhost:8000/mcp', a command such as ['npx', 'some-server'] or "
        f"{{'command': ..., 'args': [...]}}, or a function that makes an MCPServer; got {target!r}"
    )
