"""Answers to clients of OpenEnv: observations, rewards and states, in JSON.

No ground truth and no row of a data set is in them, and of failures only the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from toolgym.envs.base import StepResult
from toolgym.envs.served.environments.session import EnvSession, ServedEpisode
from toolgym.envs.served.environments.step_metadata import step_metadata


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
    """Return a session's `SessionState`."""
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


def after_reset(session: EnvSession, episode: ServedEpisode) -> dict[str, Any]:
    """Return OpenEnv's answer to a reset."""
    metadata: dict[str, Any] = {
        "env": session.served.id,
        "episode_id": episode.id,
        "tools": episode.info.get("tools", [tool.to_openai() for tool in episode.tools]),
    }
    if episode.place is not None:
        metadata["task"] = episode.place.spec
    return _answer({"messages": episode.messages}, None, False, metadata)


def after_step(session: EnvSession, result: StepResult, further: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return OpenEnv's answer to a step. `further` are fields of the observation."""
    metadata = step_metadata(session, result)
    return _answer({"messages": result.obs, **(further or {})}, float(result.reward), result.done, metadata)


def without_step(session: EnvSession, further: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenEnv's answer to an action that was no turn. `further` are fields of the observation."""
    over = session.episode is not None and session.episode.stop_reason is not None
    return _answer({"messages": [], **further}, None, over, {"env": session.served.id})


def _answer(observation: dict[str, Any], reward: float | None, done: bool, metadata: dict[str, Any]) -> dict[str, Any]:
    """OpenEnv's envelope; typed clients read the metadata in the observation, others beside it."""
    return {
        "observation": {**observation, "metadata": metadata},
        "reward": reward,
        "done": done,
        "metadata": metadata,
    }
