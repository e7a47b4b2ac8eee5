"""A service: finds the route of each request, admits it, answers it, and turns errors into answers.

It uses aiohttp's low-level server: with its applications, a request could cost more than what it runs.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pydantic
from aiohttp import web

from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.config import ServingConfig
from toolgym.tools.serving.json_bodies import InvalidRequestError
from toolgym.tools.serving.metrics import CONTENT_TYPE, ServerMetrics, render
from toolgym.tools.serving.openapi import describe, render_page
from toolgym.tools.serving.peers import WORKER_METRICS, Peers
from toolgym.tools.serving.routes import UNKNOWN, Call, Operation, Route, Router
from toolgym.tools.serving.transport import Bodies, Listener, RequestRefusedError, Token, answer, send

_log = logging.getLogger("toolgym.tools.serving")
_access_log = logging.getLogger("toolgym.tools.serving.access")

TOKEN_LOG_INTERVAL = 10.0
"""Seconds between two lines about requests without a valid token."""


class HttpApp:
    """A service in one worker. The caller calls `start`, serves `listener()`, then calls `drain` and `close`.

    Its page shows `title` and `summary`. The header `key_header` may hold the token, for clients that know no other
    way. `states` is how `/health` calls a server that takes requests, and one that does not. `folder` has the workers'
    sockets, if there are several; one of them waits `deadline` seconds for another.
    """

    title: ClassVar[str]
    summary: ClassVar[str]
    key_header: ClassVar[str | None] = None
    states: ClassVar[tuple[str, str]] = ("ok", "draining")
    unpacks: ClassVar[bool] = True
    """Whether compressed bodies are unpacked before a route gets them."""

    def __init__(
        self,
        config: ServingConfig,
        gate: Gate,
        metrics: ServerMetrics,
        worker: int = 0,
        folder: Path | None = None,
        deadline: float | None = None,
    ) -> None:
        self.gate, self.version = gate, importlib.metadata.version("toolgym")
        self._config = config
        self.metrics = metrics
        others = [number for number in range(config.workers) if number != worker]
        self._peers = Peers(folder, others, deadline or config.queue_timeout)
        self._worker = worker
        self._added: list[Route] = []
        self._router = Router(())
        self.draining = False
        self.in_flight = 0
        self._quiet = asyncio.Event()
        self._bodies = Bodies(config)
        self._token = Token(config.secret, self.key_header)
        self._strangers = LogThrottle(TOKEN_LOG_INTERVAL)
        metrics.gauge("in_flight", "Requests being answered, but for this one.", lambda: self.in_flight - 1)
        metrics.gauge("running", "Requests that run something.", lambda: gate.running)
        metrics.gauge("queue_length", "Requests that wait to run something.", lambda: gate.waiting)

    def add_routes(self, routes: Sequence[Route]) -> None:
        """Answer requests for these paths too, beside those of every service."""
        self._added += routes
        self._router = Router([*self._added, *self._service_routes()])

    def _service_routes(self) -> list[Route]:
        always = partial(Route, public=True, while_draining=True)
        alive = Operation(self._alive, "Tell that the server lives", None, "text/plain")
        ready = Operation(self._ready, "Tell whether requests are taken, else 503", None, "text/plain")
        figures = Operation(self._show_metrics, "Figures for Prometheus", None, "text/plain")
        return [
            always("/healthz", {"GET": alive}),
            always("/readyz", {"GET": ready}),
            Route("/metrics", {"GET": figures}, while_draining=True),
            always(WORKER_METRICS, {"GET": Operation(self._worker_metrics)}),
            always("/", {"GET": Operation(self._index), "HEAD": Operation(self._index)}),
            always("/docs", {"GET": Operation(self._docs)}),
            Route("/openapi.json", {"GET": Operation(self._openapi)}, while_draining=True),
        ]

    async def quiet(self) -> None:
        """Return when no request is being answered."""
        while self.in_flight:
            self._quiet.clear()
            await self._quiet.wait()

    async def start(self) -> None:
        """Start background work, on the event loop that will serve."""

    def drain(self) -> None:
        """Refuse further requests; earlier ones are answered."""
        self.draining = True

    async def close(self) -> None:
        self.draining = True
        await self._peers.close()

    def listener(self, *, internal: bool = False) -> Listener:
        """Make an HTTP server for a socket: of clients, or `internal`, of the other workers."""
        return Listener(self._handle, self._config, internal=internal, unpacks=self.unpacks)

    # ------------------------------------------------------------------ for subclasses

    def error_answer(self, error: Exception) -> web.Response | None:
        """Return the answer to an error of the service's own. None: 500, and a line in the log."""
        return None

    async def undelivered(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Undo a request whose client disconnected before it got this answer."""

    def about(self) -> Mapping[str, Any]:
        """Return further fields of `/health`."""
        return {}

    def health_route(self, path: str = "/health", model: type[pydantic.BaseModel] | str = "application/json") -> Route:
        health = Operation(self._health, "Tell whether requests are taken", None, model)
        return Route(path, {"GET": health}, public=True, while_draining=True)

    # ------------------------------------------------------------------ every request

    async def _handle(self, listener: Listener, request: web.BaseRequest) -> web.StreamResponse:
        listener.head_arrived(request.protocol)
        internal = listener.internal
        loop = asyncio.get_running_loop()
        started = loop.time()
        route = UNKNOWN
        self.in_flight += 1
        try:
            try:
                route, params = self._router.find(request.raw_path.partition("?")[0])
                response: web.StreamResponse = await self._answer(request, route, params, internal)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001  one bad request must not harm another
                response = self._failed(request, route, error)
            try:
                if isinstance(response, web.Response):
                    await send(request, response, self._config.write_timeout)
            except (asyncio.CancelledError, ConnectionError):
                await self.undelivered(request, response)
                raise
        except (asyncio.CancelledError, ConnectionError):
            if not internal:
                self.metrics.disconnects.inc()
            raise
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._quiet.set()
        if not internal:  # the worker that the client speaks to counts it
            seconds = loop.time() - started
            self.metrics.answered(route.name, response.status, seconds)
            if self._config.access_log == "requests":
                line = request.remote, request.method, route.name, response.status, seconds
                _access_log.info("%s %s %s %d %.3f s", *line)
        return response

    async def _answer(
        self, request: web.BaseRequest, route: Route, params: Mapping[str, str], internal: bool
    ) -> web.StreamResponse:
        operation = route.operations.get(request.method)
        if operation is None:
            if route.operations:
                raise RequestRefusedError(405, "Method Not Allowed", {"Allow": ", ".join(route.operations)})
            raise RequestRefusedError(404, "Not Found")
        if not route.public:
            self._token.check(request)
        if self.draining and not route.while_draining:
            raise RequestRefusedError(503, "the server is being stopped", {"Retry-After": "1", "Connection": "close"})
        if route.runs and self.gate.full:
            raise self.gate.busy()
        if request.method == "GET" or route.streamed:
            return await operation.handler(Call(request, b"", params, internal))
        body = await self._bodies.receive(request)
        try:
            return await operation.handler(Call(request, body, params, internal))
        finally:
            self._bodies.release(body)

    def _log_stranger(self, request: web.BaseRequest, route: Route) -> None:
        """Log a client without a valid token, and never the text that it showed."""
        more = self._strangers.due("")
        if more is not None:
            since = f" ({more} more since the last of these lines)" if more else ""
            _log.warning("no valid token: %s %s from %s%s", request.method, route.name, request.remote, since)

    def _failed(self, request: web.BaseRequest, route: Route, error: Exception) -> web.Response:
        if isinstance(error, InvalidRequestError):
            return answer({"detail": error.problems}, 422)
        if isinstance(error, BusyError):
            return answer({"detail": str(error)}, 429, {"Retry-After": str(error.retry_after)})
        if isinstance(error, RequestRefusedError):
            if error.status == 401:
                self._log_stranger(request, route)
            response = answer(error.body, error.status, error.headers)
            if "Connection" in error.headers:
                response.force_close()
            return response
        of_app = self.error_answer(error)
        if of_app is not None:
            return of_app
        mark = uuid.uuid4().hex[:12]
        _log.error("error %s while answering %s %s", mark, request.method, route.name, exc_info=error)
        return answer({"detail": f"internal error {mark}; see the server's log", "traceback": []}, 500)

    async def _index(self, call: Call) -> web.Response:
        return web.Response(
            text=f"<!doctype html><title>{self.title}</title><h1>{self.title}</h1>"
            f'<p>{self.summary} See <a href="docs">the description</a>.</p>',
            content_type="text/html",
        )

    async def _docs(self, call: Call) -> web.Response:
        return web.Response(text=render_page(self._description()), content_type="text/html")

    async def _openapi(self, call: Call) -> web.Response:
        return answer(self._description())

    def _description(self) -> dict[str, Any]:
        return describe(self.title, self.version, self._router.routes, self._config.token is not None)

    async def _health(self, call: Call) -> web.Response:
        about = {
            "status": self.states[self.draining],
            "version": self.version,
            "running": self.gate.running,
            "waiting": self.gate.waiting,
            **self.about(),
        }
        return answer(about, 503 if self.draining else 200)

    async def _alive(self, call: Call) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, call: Call) -> web.Response:
        return web.Response(text="draining\n", status=503) if self.draining else web.Response(text="ok\n")

    async def _show_metrics(self, call: Call) -> web.Response:
        snapshots = [(self._worker, self.metrics.snapshot()), *await self._peers.metrics()]
        text = render(sorted(snapshots, key=lambda snapshot: snapshot[0]))
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    async def _worker_metrics(self, call: Call) -> web.Response:
        if not call.internal:
            raise RequestRefusedError(404, "Not Found")
        return answer(self.metrics.snapshot())
