"""Anthropic's Messages. Thinking goes out if the agent asks for it, in a block whose signature is ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pydantic_core import from_json

from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, CallRefusedError, Reply, WrittenCall
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.wires import fields
from toolgym.rollout.capture.wires.base import DEFAULT
from toolgym.rollout.capture.wires.events import event, marked, pieces
from toolgym.rollout.capture.wires.memory import RequestMemory

BILLING = "x-anthropic-billing-header:"
"""Beginning of a system text of Claude Code that says who pays. It differs with each conversation, and the model is
not to read it."""

_CLIENT_TOOLS = ("bash_", "text_editor_", "computer_", "memory_")
"""Beginnings of the types of tools that the agent runs and whose schema only Anthropic's servers know."""

_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

_DELTAS = {
    "thinking": ("thinking", "thinking_delta", "thinking"),
    "text": ("text", "text_delta", "text"),
    "tool_use": ("input", "input_json_delta", "partial_json"),
}
"""For each kind of block its text, and type and field of the events with pieces of it."""

_ERRORS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "overloaded_error"}


class MessagesWire:
    name = "messages"
    path = "/messages"
    counting_path: str | None = "/messages/count_tokens"

    def read(self, body: Mapping[str, Any], memory: RequestMemory, rules: CaptureRules = DEFAULT) -> AgentCall:
        body, unheard = fields.heeded(body, self.name, rules)
        offered, left_out = memory.value("messages tools", body.get("tools"), _tools)
        unheard += left_out
        output = fields.mapping(body.get("output_config") or {}, "output_config")
        formats = {"output_format": body.get("output_format"), "output_config.format": output.get("format")}
        # Claude Code asks for its title, a side call without tools, in a format; it lives with another one.
        is_title = not offered and BILLING in str(body.get("system") or "")
        grammar = fields.grammar(formats, rules, unheard, optional=is_title)
        choice = fields.mapping(body.get("tool_choice") or {}, "tool_choice")
        system = _system(body.get("system"), unheard)
        messages = memory.history(self.name, body.get("messages"), "messages", partial(_add_messages, unheard))
        if not messages:
            raise fields.wrong("messages", "a list of at least one message", body.get("messages"))
        if messages[-1].role == "assistant":
            text = "the last one must not be the assistant's: this gateway continues no turn of the agent (prefill)"
            raise fields.unsupported("messages", text)
        thinking = fields.mapping(body.get("thinking") or {}, "thinking")
        return AgentCall(
            wire=self.name,
            messages=(*system, *messages),
            tools=offered,
            model=fields.text(body.get("model", ""), "model"),
            max_tokens=fields.tokens(body, "max_tokens"),
            sampling=fields.sampling(body, "stop_sequences"),
            stream=fields.flag(body, "stream"),
            plain=fields.is_none(choice),
            grammar=grammar,
            left_out=tuple(unheard),
            extra={"thinking": thinking.get("type") in ("enabled", "adaptive")},
        )

    def answer(self, call: AgentCall, *replies: Reply) -> dict[str, Any]:
        [reply] = replies
        content = list(_blocks(call, reply))
        for block in content:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["input"])
        return {
            **_head(call, reply),
            "content": content,
            **_end(reply),
            "usage": _usage(reply, reply.completion_tokens),
        }

    def events(self, call: AgentCall, *replies: Reply, heartbeats: int = 0) -> Iterator[bytes]:
        [reply] = replies
        yield _event("message_start", message={**_head(call, reply), "usage": _usage(reply, 0)})
        for index, block in enumerate(_blocks(call, reply)):
            yield from _block_events(index, block)
        yield _event("message_delta", delta=_end(reply), usage=_usage(reply, reply.completion_tokens))
        yield _event("message_stop")

    def heartbeat(self, call: AgentCall, sent: int) -> bytes:
        return _event("ping")

    def refusal(self, error: CallRefusedError) -> dict[str, Any]:
        message = str(error)
        if error.code == "context_length_exceeded" and "prompt is too long" not in message:
            message = f"prompt is too long: {message}"  # the words by which agents know that they must compact
        kind = _ERRORS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        details = {"details": {"error_code": error.code}} if error.code == "thread_unsupported_request" else {}
        return {"type": "error", "error": {"type": kind, "message": message, **details}}

    def failed_event(self, call: AgentCall, error: CallRefusedError) -> bytes:
        return event(self.refusal(error), "error")


def _end(reply: Reply) -> dict[str, Any]:
    """Why an answer ended."""
    if reply.stop_text is not None and reply.finish == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_text}
    return {"stop_reason": _FINISH[reply.finish], "stop_sequence": None}


def _system(system: Any, left_out: list[str]) -> list[AgentMessage]:
    if isinstance(system, list):
        system = [part for part in system if not (isinstance(part, dict) and str(part.get("text")).startswith(BILLING))]
    return [AgentMessage("system", fields.joined(system, "system", omitted=left_out))] if system else []


def _add_messages(left_out: list[str], messages: list[AgentMessage], entry: Mapping[str, Any], field: str) -> None:
    """Add the messages of an entry: a tool result is a message, and so are the texts between two."""
    role = fields.role(entry, field, "system", "user", "assistant")
    content, field = entry.get("content"), f"{field}.content"
    if role == "assistant":
        messages.append(_assistant(content, field, left_out))
        return
    if not isinstance(content, list):
        content = [{"text": fields.joined(content, field)}]
    texts: list[str] | None = None if content else []
    images: list[str] = []
    for name, block in fields.objects(content, field):
        if block.get("type") != "tool_result":
            texts = [*(texts or ()), fields.part_text(block, name, images if role == "user" else None, left_out)]
            continue
        if texts is not None:
            messages.append(AgentMessage(role, fields.lines(texts), images=tuple(images)))
        texts = None
        result = fields.joined(block.get("content"), f"{name}.content", images := [], left_out)
        call_id = fields.name(block.get("tool_use_id"), f"{name}.tool_use_id")
        messages.append(AgentMessage("tool", result, call_id=call_id, images=tuple(images)))
        images = []
        left_out += ["tool_result.is_error"] if fields.flag(block, "is_error") else []
    if texts is not None:
        messages.append(AgentMessage(role, fields.lines(texts), images=tuple(images)))


def _assistant(content: Any, field: str, left_out: list[str]) -> AgentMessage:
    if not isinstance(content, list):
        return AgentMessage("assistant", fields.joined(content, field))
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[WrittenCall] = []
    ids: frozenset[str] = frozenset()
    for name, block in fields.objects(content, field):
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(fields.text(block.get("thinking", ""), f"{name}.thinking"))
            ids |= marked(block.get("signature"))
        elif kind == "tool_use":
            id = fields.name(block.get("id"), f"{name}.id")
            called = fields.text(block.get("name"), f"{name}.name")
            calls.append(WrittenCall(id, called, fields.arguments(block.get("input"), f"{name}.input")))
            ids |= {id}
        elif kind == "redacted_thinking":  # of another model, and only its maker can read it
            left_out.append("redacted_thinking")
        else:
            texts.append(fields.part_text(block, name, omitted=left_out))
    return AgentMessage("assistant", "\n".join(texts), "\n".join(thoughts) or None, tuple(calls), ids=ids)


def _tools(raw: Any) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """The tools that the policy is offered, and the names of those that Anthropic's servers would run."""
    offered: list[Mapping[str, Any]] = []
    left_out: list[str] = []
    for field, tool in fields.objects(raw, "tools"):
        kind = fields.name(tool.get("type") or "custom", f"{field}.type")
        if kind == "custom" or "input_schema" in tool:
            offered.append(fields.function(tool, field, "input_schema"))
            left_out += [f"tools.{name}" for name in fields.unheard(tool, "strict")]
        elif kind.startswith(_CLIENT_TOOLS):
            raise fields.unsupported(field, f"a tool of type {kind!r} brings no schema; send it with `input_schema`")
        else:
            left_out.append(f"tools.{kind}")
    return tuple(offered), left_out


def _head(call: AgentCall, reply: Reply) -> dict[str, Any]:
    head = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": call.model}
    return {**head, "content": [], "stop_reason": None, "stop_sequence": None}


def _blocks(call: AgentCall, reply: Reply) -> Iterator[dict[str, Any]]:
    """The blocks of an answer; `input` is still a text."""
    if reply.reasoning and call.extra.get("thinking"):
        yield {"type": "thinking", "thinking": reply.reasoning, "signature": f"sig_{reply.id}"}
    if reply.content or not reply.calls:
        yield {"type": "text", "text": reply.content}
    for entry in reply.calls:
        yield {"type": "tool_use", "id": entry.id, "name": entry.name, "input": _object_text(entry.arguments)}


def _object_text(arguments: str) -> str:
    """The text of a JSON object: the arguments, or one that holds them. Anthropic's client, whose parser this is,
    repairs JSON that ends too early, so that an agent would run what the policy has not written, and raises an error at
    all other texts."""
    with contextlib.suppress(ValueError):
        if isinstance(from_json(arguments, allow_inf_nan=False), dict):
            return arguments
    return json.dumps({fields.WRAPPED: arguments})


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[bytes]:
    kind = block["type"]
    empty: dict[str, Any] = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}}
    yield _event("content_block_start", index=index, content_block={**block, **empty.get(kind, {"input": {}})})
    field, delta, name = _DELTAS[kind]
    for piece in pieces(block[field]):
        yield _event("content_block_delta", index=index, delta={"type": delta, name: piece})
    if kind == "thinking":
        signed = {"type": "signature_delta", "signature": block["signature"]}
        yield _event("content_block_delta", index=index, delta=signed)
    yield _event("content_block_stop", index=index)


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind, **data}, kind)


def _usage(reply: Reply, sampled: int) -> dict[str, Any]:
    """Counts of tokens, all of them in each event that has any: clients take some from the first, others from the
    last."""
    new = reply.prompt_tokens - reply.cached_tokens  # Anthropic counts those of the cache apart
    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": reply.cached_tokens}
    thinking = {"thinking_tokens": reply.reasoning_tokens if sampled else 0}
    return {"input_tokens": new, **cache, "output_tokens": sampled, "output_tokens_details": thinking}
