"""The sandbox server's service: its paths, and which worker answers a call of a session."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pydantic
from aiohttp import web

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import NoSessionError
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.protocol.messages import (
    AskProcessRequest,
    AskProcessResponse,
    CellRequest,
    CellResponse,
    CheckpointNames,
    CreateSessionRequest,
    ExecRequest,
    ExecResponse,
    FilesRequest,
    FilesResponse,
    ForkRequest,
    ForkResponse,
    PackRequest,
    ProcessInfo,
    RunCodeRequest,
    RunCodeResponse,
    RunJupyterRequest,
    RunJupyterResponse,
    SessionInfo,
    StartProcessRequest,
)
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE, GRACE, Executor
from toolgym.tools.sandbox.server.metrics import SandboxMetrics
from toolgym.tools.sandbox.server.process_api import ProcessApi
from toolgym.tools.sandbox.server.session_api import RAW, SessionApi, made_sessions
from toolgym.tools.sandbox.server.sessions import ServedSession, owner_of
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.peers import PeerGoneError, Peers
from toolgym.tools.serving.routes import Call, Handler, Operation, Route
from toolgym.tools.serving.session_table import SessionTable
from toolgym.tools.serving.transport import answer

EVALUATION = "toolgym.tools.integrations.sandbox_fusion.api"
"""Where SandboxFusion's evaluation endpoints are answered: a higher room, which judges with this server's sandbox."""

PACK = (
    "Read several small files: 4 bytes of length (little endian), their sizes in JSON (-1: it cannot be read), and "
    "their contents"
)
UNPACK = (
    'Write several small files: 4 bytes of length (little endian), {"path": folder, "rows": [[name, "file" | "folder" '
    '| "link" | "mode", mode, size | 0 | target | 0], ...]} in JSON, and their contents'
)
"""What the API's description says about bodies that are no JSON."""


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
    """The service over one sandbox.

    Args:
        sandbox: runs programs; the caller closes it.
        config: settings.
        languages: languages that are offered.
        version: version of the library, for `/health` and `/openapi.json`.
        about: further fields of `/health`.
        worker: number of this worker.
        folder: folder of the workers' sockets; None: this is the only worker.

    Attributes:
        sandbox: as given.
        gate: which requests run and which wait.
    """

    title = "toolgym sandbox"
    summary = "SandboxFusion's API and stateful sessions."

    def __init__(
        self,
        sandbox: LocalSandbox,
        config: ServerConfig,
        *,
        languages: frozenset[str] = frozenset({"python"}),
        version: str = "",
        about: Mapping[str, Any] | None = None,
        worker: int = 0,
        folder: Path | None = None,
    ) -> None:
        slots, queue = config.share(config.max_concurrency), config.share(config.max_queue)
        gate = Gate(slots, queue, config.queue_timeout, sandbox.places)
        metrics = SandboxMetrics()
        others = [number for number in range(config.workers) if number != worker]
        deadline = config.queue_timeout * 2 + config.max_timeout + GRACE + FILE_DEADLINE
        super().__init__(config, gate, metrics, Peers(folder, others, deadline), worker, version)
        self.sandbox = sandbox
        self._workers = config.workers
        self._about = dict(about or {})
        self._sessions = SessionTable[ServedSession](config.share(config.max_sessions), config.session_idle_timeout)
        metrics.gauge("sessions", "Open sessions.", lambda: len(self._sessions))
        self._executor = Executor(sandbox, config, languages, gate, metrics)
        self._api = SessionApi(sandbox, config, gate, metrics, self._sessions, worker)
        self._programs = ProcessApi(config, gate, metrics, self._sessions, self._api)
        self._languages = sorted(languages)
        evaluation = importlib.import_module(EVALUATION).EvaluationApi(sandbox, config, gate, metrics)
        self._evaluation: list[Route] = evaluation.routes()
        self.add_routes(self._table())

    async def start(self) -> None:
        """Start to close idle sessions, on the event loop that will serve."""
        self._sessions.start()

    async def close(self) -> None:
        """Close all sessions and the connections to other workers."""
        self.drain()
        await self._sessions.close()
        await super().close()

    def error_answer(self, error: Exception) -> web.Response | None:
        """Answer a call of a session that does not exist."""
        if isinstance(error, NoSessionError):
            return answer({"detail": str(error), "reason": "no_session"}, 404)
        return None

    async def undelivered(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Close new sessions if their client disconnects before it gets their ids."""
        if isinstance(response, web.Response) and response.status == 201:
            for name in made_sessions(response):
                await shielded(self._discard(request, name))

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

    def _table(self) -> list[Route]:
        api, programs, here, run = self._api, self._programs, self._here, self._executor
        cannot_open = "The network that it asks for is not to be had, or not allowed"
        cannot_run = "It cannot be started"
        cannot_do = "It cannot be done; `reason` says why"
        session = "/sessions/{id}"
        cannot_fork = "It is in a state that cannot be forked"
        fork_summary = "Fork a session, or one of its checkpoints; an empty body asks for one fork of the session"
        routes = [
            Route(
                "/run_code",
                {"POST": Operation(run.run_code, "Run a program", RunCodeRequest, RunCodeResponse)},
                runs=True,
            ),
            Route(
                "/run_jupyter",
                {
                    "POST": Operation(
                        run.run_jupyter, "Run cells in a fresh session", RunJupyterRequest, RunJupyterResponse
                    )
                },
                runs=True,
            ),
            Route(
                "/sessions",
                {
                    "POST": Operation(
                        self._create_session, "Open a session", CreateSessionRequest, SessionInfo, 201, cannot_open
                    )
                },
                runs=True,
            ),
            Route(
                session,
                {
                    "GET": Operation(here(api.info), "Tell about a session", None, SessionInfo),
                    "DELETE": Operation(here(api.delete), "Close a session", status=204),
                },
            ),
            Route(
                f"{session}/cells",
                {"POST": Operation(here(api.run_cell), "Run a cell", CellRequest, CellResponse)},
            ),
            Route(
                f"{session}/exec",
                {
                    "POST": Operation(
                        here(programs.exec), "Run a program in it", ExecRequest, ExecResponse, 200, cannot_run
                    )
                },
            ),
            Route(
                f"{session}/processes",
                {
                    "POST": Operation(
                        here(programs.start),
                        "Start a program in the background",
                        StartProcessRequest,
                        ProcessInfo,
                        conflict=cannot_run,
                    )
                },
            ),
            Route(
                f"{session}/processes/{{process}}",
                {
                    "POST": Operation(
                        here(programs.ask),
                        "Write to a program, signal it, wait for it, and read what it has printed",
                        AskProcessRequest,
                        AskProcessResponse,
                    ),
                    "DELETE": Operation(here(programs.end), "Kill a program and forget it", status=204),
                },
            ),
            Route(
                f"{session}/fork",
                {"POST": Operation(here(api.fork), fork_summary, ForkRequest, ForkResponse, 201, cannot_fork)},
            ),
            Route(
                f"{session}/checkpoints",
                {"GET": Operation(here(api.checkpoints), "List the checkpoints of a session", None, CheckpointNames)},
            ),
            Route(
                f"{session}/checkpoints/{{name}}",
                {
                    "PUT": Operation(
                        here(api.checkpoint),
                        "Keep the state of a session under a name",
                        status=204,
                        conflict=cannot_fork,
                    ),
                    "DELETE": Operation(here(api.drop_checkpoint), "Free a checkpoint", status=204),
                },
            ),
            Route(
                f"{session}/files/{{name:path}}",
                {
                    "PUT": Operation(
                        here(api.write_file), "Write a file", RAW, status=204, conflict="It cannot be written"
                    ),
                    "GET": Operation(here(api.read_file), "Read a file", None, RAW, conflict="It cannot be read"),
                },
            ),
            Route(
                f"{session}/files",
                {
                    "POST": Operation(
                        here(api.files),
                        "List, describe, make, move or remove files and folders",
                        FilesRequest,
                        FilesResponse,
                        conflict=cannot_do,
                    )
                },
            ),
            Route(
                f"{session}/pack",
                {
                    "POST": Operation(
                        here(api.pack),
                        PACK,
                        PackRequest,
                        RAW,
                        conflict=cannot_do,
                    )
                },
            ),
            Route(
                f"{session}/unpack",
                {
                    "POST": Operation(
                        here(api.unpack),
                        UNPACK,
                        RAW,
                        status=204,
                        conflict=cannot_do,
                    )
                },
            ),
            Route(
                "/v1/ping",
                {"GET": Operation(self._ping, "Answer with pong", None, "application/json")},
                public=True,
            ),
            Route(
                "/health",
                {"GET": Operation(self._health, "Tell whether requests are taken", None, Health)},
                public=True,
                while_draining=True,
            ),
        ]
        return routes + self._evaluation

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

    def _here(self, handler: Handler) -> Handler:
        """Return a handler that answers calls of this worker's sessions, and passes other calls on to their workers."""
        return partial(self._route_to_owner, handler)

    async def _route_to_owner(self, handler: Handler, call: Call) -> web.StreamResponse:
        name = call.params["id"]
        worker = None if call.internal else self._owner(name)
        if worker is None:
            return await handler(call)
        try:
            return await self._peers.forward(worker, call.request, call.body)
        except PeerGoneError:
            raise NoSessionError(name) from None

    def _owner(self, name: str) -> int | None:
        """Return the other worker that a session's id names; None: this worker, or the id names none."""
        number = owner_of(name)
        return None if number == self._worker else number

    async def _ping(self, call: Call) -> web.Response:
        return answer("pong")

    async def _health(self, call: Call) -> web.Response:
        about = {
            "status": "draining" if self.draining else "ok",
            "version": self.version,
            "worker": self._worker,
            "workers": self._workers,
            "running": self.gate.running,
            "waiting": self.gate.waiting,
            "sessions": len(self._sessions),
            "languages": self._languages,
            **self._about,
        }
        return answer(about, 503 if self.draining else 200)
