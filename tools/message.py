"""The chat message, in the OpenAI shape: the `messages` array of the Chat Completions API, restricted to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

Role = Literal["system", "user", "assistant", "tool"]


class FunctionCall(TypedDict):
    """`arguments` is an object, which chat templates render as JSON."""

    name: str
    arguments: dict[str, Any]


class MessageToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """One chat message. `tool_calls` and `reasoning_content` (thinking, separate from the content) occur on assistant
    messages only; `tool_call_id` and `name` on tool messages only."""

    role: Role
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[MessageToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str, tool_calls: Sequence[MessageToolCall] = ()) -> Message:
    if not tool_calls:
        return {"role": "assistant", "content": content}
    return {"role": "assistant", "content": content, "tool_calls": list(tool_calls)}


def tool_call(name: str, arguments: dict[str, Any], *, id: str = "call_0") -> MessageToolCall:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(content: str, *, tool_call_id: str, name: str) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id, "name": name}
