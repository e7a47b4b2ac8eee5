"""The session server's service, its paths and its clients' tokens; and its worker process."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hmac
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from toolgym.envs.served.sessions.backends.base import SessionBackend
from toolgym.envs.served.sessions.config import SessionServerConfig, make_backend, read_clients
from toolgym.envs.served.sessions.protocol import (
    ActionRequest,
    ActionResponse,
    InstanceRequest,
    RewardResponse,
    SidRequest,
    StartResponse,
)
from toolgym.envs.served.sessions.session import BackendError, FinishedError, StoredSessions
from toolgym.envs.served.sessions.store import Store, StoreError
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import NoSessionError, SandboxError, UnknownNameError
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.json_bodies import parse
from toolgym.tools.serving.metrics import ServerMetrics
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError, Token, answer
from toolgym.tools.serving.worker import START_DEADLINE, run_worker

METRICS_PREFIX = "toolgym_sessions"

JSON = "application/json"

Answer = Callable[[Call, str], Awaitable[web.Response]]


class SessionApp(HttpApp):
    """The service over one backend. The caller closes the backend and the store."""

    title = "toolgym sessions"
    summary = "veRL's multi-turn sandbox protocol."

    def __init__(self, backend: SessionBackend, store: Store, config: SessionServerConfig) -> None:
        gate = Gate(config.max_concurrency, config.max_queue, config.queue_timeout)
        metrics = ServerMetrics(METRICS_PREFIX)
        super().__init__(config, gate, metrics)
        self._token = self._clients = ClientTokens(read_clients(config))
        self._max_requests = config.max_requests_per_client
        self._requests: collections.Counter[str] = collections.Counter()
        self.sessions = StoredSessions(backend, store, config, gate)
        sessions = self.sessions
        metrics.gauge("sessions", "Open sessions.", self.open_sessions)
        live = "Sessions that hold something of the backend."
        metrics.gauge("live_sessions", live, lambda: sum(session.live for session in sessions))
        kept = "Sessions kept for their rewards."
        metrics.gauge("finished_sessions", kept, lambda: sum(session.finished for session in sessions))
        self.add_routes(self._table())

    async def start(self) -> None:
        await self.sessions.load()
        self.sessions.start()

    async def close(self) -> None:
        self.drain()
        await self.sessions.close()
        await super().close()

    def error_answer(self, error: Exception) -> web.Response | None:
        if isinstance(error, NoSessionError):
            return answer({"detail": "there is no such session", "reason": "no_session"}, 404)
        if isinstance(error, UnknownNameError):
            return answer({"detail": str(error), "reason": "no_task"}, 404)
        if isinstance(error, FinishedError):
            return answer({"detail": str(error), "reason": "finished"}, 409)
        if isinstance(error, BackendError):
            return answer({"detail": str(error), "reason": error.reason}, 500)
        if isinstance(error, StoreError):
            return answer({"detail": "the server's database failed", "reason": "store_failed"}, 500)
        return None

    async def undelivered(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Delete a new session whose client left before it learned of it, and has no way to ask for it again."""
        if request.path == "/start_instance" and isinstance(response, web.Response) and response.status == 200:
            assert isinstance(response.body, bytes)
            started = json.loads(response.body)
            if started["request_id"] is None:
                await shielded(self.sessions.discard(started["sid"]))

    def open_sessions(self) -> int:
        return sum(not session.finished for session in self.sessions)

    def _table(self) -> list[Route]:
        calls: Mapping[str, Operation] = {
            "/start_instance": Operation(
                self._of_client(self._start), "Open a session", InstanceRequest, StartResponse
            ),
            "/process_action": Operation(
                self._of_client(self._act),
                "Carry out a turn",
                ActionRequest,
                ActionResponse,
                conflict="The session takes no more actions",
            ),
            "/postprocess": Operation(self._of_client(self._finish), "End an episode", SidRequest, JSON),
            "/compute_reward": Operation(
                self._of_client(self._reward), "Tell what an episode is worth", SidRequest, RewardResponse
            ),
        }
        return [
            *(Route(path, {"POST": operation}) for path, operation in calls.items()),
            self.health_route(),
        ]

    # ------------------------------------------------------------------ handlers

    def _of_client(self, handler: Answer) -> Callable[[Call], Awaitable[web.Response]]:
        async def handle(call: Call) -> web.Response:
            client = self._clients.client_of(call.request)
            if self._requests[client] >= self._max_requests:
                raise BusyError(f"{self._max_requests} of your requests are being answered: no more are taken", 1)
            self._requests[client] += 1
            try:
                return await handler(call, client)
            finally:
                self._requests[client] -= 1
                if not self._requests[client]:
                    del self._requests[client]

        return handle

    async def _start(self, call: Call, client: str) -> web.Response:
        request = parse(InstanceRequest, call.body)
        session = await self.sessions.begin(client, request.instance_hash, request.request_id)
        return answer({"sid": session.name, "content": session.greeting, "request_id": request.request_id})

    async def _act(self, call: Call, client: str) -> web.Response:
        request = parse(ActionRequest, call.body)
        reply = await self.sessions.find_of(client, request.sid).act(request.content, request.request_id)
        return answer({"content": reply.content, "done": reply.done})

    async def _finish(self, call: Call, client: str) -> web.Response:
        await self.sessions.find_of(client, parse(SidRequest, call.body).sid).finish()
        return answer({})

    async def _reward(self, call: Call, client: str) -> web.Response:
        return answer(await self.sessions.find_of(client, parse(SidRequest, call.body).sid).reward())

    def about(self) -> Mapping[str, Any]:
        return {"sessions": self.open_sessions()}


class ClientTokens(Token):
    """The clients' names by their tokens. Without any, every client is let in, and named by its address."""

    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__(None)
        self._names = {token.encode(): name for token, name in names.items()}

    def check(self, request: web.BaseRequest) -> None:
        if self._names and self._shown(request) is None:
            raise RequestRefusedError(401, "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})

    def client_of(self, request: web.BaseRequest) -> str:
        name = self._shown(request)
        return f"address {request.remote}" if name is None else f"token {name}"

    def _shown(self, request: web.BaseRequest) -> str | None:
        header = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        scheme, _, secret = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        # All are compared, so that the time that it takes does not tell how much of one was right.
        matches = [name for token, name in self._names.items() if hmac.compare_digest(secret.strip(), token)]
        return matches[0] if matches else None


@contextlib.asynccontextmanager
async def open_app(config: SessionServerConfig, number: int, folder: Path | None) -> AsyncIterator[tuple[HttpApp, str]]:
    async with contextlib.AsyncExitStack() as stack:
        store = await in_thread(Store, config.database)
        stack.push_async_callback(store.close)
        backend = await stack.enter_async_context(make_backend(config.backend, config.backend_kwargs))
        try:
            async with asyncio.timeout(START_DEADLINE):
                await backend.start()
        except TimeoutError:
            raise SandboxError(f"the backend did not start within {START_DEADLINE:g} s") from None
        app = SessionApp(backend, store, config)
        yield app, f"backend: {config.backend}, database: {config.database}"


if __name__ == "__main__":
    if "" not in sys.path:  # for `module:Class`, as the command has it; behind all others
        sys.path.append("")
    run_worker(SessionServerConfig, open_app)
