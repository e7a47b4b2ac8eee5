"""One worker process of the search server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.search.server.app import SearchApp
from toolgym.tools.search.server.config import SearchServerConfig
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.worker import run_worker


@contextlib.asynccontextmanager
async def open_app(config: SearchServerConfig, number: int, folder: Path | None) -> AsyncIterator[tuple[HttpApp, str]]:
    async with await in_thread(config.open_retriever) as retriever:
        yield SearchApp(retriever, config, worker=number, folder=folder), f"{config.corpus}"


if __name__ == "__main__":
    run_worker(SearchServerConfig, open_app)
