"""Resets and turns of a session, answered as OpenEnv's clients expect: observations, rewards and states in JSON.

No ground truth and no row of a data set is in them, and of failures only the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolgym.envs.base import StepResult
from toolgym.envs.served.catalog import ServedEnv, TaskPlace
from toolgym.envs.served.env_session import EnvSession
from toolgym.envs.served.openenv.actions import ResetRequest, TurnAction, turn_of


class Observation(BaseModel):
    """The messages that the policy reads next. (`done` and `reward` stand beside the observation in an answer.)"""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, Any]] = Field(
        description="The new messages in the OpenAI shape: all of them after a reset, results of tools after a step."
    )
    tool_name: str | None = Field(None, description="After a `call_tool`: the tool.")
    result: str | None = Field(None, description="After a `call_tool`: what the model reads.")
    error: dict[str, str] | None = Field(None, description="Always null: what a tool says of an error is its result.")
    tools: list[dict[str, Any]] | None = Field(None, description="After a `list_tools`: the tools.")
    done: bool = Field(False, description="Whether the episode is over.")
    reward: float | None = Field(None, description="Reward of the step; null after a reset.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="`step_metadata` or `reset_metadata`.")


class SessionState(BaseModel):
    """State of a session."""

    episode_id: str | None = Field(default=None, description="Name of the episode; null before the first reset.")
    step_count: int = Field(default=0, ge=0, description="Steps of the episode so far.")
    env: str = Field(description="Id of the env.")
    done: bool = Field(default=False, description="Whether the episode is over.")
    stop_reason: str | None = Field(default=None, description="Why it is over.")
    reward: float = Field(default=0.0, description="Sum of its rewards so far.")
    task: dict[str, Any] | None = Field(default=None, description="Its task, where the client chose it.")


def state_of(session: EnvSession) -> dict[str, Any]:
    episode = session.episode
    if episode is None:
        return SessionState(env=session.served.id).model_dump()
    return SessionState(
        episode_id=episode.id,
        step_count=episode.steps,
        env=session.served.id,
        done=episode.stop_reason is not None,
        stop_reason=episode.stop_reason,
        reward=episode.reward,
        task=episode.place.spec if episode.place is not None else None,
    ).model_dump()


def chosen(served: ServedEnv, request: ResetRequest) -> TaskPlace | None:
    """Return the task that a reset asks for. Raises UnknownNameError: there is none."""
    if request.split is None or request.index is None:
        return None
    return served.place(request.split, request.index)


async def reset(session: EnvSession, request: ResetRequest, place: TaskPlace | None) -> dict[str, Any]:
    """Begin an episode; return OpenEnv's answer."""
    episode = await session.reset(seed=request.seed, place=place, episode_id=request.episode_id)
    metadata: dict[str, Any] = {
        "env": session.served.id,
        "episode_id": episode.id,
        "tools": episode.info.get("tools", [tool.to_openai() for tool in episode.tools]),
    }
    if episode.place is not None:
        metadata["task"] = episode.place.spec
    return _answer({"messages": episode.messages}, None, False, metadata)


async def act(session: EnvSession, action: TurnAction, timeout: float | None = None) -> dict[str, Any]:
    """Take one turn; return OpenEnv's answer."""
    if action.type == "list_tools":
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in session.tools
        ]
        return _without_step(session, {"tools": tools})
    if action.tool_name is not None:
        turn = await session.call_tool(action.tool_name, action.arguments, timeout=timeout)
        fields = {"tool_name": action.tool_name, "result": turn.text, "error": None}
        return _without_step(session, fields) if turn.result is None else _after_step(session, turn.result, fields)
    turn_action, calls = turn_of(action, session.episode.calls if session.episode is not None else 0)
    return _after_step(session, await session.step(turn_action, calls=calls, timeout=timeout), {})


def _after_step(session: EnvSession, result: StepResult, fields: Mapping[str, Any]) -> dict[str, Any]:
    return _answer({"messages": result.obs, **fields}, float(result.reward), result.done, session.metadata(result))


def _without_step(session: EnvSession, fields: Mapping[str, Any]) -> dict[str, Any]:
    over = session.episode is not None and session.episode.stop_reason is not None
    return _answer({"messages": [], **fields}, None, over, {"env": session.served.id})


def _answer(observation: dict[str, Any], reward: float | None, done: bool, metadata: dict[str, Any]) -> dict[str, Any]:
    """OpenEnv's envelope; typed clients read the metadata in the observation, others beside it."""
    return {
        "observation": {**observation, "metadata": metadata},
        "reward": reward,
        "done": done,
        "metadata": metadata,
    }
