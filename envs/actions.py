"""Actions as parsed turns, and as messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from toolgym.envs.base import Action
from toolgym.tools.errors import ConfigError
from toolgym.tools.message import Message, assistant
from toolgym.tools.parsers import ParsedTurn
from toolgym.tools.schema import ToolCall

_SPECIAL_TOKEN = re.compile(r"<\|[^|>\n]*\|>")


def read_action(action: Action, parse: Callable[[str], ParsedTurn], *, calls_seen: int = 0) -> ParsedTurn:
    """Return an action as a parsed turn; `calls_seen` numbers the calls of a message that have no id.

    What is no parsed turn, assistant message or text is a `ConfigError`.
    """
    if isinstance(action, ParsedTurn):
        return action
    if isinstance(action, str):
        return parse(without_end_token(action))
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


def without_end_token(text: str) -> str:
    """Return a text without the end-of-turn tokens, such as `<|im_end|>`, that some trainers leave in a turn."""
    end, has_tokens = _end_of_words(text, len(text)), False
    while text.endswith("|>", 0, end) and (start := text.rfind("<|", 0, end - 1)) >= 0:
        if _SPECIAL_TOKEN.fullmatch(text, start, end) is None:
            break
        end, has_tokens = _end_of_words(text, start), True
    return text[:end] + "\n" if has_tokens else text


def _end_of_words(text: str, end: int) -> int:
    """The end of a text's beginning without the white space at its end."""
    while end and text[end - 1].isspace():
        end -= 1
    return end


def action_message(action: Action) -> Message:
    """Return an action as an assistant message; a text is its content."""
    if isinstance(action, ParsedTurn):
        return action.message
    return assistant(action) if isinstance(action, str) else action
