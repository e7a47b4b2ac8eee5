"""The code interpreter's calls: cells in contexts, whose answers are lines of JSON while they come."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from aiohttp import web

from toolgym.tools.errors import ToolgymError
from toolgym.tools.sandbox.e2b.cell_output import Emit
from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.connect import CutError, E2bRefusedError, answered, read_json, section
from toolgym.tools.sandbox.e2b.contexts import CodeContext, ProgramContext, SessionContext
from toolgym.tools.sandbox.e2b.envd import Finder
from toolgym.tools.sandbox.e2b.file_agent import HOME
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox, Sandboxes
from toolgym.tools.serving.json_bodies import encode
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import answer, within

PING = 30.0
"""Seconds of silence after which a cell's answer says that it lives."""

MOST_CONTEXTS = 32

LANGUAGES = {"python": "python", "py": "python", "python3": "python", "bash": "bash", "sh": "bash", "shell": "bash"}
"""The languages that are served, by the names that clients use."""


class Interpreter:
    """Answers `/execute` and `/contexts`."""

    def __init__(self, boxes: Sandboxes, finder: Finder, config: E2bServerConfig) -> None:
        self._boxes, self._finder, self._config = boxes, finder, config

    def routes(self) -> list[Route]:
        def route(path: str, **methods: Any) -> Route:
            operations = {method: Operation(answered(handler)) for method, handler in methods.items()}
            return Route(path, operations, public=True)

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
        env = {str(key): str(value) for key, value in section(asked, "env_vars").items()}
        async with self._boxes.gate.slot():
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(call.request)
            lock = asyncio.Lock()

            async def emit(line: Mapping[str, Any]) -> None:
                async with lock:
                    await within(self._config.write_timeout, response.write(encode(line) + b"\n"))

            try:
                await self._run(box, context.run(code, env, self._config.max_timeout, emit), emit)
                await within(self._config.write_timeout, response.write_eof())
            except CutError:
                if call.request.transport is not None:
                    call.request.transport.close()
                raise
        return response

    async def _run(self, box: E2bSandbox, cell: Coroutine[Any, Any, None], emit: Emit) -> None:
        """Await a cell, with signs of life, unless its sandbox is paused or ends."""
        running, cut = asyncio.create_task(cell), asyncio.create_task(box.interrupted.wait())
        try:
            while not running.done():
                done, _ = await asyncio.wait({running, cut}, timeout=PING, return_when=asyncio.FIRST_COMPLETED)
                if cut in done:
                    raise CutError("the sandbox was paused or ended")
                if not done:
                    await emit({"type": "keepalive"})
            await running
        except (ToolgymError, TimeoutError) as error:  # the answer has begun, so a line of it says why
            text = str(error) or type(error).__name__
            await emit({"type": "error", "name": type(error).__name__, "value": text, "traceback": text})
        finally:
            for task in (running, cut):
                task.cancel()
            await asyncio.gather(running, cut, return_exceptions=True)
        await emit({"type": "end_of_execution"})

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
        rows: Any = [_about(context) for context in sorted(box.contexts.values(), key=lambda each: not each.is_default)]
        return answer(rows)

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
            if language == "bash":
                context = ProgramContext(box.session, box.files, language, HOME, box.env, is_default=True)
            else:
                context = SessionContext(box.session, HOME, box.env, forked=box.forked)
            box.contexts[context.name] = context
        return context


def _language(name: object) -> str:
    language = LANGUAGES.get(str(name).lower())
    if language is None:
        raise E2bRefusedError("unimplemented", f"the language {name!r} is not served; there are python and bash")
    return language


def _about(context: CodeContext) -> dict[str, Any]:
    return {"id": context.name, "language": context.language, "cwd": context.cwd}
