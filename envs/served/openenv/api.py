"""OpenEnv's API over HTTP: `/reset`, `/step`, `/state`, `/schema`, `/metadata` and `/mcp`.

HTTP has no memory there: a `/reset` opens an env, and closes it once it has answered. A client that sends a name of its
own in `X-Session-ID` keeps the env between its requests, until it deletes the session (`/delete`) or leaves it idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from aiohttp import web

from toolgym.envs.served.environments.face import JSON, SESSION_HEADER, Face, session_name
from toolgym.envs.served.openenv.mcp import Mcp, RpcRequest
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
from toolgym.envs.served.openenv.websocket import Sockets
from toolgym.tools.errors import EpisodeError, NoSessionError
from toolgym.tools.serving.json_bodies import parse
from toolgym.tools.serving.routes import Call, Operation
from toolgym.tools.serving.transport import answer


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
