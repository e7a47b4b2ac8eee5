"""The env server's service, the paths of its faces over one table of sessions; and its worker process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from toolgym.envs.entry_points import load
from toolgym.envs.served.catalog import Catalog, load_env
from toolgym.envs.served.env_session import EnvSessions, Timeouts
from toolgym.envs.served.environments.config import EnvServerConfig
from toolgym.envs.served.environments.face import Face
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, EpisodeError, NoSessionError, UnknownNameError
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.metrics import ServerMetrics
from toolgym.tools.serving.routes import Route
from toolgym.tools.serving.transport import answer
from toolgym.tools.serving.worker import run_worker

METRICS_PREFIX = "toolgym_openenv"

FACES = (
    "toolgym.envs.served.openenv.api:OpenEnvFace",
    "toolgym.envs.served.ors.api:OrsFace",
)
"""The APIs that the server speaks. A room that is deleted leaves this table."""


class EnvApp(HttpApp):
    """The service over some envs."""

    title = "toolgym envs"
    summary = "OpenEnv's API and the Open Reward Standard."
    key_header = "X-API-Key"
    states = ("healthy", "unhealthy")

    def __init__(self, catalog: Catalog, config: EnvServerConfig) -> None:
        gate = Gate(config.max_concurrency, config.max_queue, config.queue_timeout)
        metrics = ServerMetrics(METRICS_PREFIX)
        super().__init__(config, gate, metrics)
        timeouts = Timeouts(config.reset_timeout, config.step_timeout, config.queue_timeout)
        self.sessions = EnvSessions(config.max_sessions, config.session_idle_timeout, timeouts, gate)
        metrics.gauge("sessions", "Open sessions.", lambda: len(self.sessions))
        self.faces: list[Face] = [
            load(face, "an API of the env server")(catalog, self.sessions, config, self.version) for face in FACES
        ]
        self.add_routes(self._table())

    async def start(self) -> None:
        self.sessions.start()

    def drain(self) -> None:
        super().drain()
        for face in self.faces:
            face.drain()

    async def close(self) -> None:
        self.drain()
        await self.sessions.close()
        await super().close()

    def error_answer(self, error: Exception) -> web.Response | None:
        if isinstance(error, NoSessionError):
            return answer({"detail": str(error), "reason": "no_session"}, 404)
        if isinstance(error, EpisodeFailedError):
            return answer({"detail": str(error), "reason": error.stop_reason, "trainable": False}, 500)
        if isinstance(error, EpisodeError):
            return answer({"detail": str(error), "reason": "no_episode"}, 409)
        if isinstance(error, UnknownNameError | ConfigError):
            return answer({"detail": str(error)}, 400)
        return None

    async def undelivered(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Close a new session if its client disconnects before it learns of it."""
        await shielded(asyncio.gather(*(face.undelivered(response) for face in self.faces)))

    def _table(self) -> list[Route]:
        routes = [route for face in self.faces for route in face.routes()]
        for prefix in ("", "/{env:path}"):
            for face in self.faces:
                routes += [Route(prefix + path, operations) for path, operations in face.env_operations().items()]
            routes.append(self.health_route(f"{prefix}/health"))
        return routes

    def about(self) -> Mapping[str, Any]:
        return {"sessions": len(self.sessions)}


@contextlib.asynccontextmanager
async def open_app(config: EnvServerConfig, number: int, folder: Path | None) -> AsyncIterator[tuple[HttpApp, str]]:
    envs = [
        await load_env(
            name, kwargs, answer_tool=config.answer_tool, endless=config.num_tasks, fields=config.task_fields
        )
        for name, kwargs in config.envs.items()
    ]
    app = EnvApp(Catalog(envs), config)
    yield app, ", ".join(env.id for env in envs)


if __name__ == "__main__":
    if "" not in sys.path:  # for `module:Id`, as the command has it; behind all others
        sys.path.append("")
    run_worker(EnvServerConfig, open_app)
