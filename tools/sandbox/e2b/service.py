"""E2B's API as a part of the sandbox server: its routes, and the sandboxes that live as long as the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from toolgym.tools.sandbox.e2b.api import ControlPlane
from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, answered, route
from toolgym.tools.sandbox.e2b.envd import Envd, Finder
from toolgym.tools.sandbox.e2b.files_http import FilesOverHttp
from toolgym.tools.sandbox.e2b.interpreter import Interpreter
from toolgym.tools.sandbox.e2b.sandboxes import Box, E2bSandbox, Sandboxes
from toolgym.tools.sandbox.server.app import SandboxApp
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.routes import Call, Handler, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError
from toolgym.tools.serving.worker import START_DEADLINE

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


@contextlib.asynccontextmanager
async def open_sandboxes(
    kind: type[Box], app: SandboxApp, config: E2bServerConfig, limit: int, name: str, about: Mapping[str, Any]
) -> AsyncIterator[Sandboxes[Box]]:
    """Open the sandboxes of an API called `name`, in a local sandbox that only they use; most of them are made with
    what `about` has."""
    sandbox = config.e2b_sandbox()
    gate = Gate(config.max_concurrency, config.max_queue, config.queue_timeout, sandbox.cpu_slots)
    boxes = Sandboxes(kind, sandbox, gate, limit, config.max_timeout * 24)
    app.metrics.gauge(f"{name}_sandboxes", "Sandboxes and snapshots of this API.", lambda: len(boxes))
    try:
        async with asyncio.timeout(START_DEADLINE):
            await boxes.start(about)
        yield boxes
    finally:
        await boxes.close()
        await sandbox.close()


@contextlib.asynccontextmanager
async def e2b_routes(app: SandboxApp, config: E2bServerConfig) -> AsyncIterator[None]:
    """Add E2B's API to an app, if its settings say so; inside of the block it has sandboxes."""
    if config.e2b == "none":
        yield
        return
    async with open_sandboxes(E2bSandbox, app, config, config.e2b_sandboxes, "e2b", {}) as boxes:
        finder = Finder(boxes)
        health = app.health_route().operations["GET"].handler
        parts = (
            ControlPlane(boxes, config),
            Envd(boxes, finder, config),
            FilesOverHttp(boxes, finder, config),
            Interpreter(boxes, finder, config),
        )
        app.add_routes(
            [
                *(each for part in parts for each in part.routes()),
                Route("/health", {"GET": Operation(_health(finder, health))}, public=True, while_draining=True),
                route("/{rest:path}", **dict.fromkeys(METHODS, _unknown)),
            ]
        )
        yield


def _health(finder: Finder, of_server: Handler) -> Handler:
    """Make the handler of the path that envd and the server share: a sandbox that is named answers for itself."""

    async def handler(call: Call) -> web.StreamResponse:
        if not finder.names_one(call):
            return await of_server(call)
        await finder.find(call, token=False, wake=False)
        return web.Response(status=204)

    return answered(handler)


async def _unknown(call: Call) -> web.StreamResponse:
    """Answer an endpoint that is not served with its name; others' clients get 404 as everywhere."""
    headers = call.request.headers
    if not any(name in headers for name in ("X-API-KEY", "E2b-Sandbox-Id", "X-Access-Token")):
        raise RequestRefusedError(404, "Not Found")
    name = f"{call.request.method} {call.request.path}"
    raise E2bRefusedError("unimplemented", f"{name} is not served here; see docs/e2b.md for what is")
