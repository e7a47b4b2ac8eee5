"""The service: which request is answered by what, and how errors are answered.

Built on aiohttp's low-level server rather than on its applications: there are a dozen fixed paths, and a request costs
less than the program that it runs.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from toolgym.tools.deadline import shielded
from toolgym.tools.sandbox.server.admission import Busy, Gate
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE, GRACE, Executor, ServedSandbox
from toolgym.tools.sandbox.server.metrics import Metrics, render
from toolgym.tools.sandbox.server.openapi import describe
from toolgym.tools.sandbox.server.peers import PeerGone, Peers
from toolgym.tools.sandbox.server.session_api import SessionApi
from toolgym.tools.sandbox.server.sessions import NoSession, Sessions
from toolgym.tools.sandbox.server.transport import Bodies, Listener, Refused, Token, answer, send
from toolgym.tools.sandbox.server.wire import InvalidRequest, RunCodeRequest, RunJupyterRequest, parse

PAGE = (
    "<!doctype html><title>toolgym sandbox</title><h1>toolgym sandbox</h1>"
    '<p>SandboxFusion\'s API and stateful sessions. See <a href="/openapi.json">/openapi.json</a>.</p>'
)

DATASET_PATHS = {
    "/list_datasets": "GET",
    "/list_ids": "POST",
    "/get_prompts": "POST",
    "/get_prompt_by_id": "POST",
    "/submit": "POST",
    "/get_metrics": "POST",
    "/get_metrics_function": "POST",
}
"""SandboxFusion's online judge, which is not built here: it needs data sets."""

_log = logging.getLogger("toolgym.tools.sandbox.server")


class Call(NamedTuple):
    """One request on its way.

    Attributes:
        request: the request.
        body: its body.
        words: the parts of its path.
        internal: whether it came from another worker.
    """

    request: web.BaseRequest
    body: bytes
    words: list[str]
    internal: bool


class Route(NamedTuple):
    """How a path is answered.

    Attributes:
        name: the path as metrics and the API's description call it.
        handlers: by method.
        public: whether it is answered without a token.
        runs: whether it needs a place to run something, so that a full server can refuse before it reads the body.
        waits: whether it is still answered while the server is being stopped.
    """

    name: str
    handlers: Mapping[str, Callable[[Call], Awaitable[web.Response]]]
    public: bool = False
    runs: bool = False
    waits: bool = False


class SandboxApp:
    """The service over one sandbox.

    Args:
        sandbox: runs programs; stays its maker's to close.
        config: settings.
        languages: languages that are offered.
        version: version of the library, for `/health` and `/openapi.json`.
        about: what else `/health` tells.
        worker: number of this worker.
        folder: folder of the workers' sockets; None: this is the only worker.

    Attributes:
        sandbox: as given.
        gate: who runs and who waits.
    """

    def __init__(
        self,
        sandbox: ServedSandbox,
        config: ServerConfig,
        *,
        languages: frozenset[str] = frozenset({"python"}),
        version: str = "",
        about: Mapping[str, Any] | None = None,
        worker: int = 0,
        folder: Path | None = None,
    ) -> None:
        self._config = config
        self._version = version
        self._about = dict(about or {})
        self._worker = worker
        self._draining = False
        self._in_flight = 0
        self._quiet = asyncio.Event()
        gate = Gate(config.share(config.max_concurrency), config.share(config.max_queue), config.queue_timeout)
        self.sandbox = sandbox
        self.gate = gate
        self._sessions = Sessions(
            worker, config.share(config.max_sessions), config.session_idle_timeout, config.queue_timeout
        )
        self._metrics = Metrics(
            {
                # Whoever asks for this does so with a request.
                "in_flight": ("Requests being answered, but for this one.", lambda: self._in_flight - 1),
                "running": ("Programs and cells that run.", lambda: gate.inside),
                "queue_length": ("Requests that wait for a place.", lambda: gate.waiting),
                "sessions": ("Open sessions.", lambda: len(self._sessions)),
            }
        )
        self._executor = Executor(sandbox, config, languages, gate, self._metrics)
        self._api = SessionApi(sandbox, config, self._executor, gate, self._metrics, self._sessions)
        deadline = config.queue_timeout * 2 + config.max_timeout + GRACE + FILE_DEADLINE
        others = [number for number in range(config.workers) if number != worker]
        self._peers = Peers(folder, others, deadline)
        self._bodies = Bodies(config)
        self._token = Token(config.secret)
        self._languages = sorted(languages)
        self._routes = self._table()

    @property
    def in_flight(self) -> int:
        """Requests that are being answered."""
        return self._in_flight

    async def quiet(self) -> None:
        """Return when no request is being answered."""
        while self._in_flight:
            self._quiet.clear()
            await self._quiet.wait()

    async def start(self) -> None:
        """Begin to look after sessions, on the event loop that will serve."""
        self._sessions.start()

    def drain(self) -> None:
        """Take no more requests; those that are here are answered."""
        self._draining = True

    async def close(self) -> None:
        """Close all sessions and the connections to other workers."""
        self._draining = True
        await self._sessions.close()
        await self._peers.close()

    def listener(self, *, internal: bool = False) -> Listener:
        """An HTTP server for a socket.

        Args:
            internal: for the other workers rather than for clients.
        """
        listener: Listener

        async def handler(request: web.BaseRequest) -> web.StreamResponse:
            listener.came(request.protocol)
            return await self._handle(request, internal)

        listener = Listener(handler, self._config)
        return listener

    # ------------------------------------------------------------------ every request

    async def _handle(self, request: web.BaseRequest, internal: bool) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        started = loop.time()
        route = _UNKNOWN
        self._in_flight += 1
        try:
            try:
                route, words = self._find(request)
                response = await self._answer(request, route, words, internal)
            except InvalidRequest as error:
                response = answer({"detail": error.problems}, 422)
            except Busy as error:
                response = answer({"detail": str(error)}, 429, {"Retry-After": str(error.retry_after)})
            except Refused as error:
                response = answer(error.body, error.status, error.headers)
                if "Connection" in error.headers:
                    response.force_close()
            except NoSession as error:
                response = answer({"detail": str(error), "reason": "no_session"}, 404)
            except ConnectionError:
                raise
            except Exception:  # noqa: BLE001  one bad request must not harm another
                mark = uuid.uuid4().hex[:12]
                _log.exception("error %s while answering %s %s", mark, request.method, route.name)
                response = answer({"detail": f"internal error {mark}; see the server's log", "traceback": []}, 500)
            await self._send(request, response)
        except (asyncio.CancelledError, ConnectionError):
            if not internal:
                self._metrics.disconnected()
            raise
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._quiet.set()
        if not internal:  # else the worker counts it that the client speaks to
            self._metrics.answered(route.name, response.status, loop.time() - started)
        return response

    async def _answer(self, request: web.BaseRequest, route: Route, words: list[str], internal: bool) -> web.Response:
        handler = route.handlers.get(request.method)
        if handler is None:
            allowed = {"Allow": ", ".join(route.handlers)}
            raise Refused(405, "Method Not Allowed", allowed) if route.handlers else Refused(404, "Not Found")
        if not route.public:
            self._token.check(request)
        if self._draining and not route.waits:
            raise Refused(503, "the server is being stopped", {"Retry-After": "1", "Connection": "close"})
        if route.runs and self.gate.full:
            raise self.gate.busy()
        if request.method == "GET":
            return await handler(Call(request, b"", words, internal))
        body = await self._bodies.receive(request)
        try:
            return await handler(Call(request, body, words, internal))
        finally:
            self._bodies.release(body)

    async def _send(self, request: web.BaseRequest, response: web.Response) -> None:
        """Send an answer. A session whose maker never hears of it is closed: nobody else knows its id."""
        try:
            await send(request, response, self._config.write_timeout)
        except (asyncio.CancelledError, ConnectionError):
            if response.status == 201:
                await shielded(self._discard(request, response.headers["Location"].rpartition("/")[2]))
            raise

    async def _discard(self, request: web.BaseRequest, name: str) -> None:
        """Close a session that this request made, here or in another worker."""
        worker = self._home(name)
        try:
            if worker is None:
                await self._api.delete(name)
            else:
                await self._peers.delete(worker, name, request)
        except (NoSession, PeerGone):
            return

    def _find(self, request: web.BaseRequest) -> tuple[Route, list[str]]:
        path = request.raw_path.partition("?")[0]
        route = self._routes.get(path)
        if route is not None:
            return route, []
        words = path.split("/", 4)[1:]
        if words[:1] == ["sessions"] and len(words) > 1:
            name = "/sessions/{id}"
            if len(words) > 2:
                name += f"/{words[2]}"
            if len(words) > 3:
                name += "/{name}"
            return self._routes.get(name, _UNKNOWN), words
        return _UNKNOWN, words

    def _table(self) -> dict[str, Route]:
        api = self._api
        pinned = self._pinned
        routes = [
            Route("/run_code", {"POST": self._run_code}, runs=True),
            Route("/run_jupyter", {"POST": self._run_jupyter}, runs=True),
            Route("/sessions", {"POST": self._create_session}, runs=True),
            Route(
                "/sessions/{id}",
                {
                    "GET": pinned(lambda call: api.info(call.words[1])),
                    "DELETE": pinned(lambda call: api.delete(call.words[1])),
                },
            ),
            Route("/sessions/{id}/cells", {"POST": pinned(lambda call: api.run_cell(call.words[1], call.body))}),
            Route("/sessions/{id}/exec", {"POST": pinned(lambda call: api.exec(call.words[1], call.body))}),
            Route("/sessions/{id}/fork", {"POST": pinned(lambda call: api.fork(call.words[1]))}),
            Route(
                "/sessions/{id}/files/{name}",
                {
                    "GET": pinned(lambda call: api.read_file(call.words[1], call.words[3])),
                    "PUT": pinned(lambda call: api.write_file(call.words[1], call.words[3], call.body)),
                },
            ),
            Route("/", {"GET": self._index}, public=True, waits=True),
            Route("/v1/ping", {"GET": self._ping}, public=True),
            Route("/health", {"GET": self._health}, public=True, waits=True),
            Route("/metrics", {"GET": self._show_metrics}, waits=True),
            Route("/openapi.json", {"GET": self._openapi}, waits=True),
            Route("/worker/metrics", {"GET": self._worker_metrics}, public=True, waits=True),
        ]
        routes += [Route(path, {method: self._no_datasets}) for path, method in DATASET_PATHS.items()]
        return {route.name: route for route in routes}

    # ------------------------------------------------------------------ what is asked for

    async def _run_code(self, call: Call) -> web.Response:
        return answer(await self._executor.run_code(parse(RunCodeRequest, call.body)))

    async def _run_jupyter(self, call: Call) -> web.Response:
        return answer(await self._executor.run_jupyter(parse(RunJupyterRequest, call.body)))

    async def _create_session(self, call: Call) -> web.Response:
        """Open a session here; where there is no room, in another worker."""
        try:
            return await self._api.create(call.body)
        except Busy:
            if call.internal:
                raise
            for worker in self._peers.others:
                try:
                    response = await self._peers.forward(worker, call.request, call.body)
                except PeerGone:
                    continue
                if response.status != 429:
                    return response
            raise

    def _pinned(self, here: Callable[[Call], Awaitable[web.Response]]) -> Callable[[Call], Awaitable[web.Response]]:
        """Answer calls of this worker's sessions, and hand those of others' on."""
        return partial(self._where_it_lives, here)

    async def _where_it_lives(self, here: Callable[[Call], Awaitable[web.Response]], call: Call) -> web.Response:
        name = call.words[1]
        worker = None if call.internal else self._home(name)
        if worker is None:
            return await here(call)
        try:
            return await self._peers.forward(worker, call.request, call.body)
        except PeerGone:
            raise NoSession(name) from None

    def _home(self, name: str) -> int | None:
        """The other worker that a session's id names; None for this one and for ids that are none."""
        number = name[1:].partition("-")[0]
        if not (name.startswith("w") and number.isascii() and number.isdigit() and len(number) < 4):
            return None
        return None if int(number) == self._worker else int(number)

    async def _no_datasets(self, call: Call) -> web.Response:
        said = "this server runs code and has no data sets; for SandboxFusion's online judge use SandboxFusion itself"
        raise Refused(501, said, reason="no_datasets")

    async def _index(self, call: Call) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def _ping(self, call: Call) -> web.Response:
        return answer("pong")

    async def _health(self, call: Call) -> web.Response:
        about = {
            "status": "draining" if self._draining else "ok",
            "version": self._version,
            "worker": self._worker,
            "workers": self._config.workers,
            "running": self.gate.inside,
            "waiting": self.gate.waiting,
            "sessions": len(self._sessions),
            "languages": self._languages,
            **self._about,
        }
        return answer(about, 503 if self._draining else 200)

    async def _show_metrics(self, call: Call) -> web.Response:
        snapshots = [(self._worker, self._metrics.snapshot()), *await self._peers.metrics()]
        text = render(sorted(snapshots, key=lambda one: one[0]))
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _worker_metrics(self, call: Call) -> web.Response:
        if not call.internal:
            raise Refused(404, "Not Found")
        return answer(self._metrics.snapshot())

    async def _openapi(self, call: Call) -> web.Response:
        return answer(describe(self._version, self._config.token is not None))


_UNKNOWN = Route("other", {}, public=True, waits=True)
