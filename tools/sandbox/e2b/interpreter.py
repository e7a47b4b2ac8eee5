"""The code interpreter's calls: cells in contexts, whose answers are lines of JSON while they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, Emit, Form, read_json, route, section, stream
from toolgym.tools.sandbox.e2b.contexts import CodeContext, ProgramContext, SessionContext
from toolgym.tools.sandbox.e2b.envd import Finder
from toolgym.tools.sandbox.e2b.file_agent import HOME
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox, Sandboxes
from toolgym.tools.serving.json_bodies import encode
from toolgym.tools.serving.routes import Call, Route
from toolgym.tools.serving.transport import answer

PING = 30.0
"""Seconds of silence after which a cell's answer says that it lives."""

MOST_CONTEXTS = 32

LANGUAGES = {"python": "python", "py": "python", "python3": "python", "bash": "bash", "sh": "bash", "shell": "bash"}
"""The languages that are served, by the names that clients use."""


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

    def __init__(self, boxes: Sandboxes, finder: Finder, config: E2bServerConfig) -> None:
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
        context = self._context(box, name) if name else self._default(box, language or "python")
        if context.language == "bash" and "\0" in code:
            raise E2bRefusedError("invalid_argument", "code of bash cannot hold a NUL character")
        env = {str(key): str(value) for key, value in section(asked, "env_vars").items()}

        async def lines(emit: Emit) -> None:
            await context.run(code, env, self._config.max_timeout, emit)

        async with self._boxes.gate.slot():
            return await stream(call, _LINES, lines, box.interrupted, self._config.write_timeout, ping=PING)

    async def create(self, call: Call) -> web.Response:
        box, asked = await self._finder.find(call, token=False), read_json(call.body)
        language, cwd = _language(asked.get("language") or "python"), asked.get("cwd") or HOME
        if len(box.contexts) >= MOST_CONTEXTS:
            raise E2bRefusedError("resource_exhausted", f"a sandbox has at most {MOST_CONTEXTS} contexts")
        context = ProgramContext(box.session, box.files, language, str(cwd), box.env)
        async with self._boxes.gate.slot():
            await context.restart()
        box.contexts[context.name] = context
        return answer(_about(context))

    async def list(self, call: Call) -> web.Response:
        box = await self._finder.find(call, token=False)
        self._default(box, "python")
        contexts = sorted(box.contexts.values(), key=lambda context: not context.is_default)
        return answer([_about(context) for context in contexts])

    async def remove(self, call: Call) -> web.Response:
        box = await self._finder.find(call, token=False)
        context = self._context(box, call.params["id"])
        del box.contexts[context.name]
        await context.close()
        return web.Response(status=204)

    async def restart(self, call: Call) -> web.Response:
        box = await self._finder.find(call, token=False)
        await self._context(box, call.params["id"]).restart()
        return web.Response(status=204)

    @staticmethod
    def _context(box: E2bSandbox, name: str) -> CodeContext:
        context = box.contexts.get(name)
        if context is None:
            raise E2bRefusedError("not_found", f"Context {name[:100]} not found")
        return context

    @staticmethod
    def _default(box: E2bSandbox, name: str) -> CodeContext:
        """Return the default context of a language, which is made when it is needed."""
        language = _language(name)
        known = (each for each in box.contexts.values() if each.is_default and each.language == language)
        context = next(known, None)
        if context is None:
            kind = SessionContext if language == "python" else ProgramContext
            context = kind(box.session, box.files, language, HOME, box.env, is_default=True)
            box.contexts[context.name] = context
        return context


def _language(name: object) -> str:
    language = LANGUAGES.get(str(name).lower())
    if language is None:
        raise E2bRefusedError("unimplemented", f"the language {name!r} is not served; there are python and bash")
    return language


def _about(context: CodeContext) -> dict[str, Any]:
    return {"id": context.name, "language": context.language, "cwd": context.cwd}
