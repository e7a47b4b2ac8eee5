"""`tolerant_transport`: pass on a server's messages in the form that the SDK accepts.

The SDK raises an error, and discards the answer, if it breaks any rule: an unknown kind of content, structured content
that does not fit the server's own `outputSchema`, no `content` at all. The policy should read what the server sent. So
answers to `tools/list` and `tools/call` are repaired before the SDK checks them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.errors import shorten

BLOCK_CHARS = 500
"""Characters of a content block of an unknown kind that the policy reads."""

_log = logging.getLogger("toolgym.tools.mcp")
_noise = LogThrottle(60.0)


class ServerData(NamedTuple):
    """The `data` of an error that the server sent. The SDK's own errors do not have it."""

    data: Any


@contextlib.asynccontextmanager
async def tolerant_transport(transport: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Open a transport of the SDK, and repair the answers that come over it.

    Args:
        transport: an async context manager that gives the streams of a session, such as `mcp.stdio_client(...)`.

    Yields:
        The read stream and the write stream, for `mcp.Client`.
    """
    _shorten_noise()
    async with transport as (read, write):
        methods: dict[Any, str] = {}
        yield _ReadStream(read, methods), _WriteStream(write, methods)


class _WriteStream:
    """Notes the method of each request, because its answer does not name it."""

    def __init__(self, stream: Any, methods: dict[Any, str]) -> None:
        self._stream = stream
        self._methods = methods

    async def send(self, item: Any) -> None:
        method, request_id = getattr(item.message, "method", None), getattr(item.message, "id", None)
        if method in _REPAIRS and request_id is not None:
            self._methods[request_id] = method
        await self._stream.send(item)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> _WriteStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        result: bool | None = await self._stream.__aexit__(*error)
        return result


class _ReadStream:
    """Repairs the answers to requests that `_WriteStream` noted."""

    def __init__(self, stream: Any, methods: dict[Any, str]) -> None:
        self._stream = stream
        self._methods = methods

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return self._repaired(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _ReadStream:
        return self

    async def __anext__(self) -> Any:
        return self._repaired(await self._stream.__anext__())

    async def __aenter__(self) -> _ReadStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        result: bool | None = await self._stream.__aexit__(*error)
        return result

    def _repaired(self, item: Any) -> Any:
        message: Any = getattr(item, "message", None)
        if hasattr(message, "method"):  # a request or a notification of the server
            return item
        error = getattr(message, "error", None)
        if error is not None and not _is_of_transport(error):
            error.data = ServerData(error.data)
        method = self._methods.pop(getattr(message, "id", None), None)
        if method is not None and isinstance(getattr(message, "result", None), dict):
            message.result = _REPAIRS[method](message.result)
        return item


_TRANSPORT_ERRORS = (
    (-32000, "SSE stream "),
    (-32600, "Session terminated"),
    (-32600, "Unexpected content type: "),
    (-32600, "Redirect to "),
    (-32600, "server answered a request with 202 Accepted"),
    (-32601, "Not Found"),
    (-32603, "Server returned an error response"),
    (-32700, "Failed to parse "),
)
"""Codes and beginnings of the errors that the SDK's HTTP transport makes itself when no answer came."""


def _is_of_transport(error: Any) -> bool:
    return any(error.code == code and error.message.startswith(text) for code, text in _TRANSPORT_ERRORS)


# ---------------------------------------------------------------------- the answers


def repair_tool_list(result: dict[str, Any]) -> dict[str, Any]:
    """Return an answer to `tools/list` whose tools the SDK accepts. A tool without a name is dropped with a warning.

    `outputSchema` is dropped, so that the SDK does not discard a result that does not fit it.
    """
    tools = result.get("tools")
    repaired = []
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
            _log.warning("an MCP server lists a tool without a name, which is dropped: %s", shorten(repr(tool)))
            continue
        schema = tool.get("inputSchema")
        schema = dict(schema) if isinstance(schema, dict) else {}
        if schema.get("type") != "object":
            schema["type"] = "object"
        description = tool.get("description")
        repaired.append(
            {
                "name": tool["name"],
                "description": description if isinstance(description, str) else "",
                "inputSchema": schema,
            }
        )
    return {**result, "tools": repaired}


def repair_tool_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return an answer to `tools/call` that the SDK accepts, with all that the policy can read in it.

    A content block that the SDK does not know becomes a text. Source: `CallToolResult` of the Model Context Protocol
    (https://modelcontextprotocol.io/specification/2025-11-25/server/tools).
    """
    if "content" not in result and result.get("resultType") == "input_required":
        return result
    content = result.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    repaired = {**result, "content": [_block(block) for block in blocks], "isError": result.get("isError") is True}
    structured = repaired.get("structuredContent")
    if structured is not None and not isinstance(structured, dict):  # before 2026 the protocol has objects only
        del repaired["structuredContent"]
        if not blocks:
            repaired["content"] = [_text(json.dumps(structured, ensure_ascii=False))]
    return repaired


def _block(block: Any) -> dict[str, Any]:
    if isinstance(block, dict):
        if block.keys() == {"type", "text"} and block["type"] == "text" and isinstance(block["text"], str):
            return block
        with contextlib.suppress(ValueError):
            _content_block().validate_python(block, by_name=False)
            return block
        if isinstance(block.get("text"), str):
            return _text(block["text"])
        kind = shorten(str(block.get("type", "content")), 80)
        others = {name: value for name, value in block.items() if name != "type"}
        return _text(f"[{kind}: {shorten(json.dumps(others, ensure_ascii=False), BLOCK_CHARS)}]")
    return _text(block if isinstance(block, str) else json.dumps(block, ensure_ascii=False))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@functools.cache
def _content_block() -> Any:
    import pydantic
    from mcp.types import ContentBlock

    return pydantic.TypeAdapter(ContentBlock)


_REPAIRS = {"tools/list": repair_tool_list, "tools/call": repair_tool_result}


# ---------------------------------------------------------------------- the log


@functools.cache
def _shorten_noise() -> None:
    """Log a line on a server's standard output that is not JSON-RPC without a traceback, at most once a minute."""
    logging.getLogger("mcp.client.stdio").addFilter(_is_due)


def _is_due(record: logging.LogRecord) -> bool:
    if record.exc_info and "Failed to parse" in record.getMessage():
        if _noise.due("") is None:
            return False
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg = "an MCP server wrote a line to its standard output that is not JSON-RPC; it is ignored"
        record.args = ()
    return True
