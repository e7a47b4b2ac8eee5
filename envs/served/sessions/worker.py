"""The worker process of the session server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from toolgym.envs.served.sessions.app import SessionApp
from toolgym.envs.served.sessions.config import SessionServerConfig, make_backend
from toolgym.envs.served.sessions.store import Store
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import SandboxError
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.worker import START_DEADLINE, run_worker


@contextlib.asynccontextmanager
async def open_app(config: SessionServerConfig, number: int, folder: Path | None) -> AsyncIterator[tuple[HttpApp, str]]:
    """Make the backend, and open the service over it and the database.

    Args:
        config: settings.
        number: number of this worker: 0.
        folder: folder of the workers' sockets: None, it is the only one.

    Raises:
        ConfigError: the backend cannot be made, or the database cannot be used.
        SandboxError: the backend did not start.
    """
    async with contextlib.AsyncExitStack() as stack:
        store = await in_thread(Store, config.database)
        stack.push_async_callback(store.close)
        backend = await stack.enter_async_context(make_backend(config.backend, config.backend_kwargs))
        try:
            async with asyncio.timeout(START_DEADLINE):
                await backend.start()
        except TimeoutError:
            raise SandboxError(f"the backend did not start within {START_DEADLINE:g} s") from None
        app = SessionApp(backend, store, config, version=importlib.metadata.version("toolgym"))
        yield app, f"backend: {config.backend}, database: {config.database}"


if __name__ == "__main__":
    if "" not in sys.path:  # for `module:Class`, as the command has it; behind all others
        sys.path.append("")
    run_worker(SessionServerConfig, open_app)
