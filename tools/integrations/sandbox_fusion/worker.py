"""One worker process of `toolgym serve sandbox`: the sandbox server with SandboxFusion's evaluation endpoints."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from toolgym.tools.integrations.sandbox_fusion.api import EvaluationApi
from toolgym.tools.integrations.sandbox_fusion.config import EvaluatingServerConfig
from toolgym.tools.sandbox.server import worker
from toolgym.tools.sandbox.server.app import SandboxApp
from toolgym.tools.serving.worker import run_worker


@contextlib.asynccontextmanager
async def open_app(
    config: EvaluatingServerConfig, number: int, folder: Path | None
) -> AsyncIterator[tuple[SandboxApp, str]]:
    async with worker.open_app(config, number, folder) as (app, about):
        app.add_routes(EvaluationApi(app, config).routes())
        yield app, about


if __name__ == "__main__":
    run_worker(EvaluatingServerConfig, open_app)
