"""Resets and turns of a session, as OpenEnv's clients ask for them over HTTP and WebSockets."""

from __future__ import annotations

from typing import Any

from toolgym.envs.served.environments.catalog import ServedEnv, TaskPlace
from toolgym.envs.served.environments.session import EnvSession
from toolgym.envs.served.openenv.actions import ResetRequest, TurnAction, turn_of
from toolgym.envs.served.openenv.answers import after_reset, after_step, without_step


def chosen(served: ServedEnv, request: ResetRequest) -> TaskPlace | None:
    """Return the task that a reset asks for. Raises UnknownNameError: there is none."""
    if request.split is None or request.index is None:
        return None
    return served.place(request.split, request.index)


async def reset(session: EnvSession, request: ResetRequest, place: TaskPlace | None) -> dict[str, Any]:
    """Begin an episode; return OpenEnv's answer."""
    return after_reset(session, await session.reset(seed=request.seed, place=place, episode_id=request.episode_id))


async def act(session: EnvSession, action: TurnAction, timeout: float | None = None) -> dict[str, Any]:
    """Take one turn; return OpenEnv's answer."""
    if action.type == "list_tools":
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in session.tools
        ]
        return without_step(session, {"tools": tools})
    if action.tool_name is not None:
        turn = await session.call_tool(action.tool_name, action.arguments, timeout=timeout)
        fields = {"tool_name": action.tool_name, "result": turn.text, "error": None}
        return without_step(session, fields) if turn.result is None else after_step(session, turn.result, fields)
    turn_action, calls = turn_of(action, session.episode.calls if session.episode is not None else 0)
    return after_step(session, await session.step(turn_action, calls=calls, timeout=timeout))
