"""One worker process of the sandbox server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.server.app import SandboxApp
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.serving.worker import START_DEADLINE, run_worker


@contextlib.asynccontextmanager
async def open_app(config: ServerConfig, number: int, folder: Path | None) -> AsyncIterator[tuple[SandboxApp, str]]:
    """Start a sandbox and open the service over it. A worker that serves more adds its routes to the app."""
    sandbox = config.sandbox()
    try:
        try:
            async with asyncio.timeout(START_DEADLINE):
                await sandbox.start()
                # The first request should not wait for the libraries to load.
                await (await sandbox.session()).close()
        except TimeoutError:
            raise SandboxError(f"the sandbox did not start within {START_DEADLINE:g} s") from None
        yield SandboxApp(sandbox, config, worker=number, folder=folder), f"isolation: {sandbox.level.value}"
    finally:
        await sandbox.close()


if __name__ == "__main__":
    run_worker(ServerConfig, open_app)
