"""The sandbox server over a given sandbox, in this process, on any free port."""

from __future__ import annotations

import contextlib
import dataclasses

from aiohttp import web

from toolgym.tools.sandbox.server.app import SandboxApp
from toolgym.tools.sandbox.server.config import ServerConfig


@dataclasses.dataclass
class Service:
    """A running service."""

    url: str
    port: int
    app: SandboxApp


@contextlib.asynccontextmanager
async def serving(sandbox, *, port=0, config_class=ServerConfig, routes_of=None, **settings):
    """A service over a sandbox, with these settings; `routes_of(app, config)` gives further routes."""
    await sandbox.start()
    config = config_class.load(flags={"workers": 1, **settings})
    app = SandboxApp(sandbox, config)
    if routes_of is not None:
        app.add_routes(routes_of(app, config))
    await app.start()
    runner = web.ServerRunner(app.listener(), shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=2048).start()
    port = runner.addresses[0][1]
    try:
        yield Service(f"http://127.0.0.1:{port}", port, app)
    finally:
        await runner.cleanup()
        await app.close()
