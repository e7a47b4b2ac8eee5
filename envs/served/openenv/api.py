"""OpenEnv's API over HTTP and WebSockets.

HTTP has no memory there: a `/reset` opens an env, and closes it once it has answered. A client that sends a name of its
own in `X-Session-ID` keeps the env between its requests, until it deletes the session (`/delete`) or leaves it idle. A
WebSocket (`/ws` for episodes, `/mcp` for JSON-RPC) has a session of its own, which ends with it. Its messages are those
of `openenv.core.env_server` 0.10.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import pydantic
from aiohttp import WSCloseCode, WSMsgType, web

from toolgym.envs.served.env_session import EnvSession
from toolgym.envs.served.environments.face import JSON, SESSION_HEADER, Face, session_name
from toolgym.envs.served.openenv.mcp import SERVER_ERROR, Mcp, RpcRequest
from toolgym.envs.served.openenv.turns import (
    Observation,
    ResetRequest,
    SessionState,
    StepRequest,
    TurnAction,
    act,
    chosen,
    reset,
    state_of,
)
from toolgym.envs.types import EpisodeFailedError
from toolgym.tools.errors import ConfigError, EpisodeError, NoSessionError
from toolgym.tools.serving.admission import BusyError
from toolgym.tools.serving.json_bodies import encode, parse
from toolgym.tools.serving.routes import Call, Operation
from toolgym.tools.serving.transport import MIB, RequestRefusedError, answer, within

PING = 20.0
"""Seconds between two pings; a client that does not answer one within half of them is gone."""

CLOSE_TIMEOUT = 2.0

Reply = Callable[[EnvSession, str], Awaitable[dict[str, Any] | None]]
"""Answers a message; None ends the socket."""

_log = logging.getLogger("toolgym.envs.served.openenv")


class Sockets:
    def __init__(self, face: Face, mcp: Mcp) -> None:
        self._face, self._sessions, self.mcp = face, face.sessions, mcp
        self._idle_timeout, self._write_timeout = face.config.session_idle_timeout, face.config.write_timeout
        self._message_bytes = int(face.config.body_limit_mb * MIB)
        self._listening: set[asyncio.Task[Any]] = set()
        self._draining = False

    def drain(self) -> None:
        """Close the sockets that wait for a message; the others once they have answered."""
        self._draining = True
        for task in self._listening:
            task.cancel()

    async def episodes(self, call: Call) -> web.StreamResponse:
        def refused(error: Exception) -> dict[str, Any]:
            if isinstance(error, BusyError):
                about = {"active_sessions": len(self._sessions), "max_sessions": self._sessions.limit}
                return _error("CAPACITY_REACHED", str(error), **about)
            return _error("SESSION_ERROR", str(error))

        return await self._serve(call, self._reply, refused)

    async def rpc(self, call: Call) -> web.StreamResponse:
        served = self._face.env_of(call)

        async def reply(session: EnvSession, text: str) -> dict[str, Any]:
            return await self.mcp.answer_text(text, served, session)

        def refused(error: Exception) -> dict[str, Any]:
            return {"jsonrpc": "2.0", "id": None, "error": {"code": SERVER_ERROR, "message": str(error), "data": None}}

        return await self._serve(call, reply, refused)

    async def _serve(
        self, call: Call, reply: Reply, refused: Callable[[Exception], dict[str, Any]]
    ) -> web.StreamResponse:
        _check_origin(call.request)
        socket = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT, heartbeat=PING, compress=False, max_msg_size=self._message_bytes
        )
        if not socket.can_prepare(call.request):
            raise RequestRefusedError(
                426, "this path is for WebSockets", {"Upgrade": "websocket", "Connection": "Upgrade"}
            )
        await socket.prepare(call.request)
        try:
            async with self._session(call) as session:
                await self._answer_messages(socket, session, reply)
        except (BusyError, NoSessionError) as error:
            await self._send(socket, refused(error))
        except ConnectionError:
            _cut(call.request)  # it would wait until the client has read what is buffered
            raise
        finally:
            await self._close(socket, call.request)
        return socket

    async def _close(self, socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        """Close a socket; cut the connection to a client that does not take part in that."""
        code = WSCloseCode.GOING_AWAY if self._draining else WSCloseCode.OK
        try:
            async with asyncio.timeout(2 * CLOSE_TIMEOUT):
                await socket.close(code=code)
        except (TimeoutError, ConnectionError):
            _cut(request)

    @contextlib.asynccontextmanager
    async def _session(self, call: Call) -> AsyncIterator[EnvSession]:
        """Give the session of a socket: one that the query names, or a new one that ends with the socket."""
        name = call.request.query.get("session_id")
        if name:
            session = self._sessions.find(name)
            with session.attached():
                yield session
            return
        session = self._sessions.open(self._face.env_of(call))
        try:
            with session.attached():
                yield session
        finally:
            await self._sessions.discard(session.name)

    async def _answer_messages(self, socket: web.WebSocketResponse, session: EnvSession, reply: Reply) -> None:
        while not (self._draining or session.closed):
            text = await self._next(socket)
            if text is None:
                return
            answer = await reply(session, text)
            if answer is None:
                return
            await self._send(socket, answer)

    async def _next(self, socket: web.WebSocketResponse) -> str | None:
        """Return the next message; None once the socket has ended, was idle for too long, or the server is stopping."""
        task = asyncio.current_task()
        assert task is not None
        self._listening.add(task)
        try:
            message = await socket.receive(timeout=self._idle_timeout)
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if self._draining and task.uncancel() == 0:
                return None
            raise
        finally:
            self._listening.discard(task)
        if message.type is WSMsgType.TEXT:
            return str(message.data)
        return message.data.decode("utf-8", "replace") if message.type is WSMsgType.BINARY else None

    async def _send(self, socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
        await within(self._write_timeout, socket.send_str(encode(message).decode()))

    async def _reply(self, session: EnvSession, text: str) -> dict[str, Any] | None:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            return _error("INVALID_JSON", f"Invalid JSON: {error}")
        kind = message.get("type") if isinstance(message, dict) else None
        data = message.get("data") if isinstance(message, dict) else None
        try:
            match kind:
                case "reset":
                    request = ResetRequest.model_validate({} if data is None else data)
                    answer = await reset(session, request, chosen(session.served, request))
                    return {"type": "observation", "data": answer}
                case "step":
                    return {"type": "observation", "data": await act(session, TurnAction.model_validate(data))}
                case "state":
                    return {"type": "state", "data": state_of(session)}
                case "mcp":
                    return {"type": "mcp", "data": await self.mcp.answer(data, session.served, session)}
                case "close":
                    return None
        except pydantic.ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            return _error("VALIDATION_ERROR", "Invalid message: " + problems[0]["msg"], errors=problems)
        except Exception as error:  # noqa: BLE001  one bad message must not end the session
            return _answer_to(error, session)
        return _error("UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:80]}")


def _answer_to(error: Exception, session: EnvSession) -> dict[str, Any]:
    if isinstance(error, EpisodeFailedError):
        return _error("EXECUTION_ERROR", str(error), stop_reason=error.stop_reason, trainable=False)
    if isinstance(error, ConfigError):
        return _error("VALIDATION_ERROR", str(error))
    if isinstance(error, BusyError):
        return _error("CAPACITY_REACHED", str(error))
    if isinstance(error, NoSessionError):
        return _error("SESSION_ERROR", str(error))
    if isinstance(error, EpisodeError):
        return _error("EXECUTION_ERROR", str(error))
    mark = uuid.uuid4().hex[:12]
    _log.error("error %s while answering a WebSocket of %s", mark, session.served.id, exc_info=error)
    return _error("EXECUTION_ERROR", f"internal error {mark}; see the server's log")


def _error(code: str, message: str, **further: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **further}}


def _cut(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()


def _check_origin(request: web.BaseRequest) -> None:
    """Refuse a socket that a page of another site opens: a browser sends the page's origin."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower():
        raise RequestRefusedError(403, f"a page of {origin[:80]!r} may not use this server")


class OpenEnvFace(Face):
    @cached_property
    def sockets(self) -> Sockets:
        return Sockets(self, Mcp(self.sessions))

    def env_operations(self) -> Mapping[str, Mapping[str, Operation]]:
        return {
            "/reset": {"POST": Operation(self.reset, "Begin an episode", ResetRequest, JSON)},
            "/step": {
                "POST": Operation(self.step, "Take one turn", StepRequest, JSON, conflict="No episode is under way")
            },
            "/state": {"GET": Operation(self.state, "Tell how a session stands", None, SessionState)},
            "/schema": {"GET": Operation(self.schema, "Describe actions, observations and states", None, JSON)},
            "/metadata": {"GET": Operation(self.metadata, "Describe the env", None, JSON)},
            "/mcp": {
                "POST": Operation(self.rpc, "Answer JSON-RPC: tools/list, tools/call", RpcRequest, JSON),
                "GET": Operation(self.sockets.rpc, "Open a WebSocket for JSON-RPC", None, None, 101),
            },
            "/ws": {"GET": Operation(self.sockets.episodes, "Open a WebSocket for episodes", None, None, 101)},
        }

    def drain(self) -> None:
        self.sockets.drain()

    async def reset(self, call: Call) -> web.Response:
        """Begin an episode; without a session's name, to show what one is like."""
        request = parse(ResetRequest, call.body or b"{}")
        served, name = self.env_of(call), session_name(call)
        place = chosen(served, request)
        if name is None:
            session = self.sessions.open(served)
            try:
                return answer(await reset(session, request, place))
            finally:
                await self.sessions.remove(session.name)
        try:
            session = self.sessions.find(name)
        except NoSessionError:
            session = self.sessions.open(served, name)
        return answer(await reset(session, request, chosen(session.served, request)))

    async def step(self, call: Call) -> web.Response:
        request, name = parse(StepRequest, call.body), session_name(call)
        if name is None:
            raise EpisodeError(
                f"no episode is under way: over HTTP send a name of your own in {SESSION_HEADER} with /reset and "
                "/step, or use the WebSocket /ws"
            )
        return answer(await act(self.sessions.find(name), request.action, request.timeout_s))

    async def state(self, call: Call) -> web.Response:
        name = session_name(call)
        if name is None:
            return answer(SessionState(env=self.env_of(call).id))
        return answer(state_of(self.sessions.find(name)))

    async def schema(self, call: Call) -> web.Response:
        observation = Observation.model_json_schema()
        return answer(
            {
                "action": TurnAction.model_json_schema(),
                "observation": observation,
                "reset_observation": observation,
                "state": SessionState.model_json_schema(),
            }
        )

    async def metadata(self, call: Call) -> web.Response:
        served = self.env_of(call)
        return answer({"name": served.id, "description": served.spec.description, "version": self.library_version})

    async def rpc(self, call: Call) -> web.Response:
        return answer(await self.sockets.mcp.answer_text(call.body, self.env_of(call), None))
