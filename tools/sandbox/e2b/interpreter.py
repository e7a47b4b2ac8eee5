"""The code interpreter's calls: cells in contexts, whose answers are lines of JSON while they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from toolgym.tools.sandbox.e2b.cell_output import e2b_line
from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, Emit, Form, read_json, route, section, stream
from toolgym.tools.sandbox.e2b.contexts import CodeContext
from toolgym.tools.sandbox.e2b.envd import Finder
from toolgym.tools.sandbox.e2b.file_agent import HOME
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox, Sandboxes
from toolgym.tools.serving.json_bodies import encode
from toolgym.tools.serving.routes import Call, Route
from toolgym.tools.serving.transport import answer

PING = 30.0
"""Seconds of silence after which a cell's answer says that it lives."""


def _line(message: Mapping[str, Any]) -> bytes:
    return encode(message) + b"\n"


def _last_lines(refused: E2bRefusedError | None) -> bytes:
    last = _line({"type": "end_of_execution"})
    if refused is None:
        return last
    text = str(refused)
    return _line({"type": "error", "name": "SandboxError", "value": text, "traceback": text}) + last


_LINES = Form("application/x-ndjson", _line, {"type": "keepalive"}, _last_lines)


class Interpreter:
    """Answers `/execute` and `/contexts`."""

    def __init__(self, boxes: Sandboxes[E2bSandbox], finder: Finder, config: E2bServerConfig) -> None:
        self._boxes, self._finder, self._config = boxes, finder, config

    def routes(self) -> list[Route]:
        return [
            route("/execute", POST=self.execute),
            route("/contexts", POST=self.create, GET=self.list),
            route("/contexts/{id}", DELETE=self.remove),
            route("/contexts/{id}/restart", POST=self.restart),
        ]

    async def execute(self, call: Call) -> web.StreamResponse:
        """Run a cell. A client that goes away interrupts it; its context lives on."""
        box, asked = await self._finder.find(call), read_json(call.body)
        code, name, language = asked.get("code"), asked.get("context_id"), asked.get("language")
        if not isinstance(code, str):
            raise E2bRefusedError("invalid_argument", f"code should be a text, got {type(code).__name__}")
        if name and language:
            raise E2bRefusedError("invalid_argument", "give context_id or language, not both")
        context = box.context(name) if name else box.default_context(language or "python")
        context.check(code)
        env = {str(key): str(value) for key, value in section(asked, "env_vars").items()}

        async def lines(emit: Emit) -> None:
            async def shown(line: Mapping[str, Any]) -> None:
                await emit(e2b_line(line))

            await context.run(code, env, self._config.max_timeout, shown)

        async with self._boxes.gate.slot():
            timeout = self._config.write_timeout
            return await stream(call, _LINES, lines, box.interrupted, timeout, ping=PING, headers_first=True)

    async def create(self, call: Call) -> web.Response:
        box, asked = await self._finder.find(call, token=False), read_json(call.body)
        language, cwd = asked.get("language") or "python", str(asked.get("cwd") or HOME)
        return answer(_about(await box.add_context(language, cwd, self._boxes.gate)))

    async def list(self, call: Call) -> web.Response:
        box = await self._finder.find(call, token=False)
        box.default_context("python")
        contexts = sorted(box.contexts.values(), key=lambda context: not context.is_default)
        return answer([_about(context) for context in contexts])

    async def remove(self, call: Call) -> web.Response:
        box = await self._finder.find(call, token=False)
        await box.remove_context(call.params["id"])
        return web.Response(status=204)

    async def restart(self, call: Call) -> web.Response:
        box = await self._finder.find(call, token=False)
        await box.context(call.params["id"]).restart()
        return web.Response(status=204)


def _about(context: CodeContext) -> dict[str, Any]:
    return {"id": context.name, "language": context.language, "cwd": context.cwd}
