"""An MCP server for tests: `python own_server.py` over standard input and output, `... http PORT` over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys


def own_server():
    """Returns the server. Imports the SDK, which takes seconds, only where a test asks for one."""
    global ImageContent, TextContent
    from mcp.server import MCPServer
    from mcp_types import ImageContent, TextContent

    server = MCPServer("own")
    counter = itertools.count(1)

    @server.tool(description="Add two numbers.")
    def add(a: int, b: int) -> str:
        return str(a + b)

    @server.tool(description="Count the calls of this server.")
    def counts() -> str:
        return str(next(counter))

    @server.tool(description="Fail.")
    def fail() -> str:
        raise ValueError("no")

    @server.tool(description="A text and an image.")
    def picture() -> list[TextContent | ImageContent]:
        return [TextContent(type="text", text="look"), ImageContent(type="image", data="AAAA", mime_type="image/png")]

    @server.tool(description="Wait.")
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @server.tool(description="Much text.")
    def much(characters: int) -> str:
        return "x" * characters

    @server.tool(description="End the process.")
    def end() -> str:
        os.write(2, b"the disk is gone\n")
        os._exit(3)

    return server


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        own_server().run("streamable-http", port=int(sys.argv[2]))
    else:
        own_server().run("stdio")
