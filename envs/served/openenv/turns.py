"""Resets and turns of OpenEnv's clients, as they come over the wire, and the answers to them.

The shapes are those of `openenv.core.env_server.types` and `mcp_types` in openenv 0.10; an action is the same for all
envs here. No ground truth and no row of a data set is in an answer, and of failures only the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

import pydantic
from pydantic import BaseModel, Field

from toolgym.envs.base import Action, StepResult
from toolgym.envs.served.catalog import ServedEnv, TaskPlace, listed
from toolgym.envs.served.env_session import EnvSession
from toolgym.tools.message import assistant
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError


class ResetRequest(BaseModel, extra="forbid"):
    """Request for an episode."""

    seed: int | None = Field(None, ge=0, description="Makes the episode reproducible.")
    episode_id: str | None = Field(None, max_length=255, description="Name of the episode.")
    split: str | None = Field(None, description="Split of the task; with `index`.")
    index: int | None = Field(None, ge=0, description="Place of the task in its split; with `split`.")

    @pydantic.model_validator(mode="after")
    def _both(self) -> Self:
        if (self.split is None) != (self.index is None):
            raise ValueError("a task is chosen by 'split' and 'index' together")
        return self


class CalledFunction(BaseModel):
    """The function of a tool call, in the OpenAI shape."""

    name: str
    arguments: str | dict[str, Any] = Field(description="JSON text, as APIs write it, or an object.")


class CallOfMessage(BaseModel):
    """A tool call of a message, in the OpenAI shape."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(BaseModel):
    """One turn as an assistant message, in the OpenAI shape."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallOfMessage] | None = Field(
        None, description="Null or absent: calls are read from the content, as the env's parser says."
    )


class TurnAction(BaseModel, extra="forbid"):
    """One turn of the policy, in one of three forms: `text`, `message`, or one call (`type`, `tool_name`, `arguments`).

    The third is OpenEnv's `CallToolAction`; with `list_tools` as its type it asks for the tools, and is no turn.
    """

    text: str | None = Field(None, description="The turn as generated, without its end-of-turn token.")
    message: AssistantMessage | None = None
    type: Literal["call_tool", "list_tools"] | None = None
    tool_name: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict, description="Not read.")

    @pydantic.model_validator(mode="after")
    def _one_form(self) -> Self:
        if sum(form is not None for form in (self.text, self.message, self.type)) != 1:
            raise ValueError(
                "an action is one of {'text': ...}, {'message': {...}} and {'type': 'call_tool', 'tool_name': ..., "
                "'arguments': {...}}"
            )
        if (self.type == "call_tool") != (self.tool_name is not None):
            raise ValueError("'tool_name' comes with 'type': 'call_tool'")
        return self


class StepRequest(BaseModel, extra="forbid"):
    """One step over HTTP."""

    action: TurnAction
    timeout_s: float | None = Field(None, gt=0, allow_inf_nan=False, description="Wall seconds for the step.")
    request_id: str | None = Field(None, max_length=255, description="Not read.")


def turn_of(action: TurnAction, first_call: int) -> tuple[Action, int]:
    """Return a text or message as the env takes it, and how many calls have ids; new ids begin at `first_call`."""
    if action.message is None:
        assert action.text is not None
        return action.text, 0
    message = action.message
    content = message.content or ""
    if message.tool_calls is None:
        plain = assistant(content)
        if message.reasoning_content is not None:
            plain["reasoning_content"] = message.reasoning_content
        return plain, 0
    read = [_read(call, first_call + index, index) for index, call in enumerate(message.tool_calls)]
    calls = [call for call in read if isinstance(call, ToolCall)]
    errors = [call for call in read if isinstance(call, ToolCallError)]
    return ParsedTurn(content, content, calls, errors, message.reasoning_content), len(read)


def _read(call: CallOfMessage, number: int, index: int) -> ToolCall | ToolCallError:
    """Read the arguments of a call, which a model wrote; an error in them is for the model to read."""
    name, arguments, call_id = call.function.name, call.function.arguments, call.id or f"call_{number}"
    if isinstance(arguments, dict):
        return ToolCall(call_id, name, arguments, index)
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        text = f"The arguments of the call of {name!r} are not JSON: {error}."
        return ToolCallError(CallProblem.MALFORMED_JSON, text, arguments, call_id, index, name)
    if not isinstance(read, dict):
        text = f"The arguments of the call of {name!r} must be a JSON object."
        return ToolCallError(CallProblem.NOT_A_CALL, text, arguments, call_id, index, name)
    return ToolCall(call_id, name, read, index)


class Observation(BaseModel, extra="forbid"):
    """The messages that the policy reads next. (`done` and `reward` stand beside the observation in an answer.)"""

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
        return _without_step(session, {"tools": listed(session.tools)})
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
