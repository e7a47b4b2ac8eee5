"""Items of a Responses request as messages: those of one turn of the assistant become one message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolgym.rollout.capture.agent_call import AgentMessage, WrittenCall
from toolgym.rollout.capture.wires import fields
from toolgym.rollout.capture.wires.events import marked

WHOLE = "ctw"
"""Kind of mark of a custom tool's call whose input is all that the policy wrote, since that is not the argument."""

_THOUGHT = re.compile(r"<think>\n?(.*?)\n?</think>", re.DOTALL)
"""A message of pydantic-ai that stands for the reasoning item before it."""


def qualified(namespace: Any, name: str) -> str:
    """The name under which a policy is offered a tool of a namespace."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


@dataclass
class _Turn:
    """A turn of the assistant, as far as its items were read."""

    reasoning: str | None = None
    content: str | None = None
    calls: list[WrittenCall] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)


class ResponsesHistory:
    """Messages of a request, item by item."""

    def __init__(self) -> None:
        self._messages: list[AgentMessage] = []
        self._turn: _Turn | None = None

    def messages(self) -> list[AgentMessage]:
        self._end_turn()
        return self._messages

    def add(self, item: Mapping[str, Any], name: str) -> None:
        """Read one item. Raises CallRefusedError if it is none that this server can show to the policy."""
        kind = item.get("type") or "message"
        if kind == "message":
            self._add_message(item, name)
        elif kind == "reasoning":
            self._think(_thought_of(item, name), marked(item.get("id")) | marked(item.get("encrypted_content")))
        elif kind in ("function_call", "custom_tool_call"):
            self._add_call(item, name, kind == "custom_tool_call")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._end_turn()
            output = fields.joined(item.get("output"), f"{name}.output")
            call_id = fields.name(item.get("call_id"), f"{name}.call_id")
            self._messages.append(AgentMessage("tool", output, call_id=call_id))
        elif kind == "item_reference":
            raise fields.unsupported(name, "this server keeps no items; send the item itself (`store` is false)")
        else:
            raise fields.unsupported(name, f"this server cannot show the policy an item of type {kind!r}")

    def _add_message(self, item: Mapping[str, Any], name: str) -> None:
        role = fields.role(item, name, "system", "developer", "user", "assistant")
        content = fields.joined(item.get("content"), f"{name}.content")
        if role != "assistant":
            self._end_turn()
            self._messages.append(AgentMessage(role, content))
        elif not item.get("id") and (thought := _THOUGHT.fullmatch(content)):
            self._think(thought[1], frozenset())
        else:
            if self._turn is not None and (self._turn.content is not None or self._turn.calls):
                self._end_turn()
            self._turn = self._turn or _Turn()
            self._turn.content = content
            self._turn.ids |= marked(item.get("id"))

    def _think(self, reasoning: str, ids: frozenset[str]) -> None:
        """Begin a turn with its thinking."""
        self._end_turn()
        self._turn = _Turn(reasoning or None, ids=set(ids))

    def _add_call(self, item: Mapping[str, Any], name: str, custom: bool) -> None:
        id = fields.name(item.get("call_id"), f"{name}.call_id")
        called = qualified(item.get("namespace"), fields.text(item.get("name"), f"{name}.name"))
        written = item.get("arguments")
        if custom:
            text = fields.text(item.get("input"), f"{name}.input")
            written = text if str(item.get("id")).startswith(f"{WHOLE}_") else {"input": text}
        self._turn = self._turn or _Turn()
        self._turn.calls.append(WrittenCall(id, called, fields.arguments(written, f"{name}.arguments")))
        self._turn.ids.add(id)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            calls, ids = tuple(turn.calls), frozenset(turn.ids)
            self._messages.append(AgentMessage("assistant", turn.content or "", turn.reasoning, calls, ids=ids))


def _thought_of(item: Mapping[str, Any], name: str) -> str:
    """The text of a reasoning item: its summary, where we put the thinking, or else its content."""
    summary = fields.joined(item.get("summary"), f"{name}.summary")
    return summary or fields.joined(item.get("content"), f"{name}.content")
