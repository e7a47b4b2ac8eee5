"""The env server's service: its paths, and which env a call is about."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

from aiohttp import web

from toolgym.envs.served.environments.actions import ResetRequest, StepRequest
from toolgym.envs.served.environments.answers import State
from toolgym.envs.served.environments.catalog import Catalog, ServedEnv
from toolgym.envs.served.environments.config import EnvServerConfig
from toolgym.envs.served.environments.mcp import Mcp, Request
from toolgym.envs.served.environments.openenv_api import OpenEnvApi
from toolgym.envs.served.environments.ors_api import (
    CreateRequest,
    OrsApi,
    SplitRequest,
    TaskRangeRequest,
    TaskRequest,
    ToolRequest,
    session_name,
)
from toolgym.envs.served.environments.session import NoSessionError, Timeouts
from toolgym.envs.served.environments.sessions import Sessions
from toolgym.envs.served.environments.websocket import Sockets
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, EpisodeError, UnknownNameError
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.metrics import Metrics
from toolgym.tools.serving.peers import Peers
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import answer

METRICS_PREFIX = "toolgym_openenv"
"""Beginning of the names of all figures."""

DEPLOYMENT_HEADER = "X-Deployment"
"""Header in which clients of the Open Reward Standard name the env, where their paths name none."""

EVENTS = "text/event-stream"
JSON = "application/json"


class EnvApp(HttpApp):
    """The service over some envs.

    Args:
        catalog: the envs that are offered.
        config: settings.
        version: version of the library.

    Attributes:
        sessions: the open sessions.
    """

    title = "toolgym envs"
    summary = "OpenEnv's API and the Open Reward Standard."
    key_header = "X-API-Key"

    def __init__(self, catalog: Catalog, config: EnvServerConfig, *, version: str = "") -> None:
        gate = Gate(config.max_concurrency, config.max_queue, config.queue_timeout)
        metrics = Metrics(METRICS_PREFIX)
        super().__init__(config, gate, metrics, Peers(None, [], config.queue_timeout), version=version)
        self._catalog = catalog
        timeouts = Timeouts(config.reset_timeout, config.step_timeout, config.queue_timeout)
        self.sessions = Sessions(config.max_sessions, config.session_idle_timeout, timeouts, gate)
        metrics.gauge("sessions", "Open sessions.", lambda: len(self.sessions))
        mcp = Mcp(self.sessions)
        self._openenv = OpenEnvApi(self.sessions, self._env_of, session_name, mcp, version)
        self._ors = OrsApi(
            catalog, self.sessions, self._env_of, config.write_timeout, version, step_rewards=config.rewards == "step"
        )
        self._sockets = Sockets(
            self.sessions,
            self._env_of,
            mcp,
            idle_timeout=config.session_idle_timeout,
            write_timeout=config.write_timeout,
            message_mb=config.body_limit_mb,
        )
        self.add_routes(self._table())

    async def start(self) -> None:
        """Start to close idle sessions, on the event loop that will serve."""
        self.sessions.start()

    def drain(self) -> None:
        """Refuse further requests, and close the WebSockets once they have answered."""
        super().drain()
        self._sockets.drain()

    async def close(self) -> None:
        """Close all sessions."""
        self.drain()
        await self.sessions.close()
        await super().close()

    def error_answer(self, error: Exception) -> web.Response | None:
        """Answer what is wrong about a session, an episode or a name."""
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
        await shielded(asyncio.ensure_future(self._ors.forget(response)))

    def _env_of(self, call: Call) -> ServedEnv:
        """Return the env that a call is about: the one of its path, else of the header, else the default."""
        if "env" in call.params:
            return self._catalog.find(unquote(call.params["env"]))
        named = call.request.headers.get(DEPLOYMENT_HEADER, "env")
        # Clients that were given a URL alone make up a name; TRL's is "env".
        return self._catalog.default if len(self._catalog.envs) == 1 or named == "env" else self._catalog.find(named)

    def _table(self) -> list[Route]:
        openenv, ors, sockets = self._openenv, self._ors, self._sockets
        of_an_env: dict[str, dict[str, Operation]] = {
            "/reset": {"POST": Operation(openenv.reset, "Begin an episode", ResetRequest, JSON)},
            "/step": {
                "POST": Operation(openenv.step, "Take one turn", StepRequest, JSON, conflict="No episode is under way")
            },
            "/state": {"GET": Operation(openenv.state, "Tell how a session stands", None, State)},
            "/schema": {"GET": Operation(openenv.schema, "Describe actions, observations and states", None, JSON)},
            "/metadata": {"GET": Operation(openenv.metadata, "Describe the env", None, JSON)},
            "/mcp": {
                "POST": Operation(openenv.rpc, "Answer JSON-RPC: tools/list, tools/call", Request, JSON),
                "GET": Operation(sockets.rpc, "Open a WebSocket for JSON-RPC", None, None, 101),
            },
            "/ws": {"GET": Operation(sockets.episodes, "Open a WebSocket for episodes", None, None, 101)},
            "/splits": {"GET": Operation(ors.splits, "List the splits", None, JSON)},
            "/tasks": {"POST": Operation(ors.tasks, "Tell of all tasks of a split", SplitRequest, JSON)},
            "/num_tasks": {"POST": Operation(ors.num_tasks, "Count the tasks of a split", SplitRequest, JSON)},
            "/task": {"POST": Operation(ors.task, "Tell of one task", TaskRequest, JSON)},
            "/task_range": {"POST": Operation(ors.task_range, "Tell of some tasks", TaskRangeRequest, JSON)},
            "/tools": {"GET": Operation(ors.tools, "List the tools", None, JSON)},
            "/task_tools": {"GET": Operation(ors.task_tools, "List the tools of a session", None, JSON)},
            "/prompt": {"GET": Operation(ors.prompt, "Give the first messages as text", None, JSON)},
            "/messages": {"GET": Operation(ors.messages, "Give the first messages", None, JSON)},
            "/call": {"POST": Operation(ors.call, "Call a tool of a session", ToolRequest, EVENTS)},
        }
        routes = [
            Route("/list_environments", {"GET": Operation(ors.list_environments, "List the envs", None, JSON)}),
            Route("/version", {"GET": Operation(ors.version, "Tell the version", None, JSON)}),
            Route("/create_session", {"POST": Operation(ors.create_session, "Name a session", JSON, EVENTS)}),
            Route("/create", {"POST": Operation(ors.create, "Make a session's env", CreateRequest, JSON)}),
            Route("/delete", {"POST": Operation(ors.delete, "Close a session", None, JSON)}, while_draining=True),
            Route(
                "/delete_session", {"POST": Operation(ors.delete, "Close a session", None, JSON)}, while_draining=True
            ),
            Route("/ping", {"POST": Operation(ors.ping, "Keep a session", None, JSON)}, while_draining=True),
        ]
        health = {"GET": Operation(self._health, "Tell whether requests are taken", None, JSON)}
        for prefix in ("", "/{env:path}"):
            routes += [Route(prefix + path, operations) for path, operations in of_an_env.items()]
            routes.append(Route(f"{prefix}/health", health, public=True, while_draining=True))
        return routes

    async def _health(self, call: Call) -> web.Response:
        about = {
            "status": "unhealthy" if self.draining else "healthy",
            "version": self.version,
            "running": self.gate.running,
            "waiting": self.gate.waiting,
            "sessions": len(self.sessions),
        }
        return answer(about, 503 if self.draining else 200)
