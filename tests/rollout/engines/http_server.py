"""A real HTTP server around handlers that a test writes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Any]


@contextlib.asynccontextmanager
async def serving(
    routes: dict[str, Handler], *, port: int = 0, handler_cancellation: bool = False
) -> AsyncIterator[str]:
    """Serve handlers, keyed by "METHOD /path", on a local port, by default a free one; yields the URL.

    With `handler_cancellation`, a closed connection cancels its handler.
    """
    app = web.Application()
    for route, handler in routes.items():
        method, path = route.split()
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=handler_cancellation)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
