"""The gateway's service: agents' requests at the paths of each wire, and the control API; and its worker process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic_core
from aiohttp import web

from toolgym.rollout.capture.agent_call import AgentCall, CallRefusedError, Reply
from toolgym.rollout.capture.canonical import written
from toolgym.rollout.capture.gateway import agent_headers
from toolgym.rollout.capture.gateway.agent_paths import PREFIXES, AgentRouter
from toolgym.rollout.capture.gateway.body_coding import DecodedBodies
from toolgym.rollout.capture.gateway.captured_run import CapturedRun, captured_run
from toolgym.rollout.capture.gateway.config import CaptureConfig
from toolgym.rollout.capture.gateway.control import FINAL, Control, NewSession, alive_routes
from toolgym.rollout.capture.gateway.cors import Cors
from toolgym.rollout.capture.gateway.hosting import Answering, Begin, Episodes, HostedEpisode
from toolgym.rollout.capture.journal import NotWrittenError
from toolgym.rollout.capture.prompts import Renderers
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.session import CaptureSession
from toolgym.rollout.capture.wires import WIRES
from toolgym.rollout.capture.wires.base import Wire
from toolgym.rollout.capture.wires.memory import RequestMemory
from toolgym.rollout.capture.wires.unreadable import without_surrogates
from toolgym.rollout.engines.base import Engine, require_tokenizer
from toolgym.rollout.engines.open import open_engine
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.job import Job
from toolgym.rollout.recording.secrets import scrub
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.runner.config import RunConfig
from toolgym.tools.concurrency.gc_freeze import freeze_heap
from toolgym.tools.errors import ConfigError, NoSessionError
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.metrics import ServerMetrics
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError, answer, within
from toolgym.tools.serving.worker import run_worker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

METRICS_PREFIX = "toolgym_capture"

REPEATED = (408, 409, 429)
"""Statuses below 500 of which clients send the request again, so an answer that is final has none of them."""

Handle = Callable[[Wire, Call, HostedEpisode, AgentCall], Awaitable[web.StreamResponse]]

_UNDELIVERED: web.ResponseKey[functools.partial[None]] = web.ResponseKey("undelivered", functools.partial)

_log = logging.getLogger("toolgym.rollout.capture")


class CaptureApp(HttpApp):
    """The service over what `begin` makes for each session."""

    title = "toolgym capture"
    summary = "A gateway for agents, which keeps the exact tokens of their episodes."
    unpacks = False  # by `DecodedBodies`

    def __init__(
        self, config: CaptureConfig, run: CapturedRun, begin: Begin, wires: Sequence[Wire], *, has_control: bool = True
    ) -> None:
        """With `has_control=False`, only the agents' routes are served: their sessions are opened in this process."""
        config = config.guarded()
        self._has_control = has_control
        gate = Gate(config.max_concurrency, config.max_queue, config.queue_timeout)
        metrics = ServerMetrics(METRICS_PREFIX)
        super().__init__(config, gate, metrics)
        self.settings, self._heap, self._wires = config, contextlib.ExitStack(), wires
        limit, idle, keep = config.max_sessions, config.session_idle_timeout, config.keep_ended
        self.episodes = Episodes(run, begin, limit=limit, idle_timeout=idle, keep=keep)
        metrics.gauge("sessions", "Open sessions.", lambda: len(self.episodes.table))
        agents = self._agents_routes(wires)
        routes = [*agents, *alive_routes()]
        if has_control:
            routes += [*Control(self.episodes, config, self._token.check).routes(), self.health_route()]
        self.add_routes([*routes, *self._other_routes()])
        self._router = AgentRouter(self._router, frozenset(route.path for route in agents))
        self._bodies = DecodedBodies(config)
        self._cors = Cors(config)

    def _service_routes(self) -> list[Route]:
        return super()._service_routes() if self._has_control else []

    async def start(self) -> None:
        self._heap.enter_context(freeze_heap())
        self.episodes.table.start()

    async def close(self) -> None:
        self._heap.close()
        self.drain()
        await self.episodes.table.close()
        await super().close()

    def error_answer(self, error: Exception) -> web.Response | None:
        if isinstance(error, NoSessionError):
            return answer({"detail": "there is no such session", "reason": "no_session"}, 404)
        if isinstance(error, NotWrittenError):
            body = {"detail": str(error), "reason": "not_written"}
            return answer(body, error.status, {"Retry-After": str(error.retry_after)})
        return None

    async def undelivered(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Tell the episode that its client left before it got the answer."""
        if (lost := response.get(_UNDELIVERED)) is not None:
            lost()

    # ------------------------------------------------------------------ agents

    def _agents_routes(self, wires: Sequence[Wire]) -> list[Route]:
        models = Operation(self._models, "List the policy's model", None, "application/json")
        model = Operation(self._model, "Show the policy's model", None, "application/json")
        routes = []
        for prefix in PREFIXES:
            routes += [Route(f"{prefix}/models", {"GET": models}, public=True)]
            routes += [Route(f"{prefix}/models/{{model:path}}", {"GET": model}, public=True)]
            for wire in wires:
                for path, handle in ((wire.path, self._turn), (wire.counting_path, self._count)):
                    handler = functools.partial(self._of_agent, wire, handle)
                    summary = f"{'Answer an agent' if path == wire.path else 'Count tokens'}: {wire.name}"
                    operation = Operation(handler, summary, "application/json", "application/json")
                    if path is not None:
                        routes.append(Route(prefix + path, {"POST": operation}, public=True, runs=path == wire.path))
        preflight = Operation(self._preflight)
        return [route._replace(operations={**route.operations, "OPTIONS": preflight}) for route in routes]

    def _other_routes(self) -> list[Route]:
        """All other paths below the agents' addresses: what the APIs have and this gateway does not."""
        methods = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        operations = dict.fromkeys(methods, Operation(self._not_served))
        return [Route(f"{prefix}/{{rest:path}}", operations, public=True) for prefix in PREFIXES]

    async def _models(self, call: Call) -> web.Response:
        return answer({"object": "list", "data": [_model("policy")], "has_more": False})

    async def _model(self, call: Call) -> web.Response:
        return answer(_model(urllib.parse.unquote(call.params["model"])))

    async def _preflight(self, call: Call) -> web.Response:
        return web.Response(status=204)

    async def _not_served(self, call: Call) -> web.Response:
        text = f"this gateway serves chat/completions, responses, messages and models, not {call.request.method} "
        refusal = CallRefusedError(404, "not_found", text + call.request.path[:200])
        return _refused(self._wire_of(call.request), refusal)

    async def _answer(
        self, request: web.BaseRequest, route: Route, params: Mapping[str, str], internal: bool
    ) -> web.StreamResponse:
        response = await super()._answer(request, route, params, internal)
        if route.path.startswith(PREFIXES) and not response.prepared:
            response.headers.update(self._agents_headers(request))
        return response

    def _agents_headers(self, request: web.BaseRequest) -> dict[str, str]:
        """The headers of every answer to an agent: an id under the names of both makers, and those for browsers."""
        mark = f"req_{uuid.uuid4().hex}"
        return {"x-request-id": mark, "request-id": mark, **self._cors.headers(request)}

    def _failed(self, request: web.BaseRequest, route: Route, error: Exception) -> web.Response:
        """Answer an error; at an agent's address in the envelope of its wire."""
        response = super()._failed(request, route, error)
        if route.path.startswith(PREFIXES):
            refusal = error if isinstance(error, CallRefusedError) else _as_refusal(response, error)
            headers = {name: value for name, value in response.headers.items() if name in _KEPT_HEADERS}
            response = answer(self._wire_of(request).refusal(refusal), refusal.status, headers)
            response.headers.update(self._agents_headers(request))
        return response

    def _wire_of(self, request: web.BaseRequest) -> Wire:
        """The wire that the client of a request speaks, by its path, or else by Anthropic's header."""
        path = request.raw_path.partition("?")[0]
        by_path = next((wire for wire in self._wires if wire.path in path), None)
        name = "messages" if "anthropic-version" in request.headers else self._wires[0].name
        return by_path or next((wire for wire in self._wires if wire.name == name), self._wires[0])

    async def _of_agent(self, wire: Wire, handle: Handle, call: Call) -> web.StreamResponse:
        """Handle a request of an agent, and answer an error in the form of its wire."""
        try:
            episode = self._episode_of(call)
            headers, body = call.request.headers, _json_object(call.body)
            # What a request asks for in vain is named where it is read first, and a count is no call.
            memory = episode.memory if handle == self._turn else RequestMemory()
            agent, is_guess = episode.sub_agents.name(headers)
            agent_call = replace_fields(
                wire.read(body, memory, episode.capture.rules),
                agent=agent,
                agent_is_guess=is_guess,
                compacts=agent_headers.compacts(headers),
            )
            with episode.attached():
                return await handle(wire, call, episode, agent_call)
        except BusyError as error:
            refusal = CallRefusedError(429, "rate_limit_exceeded", str(error))
            return answer(wire.refusal(refusal), 429, {"Retry-After": str(error.retry_after)})
        except NoSessionError:
            return _refused(wire, CallRefusedError(410, "episode_ended", "the episode has ended"))
        except NotWrittenError as error:
            refusal = CallRefusedError(error.status, "not_written", str(error))
            return answer(wire.refusal(refusal), error.status, {"Retry-After": str(error.retry_after)})
        except CallRefusedError as error:
            return _refused(wire, error)

    async def _count(self, _: Wire, __: Call, episode: HostedEpisode, agent_call: AgentCall) -> web.StreamResponse:
        tokens = await episode.capture.count_tokens(agent_call)
        return answer({"object": "response.input_tokens", "input_tokens": tokens})

    async def _turn(self, wire: Wire, call: Call, episode: HostedEpisode, agent_call: AgentCall) -> web.StreamResponse:
        episode.capture.note(agent_call)
        async with self.gate.slot():
            answering = [episode.begin(agent_call) for _ in range(agent_call.choices)]
            try:
                if agent_call.stream:
                    return await self._stream(wire, call, episode, agent_call, answering)
                replies = await _replies(answering)
                assert replies is not None
                _keep_conversation(episode, agent_call, replies)
                response: web.StreamResponse = answer(wire.answer(agent_call, *replies))
                for each in answering:
                    each.delivered = True  # if it is not, `undelivered` hears of it
                response[_UNDELIVERED] = functools.partial(_undelivered, episode, replies)
                return response
            finally:
                await asyncio.gather(*(each.end() for each in answering))

    async def _stream(
        self, wire: Wire, call: Call, episode: HostedEpisode, agent_call: AgentCall, answering: Sequence[Answering]
    ) -> web.StreamResponse:
        """Send events. Nothing is sent before the policy spoke for a heartbeat's time: so a call that is refused at
        once is answered with its status."""
        stream = _Stream(call.request, self.settings.write_timeout, self._agents_headers(call.request))
        try:
            while (replies := await _replies(answering, self.settings.heartbeat)) is None:
                await stream.write(wire.heartbeat(agent_call, stream.writes))
            _keep_conversation(episode, agent_call, replies)
            events = b"".join(wire.events(agent_call, *replies, heartbeats=stream.writes))
        except (CallRefusedError, ConnectionError) as error:
            if not stream.writes or isinstance(error, ConnectionError):
                raise
            return await stream.end(wire.failed_event(agent_call, error))
        except Exception:
            if not stream.writes:
                raise
            mark = uuid.uuid4().hex[:12]
            _log.exception("error %s in a stream of %s", mark, wire.name)
            text = f"internal error {mark}; see the server's log"
            return await stream.end(wire.failed_event(agent_call, CallRefusedError(500, "internal_error", text)))
        response = await stream.end(events)
        for each in answering:
            each.delivered = True
        return response

    # ------------------------------------------------------------------ identity

    def _episode_of(self, call: Call) -> HostedEpisode:
        """Find the episode by path, key or header, the first that is there. Raises CallRefusedError."""
        headers = call.request.headers
        keys = agent_headers.shown_keys(headers)
        trusted = agent_headers.shows(keys, self.settings.agents_secret)
        name = call.params.get("session") or self.episodes.name_of(keys) or headers.get(agent_headers.EPISODE)
        episode = None if name is None else self.episodes.find(name, keys, trusted=trusted)
        if episode is None and self.settings.open_by == "agents":
            episode = self._opened_by_agent(name, keys, trusted)
        if episode is not None:
            return episode
        if name is None:
            text = "this key belongs to no session: name one by the base URL, /sessions/ID/v1, or its key"
            raise CallRefusedError(401, "invalid_api_key", text)
        raise CallRefusedError(404, "session_not_found", f"there is no session {name!r}, or this is not its key")

    def _opened_by_agent(self, name: str | None, keys: Sequence[str], trusted: bool) -> HostedEpisode | None:
        """Open an episode for an agent's first request; None if it shows no key that allows it."""
        guarded = self.settings.agents_secret is not None
        if not keys or (guarded and not (trusted and name)) or (name and self.episodes.known(name)):
            return None
        try:
            return NewSession.of(id=name).open(self.episodes, self.settings, keys[0])
        except ConfigError as error:
            raise CallRefusedError(400, "invalid_session", str(error)) from error


async def _replies(answering: Sequence[Answering], seconds: float | None = None) -> list[Reply] | None:
    """Wait for all answers; None if one is not there after so many seconds. Raises CallRefusedError."""
    replies = await asyncio.gather(*(each.reply(seconds) for each in answering))
    return None if any(reply is None for reply in replies) else [reply for reply in replies if reply is not None]


def _undelivered(episode: HostedEpisode, replies: Sequence[Reply]) -> None:
    for reply in replies:
        episode.capture.undelivered(reply.id)


def _keep_conversation(episode: HostedEpisode, agent_call: AgentCall, replies: Sequence[Reply]) -> None:
    """Keep what a later request of the session may name by the id of this response."""
    if (id := agent_call.extra.get("response_id")) is not None:
        messages = agent_call.messages[bool(agent_call.extra["instructions"]) :]
        episode.memory.keep_conversation(id, (*messages, written(replies[0])))


class _Stream:
    """A stream of events to an agent; what it does not read in time ends the connection. Raises ConnectionError."""

    def __init__(self, request: web.BaseRequest, timeout: float, headers: Mapping[str, str]) -> None:
        self._request, self._timeout = request, timeout
        fixed = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        self._response = web.StreamResponse(headers={**fixed, **headers})
        self.writes = 0

    async def write(self, events: bytes) -> None:
        if not self.writes:
            await within(self._timeout, self._response.prepare(self._request))
        self.writes += 1
        await within(self._timeout, self._response.write(events))

    async def end(self, events: bytes) -> web.StreamResponse:
        await self.write(events)
        await within(self._timeout, self._response.write_eof())
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the agent left before it had the whole answer")
        return self._response


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = pydantic_core.from_json(body)
    except ValueError:
        try:
            value = without_surrogates(json.loads(body))
        except (ValueError, RecursionError) as error:
            raise CallRefusedError(400, "invalid_json", f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CallRefusedError(400, "invalid_json", f"the body must be a JSON object, got {type(value).__name__}")
    return value


def _model(name: str) -> dict[str, Any]:
    """The policy, under the name that the agent has for it, in the shape of both makers."""
    maker = {"object": "model", "created": 0, "owned_by": "toolgym"}
    return {"id": name, **maker, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _as_refusal(response: web.Response, error: Exception) -> CallRefusedError:
    """An error of the server as a refusal, whose text is that of the server's own answer."""
    status = response.status
    text = str(error) if status < 500 or isinstance(error, RequestRefusedError) else "internal error"
    if status >= 500 and isinstance(response.body, bytes):
        text = str(json.loads(response.body).get("detail", text))
    return CallRefusedError(status, _CODES.get(status, "server_error" if status >= 500 else "invalid_request"), text)


_CODES = {405: "method_not_allowed", 413: "request_too_large", 415: "unsupported_coding", 429: "rate_limit_exceeded"}
_KEPT_HEADERS = ("Retry-After", "Allow", "Connection", "Accept-Encoding")


def _refused(wire: Wire, error: CallRefusedError) -> web.Response:
    final = error.status < 500 and error.status not in REPEATED
    return answer(wire.refusal(error), error.status, FINAL if final else None)


def sessions_of(engine: Engine, tokenizer: PreTrainedTokenizerBase | None, config: CaptureConfig) -> Begin:
    """The captures of a gateway over one engine; they share their renderers."""
    settings = RunConfig(parser=config.parser, template_kwargs=config.template_kwargs)
    renderers = Renderers(require_tokenizer(tokenizer, engine), settings)

    def begin(job: Job, episode: EpisodeConfig, rules: CaptureRules) -> CaptureSession:
        return CaptureSession(engine, renderers, job, episode, rules=rules)

    return begin


@contextlib.asynccontextmanager
async def open_app(config: CaptureConfig, number: int, folder: Path | None) -> AsyncIterator[tuple[HttpApp, str]]:
    api_key = os.environ.get("TOOLGYM_API_KEY")
    async with open_engine(config.engine, tokenizer=config.tokenizer, api_key=api_key) as engine:
        tokenizer = require_tokenizer(None, engine)
        with captured_run(
            config.out,
            tokenizer,
            engine=config.engine,
            tokenizer_name=config.tokenizer,
            seed=config.seed,
            fsync=config.fsync == "turn",
        ) as run:
            app = CaptureApp(config, run, sessions_of(engine, tokenizer, config), WIRES)
            restored = await app.episodes.restore()
            continued = f", {restored} open session{'s'[: restored != 1]} continued" if restored else ""
            yield app, f"engine {scrub(config.engine)}, trajectories in {config.out}{continued}"


if __name__ == "__main__":
    run_worker(CaptureConfig, open_app)
