"""The client that the conformance suite of MCP starts: one episode of `MCP-v0` in which every tool is called once.

Usage: python conformance_client.py URL (the last argument; the suite adds it)
"""

from __future__ import annotations

import asyncio
import sys

import toolgym
from toolgym.envs import Task
from toolgym.tools.message import assistant, tool_call

VALUES = {"number": 3, "integer": 3, "string": "text", "boolean": True}
"""An argument of each type."""


async def main(url: str) -> None:
    task = Task(({"role": "user", "content": "Call every tool."},), ground_truth="done")
    async with toolgym.make("MCP-v0", server=url, tasks=[task], tool_timeout=60.0, max_turns=64) as env:
        await env.reset()
        for schema in env.tool_schemas:
            needed = schema.parameters.get("required", ())
            types = {name: schema.parameters["properties"][name].get("type", "string") for name in needed}
            call = assistant("", [tool_call(schema.name, {name: VALUES[kind] for name, kind in types.items()})])
            for record in (await env.step(call)).info["tool_calls"]:
                print(record.name, record.status, record.text)
        await env.step("#### done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
