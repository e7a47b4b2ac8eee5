"""Comparison of messages as an agent sends them back: what changes on the way without a meaning is overlooked.

Not compared are ids, white space around a text, and whether a tool's result is an error. Arguments are compared as the
JSON that they are, and thinking only where the agent sends it back. A message that looks as it did at the last call is
recognised without any of this.
"""

from __future__ import annotations

import enum
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from toolgym.rollout.capture.agent_call import AgentMessage, Reply, WrittenCall

_MARK = re.compile(r"(?<![0-9A-Za-z])g[0-9a-f]{20}(?![0-9A-Za-z])")
_FLATTENED = "Calling tools:\n[{"
"""Text that smolagents writes before a Python `repr` of the calls, which it puts behind the turn's own text."""


def new_reply_id() -> str:
    """A new id, which `marks_of` finds again in whatever is made of it."""
    return "g" + secrets.token_hex(10)


def marks_of(message: AgentMessage) -> set[str]:
    """The ids of replies in the marks of a message, and in the text of one with calls as text."""
    ids = [*message.ids, *(call.id for call in message.calls), message.call_id]
    if _FLATTENED in message.content:
        ids.append(message.content.partition(_FLATTENED)[2])
    return {mark for text in ids if text for mark in _MARK.findall(text)}


class Likeness(enum.Enum):
    """Relation of a message that came back to the reply that was sent."""

    SAME = enum.auto()
    HEALED = enum.auto()
    """It is the reply by its id, whose arguments are no JSON; the agent wrote others in their place."""
    FLATTENED = enum.auto()
    """It is the reply's text with the calls behind it as text."""
    OTHER = enum.auto()


def written(reply: Reply) -> AgentMessage:
    """A reply as a faithful agent sends it back."""
    calls = tuple(WrittenCall(call.id, call.name, call.arguments) for call in reply.calls)
    ids = frozenset({reply.id, *(call.id for call in calls)})
    return AgentMessage("assistant", reply.content, reply.reasoning, calls, ids=ids)


def likeness(seen: AgentMessage, sent: AgentMessage, *, by_id: bool) -> Likeness:
    """Compare a message that came back with the reply as it was sent; `by_id`: it has the reply's id."""
    if seen.role != "assistant" or not _same_thinking(seen.reasoning, sent.reasoning):
        return Likeness.OTHER
    text = sent.content.strip()
    if not seen.calls and _FLATTENED in seen.content and seen.content.partition(_FLATTENED)[0].strip() == text:
        return Likeness.FLATTENED
    if seen.content.strip() == text and _same_calls(seen.calls, sent.calls):
        return Likeness.SAME
    if by_id and any(not isinstance(arguments_of(call), Mapping) for call in sent.calls):
        return Likeness.HEALED
    return Likeness.OTHER


def same(message: AgentMessage, other: AgentMessage) -> bool:
    """Whether two messages of a request, replies or not, say the same."""
    if message is other or message == other:
        return True
    if message.role != other.role or message.content.strip() != other.content.strip() or message.images != other.images:
        return False
    return _same_thinking(message.reasoning, other.reasoning) and _same_calls(message.calls, other.calls)


def begins_with(messages: tuple[AgentMessage, ...], at: int, others: tuple[AgentMessage, ...]) -> bool:
    """Whether messages from a place on begin with others."""
    if len(messages) - at < len(others):
        return False
    return all(same(messages[at + place], other) for place, other in enumerate(others))


def arguments_of(call: WrittenCall) -> Any:
    """The arguments as JSON has them; the text if they are no JSON."""
    if not isinstance(call.arguments, str):
        return call.arguments
    if not call.arguments.strip():
        return {}
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments


def _same_calls(calls: Iterable[WrittenCall], others: Iterable[WrittenCall]) -> bool:
    pairs, more = [*calls], [*others]
    return len(pairs) == len(more) and all(
        call.name == other.name and (call.arguments == other.arguments or arguments_of(call) == arguments_of(other))
        for call, other in zip(pairs, more, strict=True)
    )


def _same_thinking(seen: str | None, sent: str | None) -> bool:
    return not (seen or "").strip() or seen == sent or (seen or "").strip() == (sent or "").strip()
