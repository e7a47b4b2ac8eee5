"""Requests of OpenEnv's clients: resets and actions, as they come over the wire.

The shapes are those of `openenv.core.env_server.types` and `mcp_types` in openenv 0.10; what an action holds is up to
an env there, and is the same for all envs here.
"""

from __future__ import annotations

import json
from typing import Any, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from toolgym.envs.base import Action
from toolgym.tools.message import assistant
from toolgym.tools.parsers.base import ParsedTurn
from toolgym.tools.schema import CallProblem, ToolCall, ToolCallError


class ResetRequest(BaseModel):
    """Request for an episode."""

    model_config = ConfigDict(extra="forbid")

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


class TurnAction(BaseModel):
    """One turn of the policy, in one of three forms: `text`, `message`, or one call (`type`, `tool_name`, `arguments`).

    The third is OpenEnv's `CallToolAction`; with `list_tools` as its type it asks for the tools, and is no turn.
    """

    model_config = ConfigDict(extra="forbid")

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


class StepRequest(BaseModel):
    """One step over HTTP."""

    model_config = ConfigDict(extra="forbid")

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
