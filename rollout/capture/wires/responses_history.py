"""Items of a Responses request as messages: those of one turn of the assistant become one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolgym.rollout.capture.agent_call import AgentMessage, WrittenCall
from toolgym.rollout.capture.wires import fields, unreadable
from toolgym.rollout.capture.wires.events import marked
from toolgym.tools.message import THINKING_TAGS

WHOLE = "ctw"
"""Kind of mark of a custom tool's call whose input is all that the policy wrote, since that is not the argument."""

_TURN = AgentMessage("assistant", "")


def qualified(namespace: Any, name: str) -> str:
    """The name under which a policy is offered a tool of a namespace."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def thought_of(content: str) -> str | None:
    """Return the thinking of a message that is nothing but thinking between tags; None for any other message.

    pydantic-ai writes such a message after a reasoning item that it does not send back as one. The tags are those of
    the model's profile there, so the tags of all known models are looked for.
    """
    for opens, closes in THINKING_TAGS:
        if len(content) >= len(opens) + len(closes) and content.startswith(opens) and content.endswith(closes):
            return content[len(opens) : -len(closes)].removeprefix("\n").removesuffix("\n")
    return None


def add_item(left_out: list[str], messages: list[AgentMessage], item: Mapping[str, Any], field: str) -> None:
    """Add an item to the messages before it: those of the assistant go into its last message. Raises CallRefusedError
    for a reference to an item that only OpenAI's servers have."""
    kind = item.get("type") or "message"
    if kind == "message":
        _add_message(messages, item, field, left_out)
    elif kind == "reasoning":
        thought = fields.joined(item.get("summary"), f"{field}.summary")  # we put thinking there
        thought = thought or fields.joined(item.get("content"), f"{field}.content")
        ids = marked(item.get("id")) | marked(item.get("encrypted_content"))
        messages.append(replace(_TURN, reasoning=thought or None, ids=ids))
        if not thought and not str(item.get("encrypted_content")).startswith("enc_"):  # only its maker can read it
            left_out += fields.unheard(item, "encrypted_content")
    elif kind in ("function_call", "custom_tool_call"):
        call = _call(item, field, kind == "custom_tool_call")
        turn = messages.pop() if messages and messages[-1].role == "assistant" else _TURN
        messages.append(replace(turn, calls=(*turn.calls, call), ids=turn.ids | {call.id}))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        images: list[str] = []
        output = fields.joined(item.get("output"), f"{field}.output", images, left_out)
        call_id = fields.name(item.get("call_id"), f"{field}.call_id")
        messages.append(AgentMessage("tool", output, call_id=call_id, images=tuple(images)))
    elif kind == "item_reference":
        raise fields.unsupported(field, "this server keeps no items; send the item itself (`store` is false)")
    else:
        _add_note(messages, item, left_out)


def _add_note(messages: list[AgentMessage], item: Mapping[str, Any], left_out: list[str]) -> None:
    """Add a note in the place of an item that the policy cannot read: a call of a tool that OpenAI's servers run, and
    its result."""
    left_out.append(f"input.{unreadable.kind_of(item)}")
    text, call_id = unreadable.note(item), item.get("call_id")
    if not unreadable.kind_of(item).endswith("_output"):
        messages.append(replace(_TURN, content=text))
    elif isinstance(item.get("output"), str):
        messages.append(AgentMessage("user", f"{text}\n{item['output']}"))
    else:
        messages.append(AgentMessage("user", text if not isinstance(call_id, str) else f"{text} ({call_id[:40]})"))


def _add_message(messages: list[AgentMessage], item: Mapping[str, Any], field: str, left_out: list[str]) -> None:
    role = fields.role(item, field, "system", "developer", "user", "assistant")
    shown: list[str] | None = [] if role == "user" else None
    content = fields.joined(item.get("content"), f"{field}.content", shown, left_out)
    if role != "assistant":
        messages.append(AgentMessage(role, content, images=tuple(shown or ())))
    elif not item.get("id") and (thought := thought_of(content)) is not None:
        messages.append(replace(_TURN, reasoning=thought or None))
    else:
        turn = messages[-1] if messages else _TURN
        is_open = turn.role == "assistant" and not turn.content and not turn.calls
        turn = messages.pop() if messages and is_open else _TURN
        messages.append(replace(turn, content=content, ids=turn.ids | marked(item.get("id"))))


def _call(item: Mapping[str, Any], field: str, custom: bool) -> WrittenCall:
    id = fields.name(item.get("call_id"), f"{field}.call_id")
    called = qualified(item.get("namespace"), fields.text(item.get("name"), f"{field}.name"))
    written = item.get("arguments")
    if custom:
        text = fields.text(item.get("input"), f"{field}.input")
        written = text if str(item.get("id")).startswith(f"{WHOLE}_") else {"input": text}
    return WrittenCall(id, called, fields.arguments(written, f"{field}.arguments"))
