"""OpenEnv's API over HTTP: `/reset`, `/step`, `/state`, `/schema`, `/metadata` and `/mcp`.

HTTP has no memory there: a `/reset` opens an env, and closes it once it has answered. A client that sends a name of its
own in `X-Session-ID` keeps the env between its requests, until it deletes the session (`/delete`) or leaves it idle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from toolgym.envs.served.environments.actions import ResetRequest, StepRequest, TurnAction, turn_of
from toolgym.envs.served.environments.answers import Observation, State, after_reset, after_step, state_of, without_step
from toolgym.envs.served.environments.catalog import Place, ServedEnv
from toolgym.envs.served.environments.mcp import Mcp
from toolgym.envs.served.environments.session import EnvSession, NoSessionError
from toolgym.envs.served.environments.sessions import Sessions
from toolgym.tools.errors import EpisodeError
from toolgym.tools.serving.json_bodies import parse
from toolgym.tools.serving.routes import Call
from toolgym.tools.serving.transport import answer

SESSION_HEADER = "X-Session-ID"
"""Header that names a session over HTTP, as in the Open Reward Standard."""


class OpenEnvApi:
    """Answers OpenEnv's requests over HTTP.

    Args:
        sessions: the open sessions.
        env_of: finds the env that a call is about.
        session_name: reads the session's name from a call; None where it has none.
        mcp: answers JSON-RPC.
        version: version of the library.
    """

    def __init__(
        self,
        sessions: Sessions,
        env_of: Callable[[Call], ServedEnv],
        session_name: Callable[[Call], str | None],
        mcp: Mcp,
        version: str,
    ) -> None:
        self._sessions, self._env_of, self._session_name = sessions, env_of, session_name
        self._mcp, self._version = mcp, version

    async def reset(self, call: Call) -> web.Response:
        """Begin an episode; without a session's name, to show what one is like."""
        request = parse(ResetRequest, call.body or b"{}")
        served, name = self._env_of(call), self._session_name(call)
        place = chosen(served, request)
        if name is None:
            session = self._sessions.open(served)
            try:
                return answer(await reset(session, request, place))
            finally:
                await self._sessions.remove(session.name)
        try:
            session = self._sessions.find(name)
        except NoSessionError:
            session = self._sessions.open(served, name)
        return answer(await reset(session, request, chosen(session.served, request)))

    async def step(self, call: Call) -> web.Response:
        """Take one turn in a session."""
        request, name = parse(StepRequest, call.body), self._session_name(call)
        if name is None:
            raise EpisodeError(
                f"no episode is under way: over HTTP send a name of your own in {SESSION_HEADER} with /reset and "
                "/step, or use the WebSocket /ws"
            )
        return answer(await act(self._sessions.find(name), request.action, request.timeout_s))

    async def state(self, call: Call) -> web.Response:
        """Tell how a session stands, or that there is no episode."""
        name = self._session_name(call)
        if name is None:
            return answer(State(env=self._env_of(call).id))
        return answer(state_of(self._sessions.find(name)))

    async def schema(self, call: Call) -> web.Response:
        """Describe actions, observations and states."""
        observation = Observation.model_json_schema()
        return answer(
            {
                "action": TurnAction.model_json_schema(),
                "observation": observation,
                "reset_observation": observation,
                "state": State.model_json_schema(),
            }
        )

    async def metadata(self, call: Call) -> web.Response:
        """Describe the env."""
        served = self._env_of(call)
        return answer({"name": served.id, "description": served.spec.description, "version": self._version})

    async def rpc(self, call: Call) -> web.Response:
        """Answer a JSON-RPC request."""
        return answer(await self._mcp.answer_text(call.body, self._env_of(call), None))


def chosen(served: ServedEnv, request: ResetRequest) -> Place | None:
    """Return the task that a reset asks for. Raises UnknownNameError: there is none."""
    if request.split is None or request.index is None:
        return None
    return served.place(request.split, request.index)


async def reset(session: EnvSession, request: ResetRequest, place: Place | None) -> dict[str, Any]:
    """Begin an episode; return OpenEnv's answer."""
    return after_reset(session, await session.reset(seed=request.seed, place=place, episode_id=request.episode_id))


async def act(session: EnvSession, action: TurnAction, timeout: float | None = None) -> dict[str, Any]:
    """Take one turn; return OpenEnv's answer."""
    if action.type == "list_tools":
        tools = [
            {"name": one.name, "description": one.description, "input_schema": dict(one.parameters)}
            for one in session.tools
        ]
        return without_step(session, {"tools": tools})
    if action.tool_name is not None:
        turn = await session.call_tool(action.tool_name, action.arguments, timeout=timeout)
        given = {"tool_name": action.tool_name, "result": turn.text, "error": None}
        return without_step(session, given) if turn.result is None else after_step(session, turn.result, given)
    made, calls = turn_of(action, session.episode.calls if session.episode is not None else 0)
    return after_step(session, await session.step(made, calls=calls, timeout=timeout))
