"""Actions as parsed turns, and as messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from toolgym.envs.base import Action
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message, assistant
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolCall


def read_action(action: Action, parse: Callable[[str], ParsedTurn], *, calls_seen: int = 0) -> ParsedTurn:
    """Return an action as a parsed turn; `calls_seen` numbers the calls of a message that have no id.

    What is no parsed turn, assistant message or text is a `ConfigError`.
    """
    if isinstance(action, ParsedTurn):
        return action
    if isinstance(action, str):
        return parse(action)
    content = action.get("content") if isinstance(action, Mapping) else None
    if not isinstance(content, str) or action.get("role") != "assistant":
        raise ConfigError(f"an action is a parsed turn, text, or an assistant message of text, got {action!r}")
    if "tool_calls" not in action:
        turn = parse(content)
        return turn._replace(reasoning=action.get("reasoning_content", turn.reasoning))
    calls: list[ToolCall] = []
    if not isinstance(action["tool_calls"], Sequence):
        raise ConfigError(f"tool_calls of a message must be a list, got {action['tool_calls']!r}")
    for index, call in enumerate(action["tool_calls"]):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not (
            isinstance(function.get("name"), str) and isinstance(function.get("arguments"), dict)
        ):
            raise ConfigError(f"a tool call of a message needs a function's name and arguments object, got {call!r}")
        call_id = call.get("id") or f"call_{calls_seen + index}"
        calls.append(ToolCall(call_id, function["name"], function["arguments"], index))
    return ParsedTurn(content, content, calls, [], action.get("reasoning_content"))


def action_message(action: Action) -> Message:
    """Return an action as an assistant message; a text is its content."""
    if isinstance(action, ParsedTurn):
        return action.message
    return assistant(action) if isinstance(action, str) else action
