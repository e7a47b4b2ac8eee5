"""The sandbox server's service: its paths, and the worker that answers a call of a session."""

from __future__ import annotations

import json
import re
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pydantic
from aiohttp import web

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import ConfigError, NoSessionError
from toolgym.tools.sandbox.facts import FACTS_KEY
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.names import OptionError
from toolgym.tools.sandbox.playground.page import playground_routes
from toolgym.tools.sandbox.protocol.fusion import (
    RunCodeRequest,
    RunCodeResponse,
    RunJupyterRequest,
    RunJupyterResponse,
)
from toolgym.tools.sandbox.protocol.messages import CreateSessionRequest, SessionInfo
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE, GRACE, Executor, SandboxMetrics
from toolgym.tools.sandbox.server.session_api import SessionApi, SessionEntry
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.json_bodies import problem
from toolgym.tools.serving.peers import PeerGoneError
from toolgym.tools.serving.routes import Call, Handler, Operation, Route
from toolgym.tools.serving.session_table import SessionTable
from toolgym.tools.serving.transport import answer

UNDO: web.ResponseKey[partial[Coroutine[Any, Any, None]]] = web.ResponseKey("undo", partial)
"""An answer's way to take back what it tells of."""


class Health(pydantic.BaseModel):
    """Answer of `/health`; the sandbox's isolation comes with it."""

    status: Literal["ok", "draining"]
    version: str
    worker: int
    workers: int
    running: int
    waiting: int
    sessions: int
    languages: list[str]


class SandboxApp(HttpApp):
    """The service over one sandbox, which stays the caller's to close.

    `folder` has the workers' sockets, if there are several.
    """

    title = "toolgym sandbox"
    summary = "SandboxFusion's API and stateful sessions."
    metrics: SandboxMetrics

    def __init__(
        self, sandbox: LocalSandbox, config: ServerConfig, *, worker: int = 0, folder: Path | None = None
    ) -> None:
        slots, queue = config.share(config.max_concurrency), config.share(config.max_queue)
        gate = Gate(slots, queue, config.queue_timeout, sandbox.cpu_slots)
        metrics = SandboxMetrics()
        deadline = config.queue_timeout * 2 + config.max_timeout + GRACE + FILE_DEADLINE
        super().__init__(config, gate, metrics, worker, folder, deadline)
        self.sandbox, self._workers = sandbox, config.workers
        self._facts = asdict(sandbox.facts)  # now, because another interpreter takes a moment to ask
        self._sessions = SessionTable[SessionEntry](config.share(config.max_sessions), config.session_idle_timeout)
        metrics.gauge("sessions", "Open sessions.", lambda: len(self._sessions))
        languages = config.offered_languages(sandbox.level)
        self._executor = Executor(sandbox, config, languages, gate, metrics)
        self._api = SessionApi(sandbox, config, gate, metrics, self._sessions, worker)
        self._languages = sorted(languages)
        self.add_routes(self._table(config))

    async def start(self) -> None:
        self._sessions.start()

    async def close(self) -> None:
        self.drain()
        await self._sessions.close()
        await super().close()

    def error_answer(self, error: Exception) -> web.Response | None:
        if isinstance(error, NoSessionError):
            return answer({"detail": str(error), "reason": "no_session"}, 404)
        if isinstance(error, ConfigError):
            field = error.field if isinstance(error, OptionError) else ()
            return answer({"detail": problem(field, str(error)).problems}, 422)
        return None

    async def undelivered(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Close new sessions if their client disconnects before it gets their ids; answers of other APIs know how."""
        undo = response.get(UNDO)
        if undo is not None:
            await shielded(undo())
        elif isinstance(response, web.Response) and response.status == 201 and request.path.startswith("/sessions"):
            assert isinstance(response.body, bytes)
            body = json.loads(response.body)
            for info in body.get("sessions", [body]):
                await shielded(self._discard(request, info["id"]))

    async def _discard(self, request: web.BaseRequest, name: str) -> None:
        """Close a session that this request made, here or in another worker."""
        worker = self._owner(name)
        try:
            if worker is None:
                await self._sessions.remove(name)
            else:
                await self._peers.ask(worker, "DELETE", f"/sessions/{name}", request, b"")
        except (NoSessionError, PeerGoneError):
            return

    def _table(self, config: ServerConfig) -> list[Route]:
        run_code = Operation(self._executor.run_code, "Run a program", RunCodeRequest, RunCodeResponse)
        run_jupyter = Operation(
            self._executor.run_jupyter, "Run cells in a fresh session", RunJupyterRequest, RunJupyterResponse
        )
        conflict = "The network that it asks for is not to be had, or not allowed"
        create = Operation(
            self._create_session, "Open a session", CreateSessionRequest, SessionInfo, status=201, conflict=conflict
        )
        ping = Operation(self._ping, "Answer with pong", None, "application/json")
        return [
            Route("/run_code", {"POST": run_code}, runs=True),
            Route("/run_jupyter", {"POST": run_jupyter}, runs=True),
            Route("/sessions", {"POST": create}, runs=True),
            *map(self._routed_to_owner, self._api.routes()),
            Route("/v1/ping", {"GET": ping}, public=True),
            self.health_route(model=Health),
            *(playground_routes(config) if config.playground == "served" else ()),
        ]

    def _routed_to_owner(self, route: Route) -> Route:
        """Make the worker that has the session answer the calls of a route."""
        operations = {
            method: operation._replace(handler=partial(self._at_owner, operation.handler))
            for method, operation in route.operations.items()
        }
        return route._replace(operations=operations)

    # ------------------------------------------------------------------ handlers

    async def _create_session(self, call: Call) -> web.Response:
        """Open a session here or, if there is no room here, in another worker."""
        try:
            return await self._api.create(call)
        except BusyError:
            if call.internal:
                raise
            for worker in self._peers.others:
                try:
                    response = await self._peers.forward(worker, call.request, call.body)
                except PeerGoneError:
                    continue
                if response.status != 429:
                    return response
            raise

    async def _at_owner(self, handler: Handler, call: Call) -> web.StreamResponse:
        """Answer a call of this worker's session, or pass it on to the session's worker."""
        name = call.params["id"]
        worker = None if call.internal else self._owner(name)
        if worker is None:
            return await handler(call)
        try:
            return await self._peers.forward(worker, call.request, call.body)
        except PeerGoneError:
            raise NoSessionError(name) from None

    def _owner(self, name: str) -> int | None:
        """Return the other worker that a session's id names; None for this one, or if it names none."""
        match = re.match(r"w([0-9]{1,3})-", name)
        return int(match[1]) if match is not None and int(match[1]) != self._worker else None

    def _description(self) -> dict[str, Any]:
        """Describe the API, with the facts that clients need for the texts that a model reads."""
        return {**super()._description(), FACTS_KEY: self._facts}

    async def _ping(self, call: Call) -> web.Response:
        return answer("pong")

    def about(self) -> Mapping[str, Any]:
        return {
            "worker": self._worker,
            "workers": self._workers,
            "sessions": len(self._sessions),
            "languages": self._languages,
            "isolation": asdict(self.sandbox.isolation),
        }
