"""`McpConnection`: one session with an MCP server."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from contextlib import AsyncExitStack
from typing import Any

from toolgym.tools.base import ToolResult
from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.errors import ConfigError, ToolgymError, error_text, shorten
from toolgym.tools.mcp.server import McpServer
from toolgym.tools.mcp.tolerant import ServerData
from toolgym.tools.message import ImagePart, image_part
from toolgym.tools.schema import ToolSchema

CLOSE_SECONDS = 10.0
"""The SDK stops a command within some five seconds."""

MAX_PAGES = 1000

ERROR_DATA_CHARS = 1000
"""Characters of an error's `data` that the policy reads."""

UNAVAILABLE = "[The tool's server is not available]"
"""The reason is in the call's metrics."""

_CLOSED = (-32000, -32001)
"""Codes of the SDK's own errors for a session that was closed, and for a request that timed out."""


class McpError(ToolgymError, ConnectionError):
    """A session with an MCP server could not be begun."""


class McpConnection(AsyncCloseable):
    """A session that is open; see `open`. The SDK's contexts belong to the task that entered them, so a task of the
    session holds them. Its calls may come from any task."""

    def __init__(self, server: McpServer, mode: str) -> None:
        self.server, self._mode = server, mode
        self._client: Any = None
        self._stop = asyncio.Event()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(), name=f"toolgym-mcp {server.name}")

    @classmethod
    async def open(cls, server: McpServer, seconds: float) -> McpConnection:
        """Begin a session with a server, or raise `McpError` if that is not there, speaks no MCP, or is not ready
        within so many seconds; it says what the server wrote."""
        for mode in server.modes:
            connection = cls(server, mode)
            try:
                async with asyncio.timeout(seconds):
                    connection._client = await asyncio.shield(connection._ready)
            except (ConfigError, asyncio.CancelledError):
                await connection.close()
                raise
            except Exception as error:
                stderr = connection._wrote()
                await connection.close()
                if mode != server.modes[-1] and type(error).__name__ == "MCPError":  # it speaks MCP, of some kind
                    continue
                late = isinstance(error, TimeoutError)
                why = f"was not ready within {seconds:g} seconds" if late else error_text(error)
                raise McpError(f"the MCP server {server.name!r}: {why}{stderr}") from error
            server.modes = (mode,)
            return connection
        raise AssertionError("a server has at least one mode")

    async def schemas(self, seconds: float) -> list[ToolSchema]:
        """Return the tools that the server has, in its order. Raises `McpError` if it does not tell them in time."""
        schemas: list[ToolSchema] = []
        cursor = None
        try:
            async with asyncio.timeout(seconds):
                for _ in range(MAX_PAGES):
                    page = await self._client.list_tools(cursor=cursor)
                    schemas += [
                        ToolSchema(tool.name, tool.description or "", dict(tool.input_schema), external=True)
                        for tool in page.tools
                    ]
                    cursor = page.next_cursor
                    if cursor is None:
                        return schemas
        except ToolgymError:
            raise
        except Exception as error:
            raise McpError(f"the MCP server {self.server.name!r} gave no list of tools: {error_text(error)}") from error
        raise McpError(f"the MCP server {self.server.name!r} has a list of tools of more than {MAX_PAGES} pages")

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool. The caller sets the deadline; a call that is cancelled is cancelled at the server too.

        Returns:
            A result whose metrics have the `status` `ok`; `error` if the server answered with an error, whose message
            the model reads; or `unavailable`, with `infra_failure` and `error`, if the server did not answer.
        """
        from mcp import MCPError

        if self._holder.done():
            return _unavailable(f"the session ended: {self._written() or 'the server closed it'}")
        try:
            result = await self._client.call_tool(name, arguments)
        except MCPError as error:
            data = error.data
            if isinstance(data, ServerData) or (self.server.in_process and error.code not in _CLOSED):
                return ToolResult(_error_text(error.message, data), 0.0, {"status": "error", "code": error.code})
            return _unavailable(f"{error.message} (code {error.code}){self._wrote()}")
        except Exception as error:  # noqa: BLE001  the SDK lets transports' and validators' errors through
            return _unavailable(error_text(error))
        status = "error" if result.is_error else "ok"
        return result_of(result, {"status": status}, images=self.server.images)

    async def close(self) -> None:
        """End the session, and the server's process if it was started for it. Closing twice is fine."""
        self._stop.set()
        if not self._ready.done():
            self._holder.cancel()
        done, _ = await asyncio.wait([self._holder], timeout=CLOSE_SECONDS)
        if not done:
            self._holder.cancel()
            await asyncio.wait([self._holder], timeout=CLOSE_SECONDS)
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # retrieved
        self._log.close()

    async def _hold(self) -> None:
        try:
            async with AsyncExitStack() as opened:
                client = await self.server.client(self._mode, opened, self._log)
                await opened.enter_async_context(client)
                self._ready.set_result(client)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001  raised where the session is opened; later, calls fail by themselves
            if not self._ready.done():
                self._ready.set_exception(_first(error))
        finally:
            if not self._ready.done():
                self._ready.cancel()

    def _wrote(self) -> str:
        stderr = self._written()
        return f"; it wrote: {stderr}" if stderr else ""

    def _written(self) -> str:
        if self._log.closed:
            return ""
        descriptor = self._log.fileno()  # shared with the process: its place in the file is left alone
        end = os.pread(descriptor, 2000, max(0, os.fstat(descriptor).st_size - 2000))
        return shorten(end.decode(errors="replace").strip(), 500)


def result_of(result: Any, metrics: dict[str, Any], *, images: bool) -> ToolResult:
    """Return a tool's result: its texts one below the other, and a word about anything else, but for images if they
    are wanted.

    Source: `CallToolResult` of the Model Context Protocol (https://modelcontextprotocol.io/specification).
    """
    parts = []
    pictures: list[ImagePart] = []
    for block in result.content:
        kind = block.type
        if kind == "text":
            parts.append(block.text)
        elif kind == "image" and images and block.mime_type.startswith("image/"):
            pictures.append(image_part(f"data:{block.mime_type};base64,{block.data}"))
        elif kind in ("image", "audio"):
            parts.append(f"[{kind}, {block.mime_type}, {len(block.data) * 3 // 4} bytes]")
        elif kind == "resource" and hasattr(block.resource, "text"):
            parts.append(block.resource.text)
        elif kind == "resource":
            parts.append(f"[resource {block.resource.uri}]")
        else:
            parts.append(f"[{kind} {getattr(block, 'uri', '')}]".replace(" ]", "]"))
    structured = getattr(result, "structured_content", None)
    if not parts and not pictures and structured is not None:
        parts.append(json.dumps(structured, ensure_ascii=False))
    return ToolResult("\n".join(parts), 0.0, metrics, images=pictures)


def _error_text(message: str, data: Any) -> str:
    """Return what the policy reads of an error: its message, and its `data` if there is any."""
    details = data.data if isinstance(data, ServerData) else data
    if details is None:
        return message
    text = details if isinstance(details, str) else json.dumps(details, ensure_ascii=False, default=str)
    return f"{message}\n{shorten(text, ERROR_DATA_CHARS)}"


def _unavailable(error: str) -> ToolResult:
    return ToolResult(UNAVAILABLE, 0.0, {"status": "unavailable", "infra_failure": True, "error": error})


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
