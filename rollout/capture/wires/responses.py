"""OpenAI's Responses. A request brings its whole history, or names an earlier response of its session. Thinking is a
reasoning item."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, CallRefusedError, Reply, ReplyCall
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.wires import fields
from toolgym.rollout.capture.wires.base import DEFAULT
from toolgym.rollout.capture.wires.events import error_body, event, pieces, token_logprobs
from toolgym.rollout.capture.wires.memory import RequestMemory
from toolgym.rollout.capture.wires.responses_history import WHOLE, add_item, qualified

_CLIENT_TOOLS = ("local_shell", "shell", "apply_patch", "computer", "computer_use_preview")
"""Types of tools that the agent runs and whose schema only OpenAI's servers know."""


class ResponsesWire:
    name = "responses"
    path = "/responses"
    counting_path: str | None = "/responses/input_tokens"

    def read(self, body: Mapping[str, Any], memory: RequestMemory, rules: CaptureRules = DEFAULT) -> AgentCall:
        body, left_out = fields.heeded(body, self.name, rules)
        form = fields.mapping(body.get("text") or {}, "text").get("format")
        grammar = fields.grammar({"text.format": form}, rules, left_out)
        messages = _messages(body, left_out, memory)
        offered = memory.value("responses tools", body.get("tools"), _Offered)
        return AgentCall(
            wire=self.name,
            messages=messages,
            tools=tuple(offered.tools),
            model=fields.text(body.get("model", ""), "model"),
            max_tokens=fields.tokens(body, "max_output_tokens"),
            sampling=fields.sampling(body),
            stream=fields.flag(body, "stream"),
            plain=fields.is_none(body.get("tool_choice")),
            grammar=grammar,
            left_out=(*left_out, *offered.left_out),
            logprobs="message.output_text.logprobs" in fields.entries(body.get("include"), "include"),
            # OpenAI's client wants one id and time from the first event to the last.
            extra={
                "response_id": f"resp_{uuid.uuid4().hex}",
                "created_at": int(time.time()),
                "instructions": bool(fields.joined(body.get("instructions"), "instructions")),
                "names": offered.names,
                "custom": offered.custom,
            },
        )

    def answer(self, call: AgentCall, *replies: Reply) -> dict[str, Any]:
        [reply] = replies
        # An answer that was cut is a completed response with the status "incomplete": OpenAI's clients, and Codex, take
        # an event `response.incomplete` for a failure, and ask again.
        cut = reply.finish == "length"
        prompt, sampled = reply.prompt_tokens, reply.completion_tokens
        usage = {"input_tokens": prompt, "output_tokens": sampled, "total_tokens": prompt + sampled}
        details = {"reasoning_tokens": reply.reasoning_tokens}
        cached = {"cached_tokens": reply.cached_tokens}
        return {
            **_head(call, "incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _items(call, reply),
            "usage": {**usage, "input_tokens_details": cached, "output_tokens_details": details},
        }

    def events(self, call: AgentCall, *replies: Reply, heartbeats: int = 0) -> Iterator[bytes]:
        [reply] = replies
        number = heartbeats
        if not heartbeats:
            yield self.heartbeat(call, 0)
            yield self.heartbeat(call, 1)
            number = 2
        for index, item in enumerate(_items(call, reply)):
            for data in _item_events(item):
                yield _event(number, output_index=index, **data)
                number += 1
        yield _event(number, type="response.completed", response=self.answer(call, reply))

    def heartbeat(self, call: AgentCall, sent: int) -> bytes:
        """The event that opens the stream, or that says once more that it is in progress. Codex counts no comments."""
        kind = "response.in_progress" if sent else "response.created"
        return _event(sent, type=kind, response=_head(call, "in_progress"))

    def refusal(self, error: CallRefusedError) -> dict[str, Any]:
        return error_body(error)

    def failed_event(self, call: AgentCall, error: CallRefusedError) -> bytes:
        # Codex reads the error of the response. OpenAI's client raises the one beside it, and else takes the event for
        # one of many.
        failure = {"code": error.code, "message": str(error)}
        response = {**_head(call, "failed"), "error": failure}
        return event({"type": "response.failed", "response": response, **self.refusal(error)}, "response.failed")


class _Offered:
    """The tools of a request, as functions.

    Attributes:
        tools: in the OpenAI shape.
        names: of those in a namespace: from the name that the policy knows to the namespace and the name in it.
        custom: names of those whose input is a text, which the policy writes as the argument `input`.
        left_out: names of the tools that OpenAI's servers would run, and of grammars that hold no policy.
    """

    def __init__(self, raw: Any) -> None:
        self.tools: list[Mapping[str, Any]] = []
        self.names: dict[str, tuple[str, str]] = {}
        self.custom: set[str] = set()
        self.left_out: list[str] = []
        for field, tool in fields.objects(raw, "tools"):
            if tool.get("type") == "namespace":
                self._add_namespace(tool, field)
            else:
                self._add(tool, field, "", "")

    def _add_namespace(self, tool: Mapping[str, Any], field: str) -> None:
        """Offer the tools of a namespace. What it says of all of them stands at the first one."""
        namespace = fields.name(tool.get("name"), f"{field}.name")
        purpose = fields.text(tool.get("description") or "", f"{field}.description")
        for index, (name, nested) in enumerate(fields.objects(tool.get("tools"), f"{field}.tools")):
            self._add(nested, name, namespace, "" if index else purpose)

    def _add(self, tool: Mapping[str, Any], field: str, namespace: str, purpose: str) -> None:
        kind = fields.name(tool.get("type"), f"{field}.type")
        if kind in _CLIENT_TOOLS:
            raise fields.unsupported(field, f"a tool of type {kind!r} brings no schema; send it as a function")
        if kind not in ("function", "custom"):
            self.left_out.append(f"tools.{kind}")
            return
        name = fields.name(tool.get("name"), f"{field}.name")
        known = qualified(namespace, name)
        described = tool.get("description")
        offered = {**tool, "name": known, "description": f"{purpose}\n\n{described or ''}" if purpose else described}
        if namespace:
            self.names[known] = (namespace, name)
        if kind == "custom":
            self.custom.add(known)
            offered["parameters"] = self._parameters(tool, field, known)
        self.tools.append(fields.function(offered, field))

    def _parameters(self, tool: Mapping[str, Any], field: str, known: str) -> Mapping[str, Any]:
        """The parameters of a tool whose input is a text: the policy reads the grammar, and nothing enforces it."""
        form = fields.mapping(tool.get("format") or {}, f"{field}.format")
        says = "The whole input of the tool, as plain text."
        if form.get("type", "text") != "text":
            self.left_out.append(f"tools.{known}.format")
            says = f"{says} It must follow this {form.get('syntax', '')} grammar:\n{form.get('definition', '')}"
        properties = {"input": {"type": "string", "description": says}}
        return {"type": "object", "properties": properties, "required": ["input"]}


def _messages(body: Mapping[str, Any], left_out: list[str], memory: RequestMemory) -> tuple[AgentMessage, ...]:
    sent, system = body.get("input"), body.get("instructions")
    items = [{"role": "user", "content": sent}] if isinstance(sent, str) else sent
    messages = tuple(memory.history("responses", items, "input", partial(add_item, left_out)))
    if not sent:
        raise fields.wrong("input", "a text or a list of at least one item", sent)
    previous = body.get("previous_response_id")
    # Some agents name it and send the whole history all the same: it is there if what the assistant said is.
    if previous is not None and all(message.role != "assistant" for message in messages):
        earlier = memory.conversation(fields.name(previous, "previous_response_id"))
        if earlier is None:
            text = f"there is no response {previous[:60]!r} in this session; send the whole history as `input`"
            raise CallRefusedError(400, "previous_response_not_found", text, "previous_response_id")
        messages = (*earlier, *messages)
    instructions = fields.joined(system, "instructions", omitted=left_out)
    return (*([AgentMessage("system", instructions)] if instructions else []), *messages)


def _head(call: AgentCall, status: str) -> dict[str, Any]:
    """The fields of a response that clients expect, whatever has come of it."""
    return {
        "id": call.extra["response_id"],
        "object": "response",
        "created_at": call.extra["created_at"],
        "status": status,
        "model": call.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],  # as long as the request, and read by no client
    }


def _items(call: AgentCall, reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        secret = f"enc_{reply.id}"
        items.append({"id": f"rs_{reply.id}", "type": "reasoning", "summary": summary, "encrypted_content": secret})
    if reply.content or not (reply.reasoning or reply.calls):
        part = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": token_logprobs(reply)}
        items.append({"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "content": [part]})
    items += [_call_item(call, entry) for entry in reply.calls]
    for item in items:
        item["status"] = "completed"
    if reply.finish == "length":
        items[-1]["status"] = "incomplete"
    return items


def _call_item(call: AgentCall, entry: ReplyCall) -> dict[str, Any]:
    namespace, name = call.extra["names"].get(entry.name, ("", entry.name))
    item = {"call_id": entry.id, "name": name, **({"namespace": namespace} if namespace else {})}
    if entry.name not in call.extra["custom"]:
        return {"id": f"fc_{entry.id}", "type": "function_call", **item, "arguments": entry.arguments}
    text = _input_of(entry.arguments)
    id = f"{WHOLE}_{entry.id}" if text is None else f"ctc_{entry.id}"
    return {"id": id, "type": "custom_tool_call", **item, "input": entry.arguments if text is None else text}


def _input_of(arguments: str) -> str | None:
    """The argument `input`, which is the text that a custom tool gets. None if the policy wrote something else."""
    with contextlib.suppress(ValueError, RecursionError):
        written = json.loads(arguments)
        if isinstance(written, dict) and list(written) == ["input"] and isinstance(written["input"], str):
            return written["input"]
    return None


def _item_events(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of one item, without their numbers."""
    kind = item["type"]
    field = {"reasoning": "summary", "message": "content", "custom_tool_call": "input"}.get(kind, "arguments")
    opened = {**item, field: item[field][:0], "status": "in_progress"}
    yield {"type": "response.output_item.added", "item": opened}
    at = {"item_id": item["id"]}
    if kind == "reasoning":
        yield from _part_events("response.reasoning_summary", {**at, "summary_index": 0}, item["summary"][0])
    elif kind == "message":
        yield from _part_events("response", {**at, "content_index": 0}, item["content"][0])
    else:
        name = f"{kind}_{field}"
        for piece in pieces(item[field]):
            yield {"type": f"response.{name}.delta", **at, "delta": piece}
        yield {"type": f"response.{name}.done", **at, field: item[field], "name": item["name"]}
    yield {"type": "response.output_item.done", "item": item}


def _part_events(stem: str, at: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of the one part of a reasoning item or of a message."""
    message = stem == "response"
    added, text = (f"{stem}.content_part", f"{stem}.output_text") if message else (f"{stem}_part", f"{stem}_text")
    more: dict[str, Any] = {"logprobs": []} if message else {}
    yield {"type": f"{added}.added", **at, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield {"type": f"{text}.delta", **at, "delta": piece, **more}
    yield {"type": f"{text}.done", **at, "text": part["text"], **more}
    yield {"type": f"{added}.done", **at, "part": part}


def _event(number: int, **data: Any) -> bytes:
    return event({"sequence_number": number, **data}, data["type"])
