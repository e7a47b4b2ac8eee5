"""OpenAI's chat completions: the wire of most agents. Thinking is `reasoning_content`, as SGLang and vLLM have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, CallRefusedError, Reply, WrittenCall
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.wires import fields
from toolgym.rollout.capture.wires.base import DEFAULT
from toolgym.rollout.capture.wires.events import COMMENT, error_body, event, pieces, token_logprobs
from toolgym.rollout.capture.wires.memory import RequestMemory

_ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatWire:
    name = "chat"
    path = "/chat/completions"
    counting_path: str | None = None

    def read(self, body: Mapping[str, Any], memory: RequestMemory, rules: CaptureRules = DEFAULT) -> AgentCall:
        body, left_out = fields.heeded(body, self.name, rules)
        grammar = fields.grammar({"response_format": body.get("response_format")}, rules, left_out)
        add = partial(_add_message, left_out)
        messages = tuple(memory.history(self.name, body.get("messages"), "messages", add))
        if not messages:
            raise fields.wrong("messages", "a list of at least one message", body.get("messages"))
        options = fields.mapping(body.get("stream_options") or {}, "stream_options")
        tools, more = memory.value("chat tools", body.get("tools"), _tools)
        return AgentCall(
            wire=self.name,
            messages=messages,
            tools=tools,
            model=fields.text(body.get("model", ""), "model"),
            max_tokens=fields.tokens(body, "max_completion_tokens", "max_tokens"),
            sampling=fields.sampling(body),
            stream=fields.flag(body, "stream"),
            choices=fields.choices(body),
            plain=fields.is_none(body.get("tool_choice")),
            grammar=grammar,
            left_out=(*left_out, *more),
            logprobs=fields.flag(body, "logprobs"),
            extra={"include_usage": fields.flag(options, "include_usage")},
        )

    def answer(self, call: AgentCall, *replies: Reply) -> dict[str, Any]:
        head = _head(call, replies[0], "chat.completion")
        choices = [_choice(call, reply, index) for index, reply in enumerate(replies)]
        return {**head, "choices": choices, "usage": _usage(replies)}

    def events(self, call: AgentCall, *replies: Reply, heartbeats: int = 0) -> Iterator[bytes]:
        head = _head(call, replies[0], "chat.completion.chunk")
        for index, reply in enumerate(replies):
            for choice in _deltas(call, reply):
                yield event({**head, "choices": [{"index": index, "logprobs": None, "finish_reason": None, **choice}]})
        if call.extra.get("include_usage"):
            yield event({**head, "choices": [], "usage": _usage(replies)})
        yield b"data: [DONE]\n\n"

    def heartbeat(self, call: AgentCall, sent: int) -> bytes:
        return COMMENT

    def refusal(self, error: CallRefusedError) -> dict[str, Any]:
        return error_body(error)

    def failed_event(self, call: AgentCall, error: CallRefusedError) -> bytes:
        return event(self.refusal(error))


def _add_message(left_out: list[str], messages: list[AgentMessage], entry: Mapping[str, Any], field: str) -> None:
    role = fields.role(entry, field, *_ROLES)
    images: list[str] | None = [] if role in ("user", "tool") else None
    content = fields.joined(entry.get("content"), f"{field}.content", images, left_out)
    if role == "assistant":
        left_out += [f"messages.{name}" for name in fields.unheard(entry, "function_call", "audio")]
        content = content or fields.joined(entry.get("refusal"), f"{field}.refusal")
        calls = tuple(_call(*pair) for pair in fields.objects(entry.get("tool_calls"), f"{field}.tool_calls"))
        # vLLM has come to call it `reasoning`; some clients send both.
        thought = entry.get("reasoning_content") or entry.get("reasoning")
        reasoning = thought if isinstance(thought, str) and thought else None
        ids = frozenset(call.id for call in calls)
        messages.append(AgentMessage("assistant", content, reasoning, calls, ids=ids))
        return
    call_id = fields.name(entry.get("tool_call_id"), f"{field}.tool_call_id") if role == "tool" else ""
    if role != "tool":
        left_out += [f"messages.{name}" for name in fields.unheard(entry, "name")]
    messages.append(AgentMessage(role, content, call_id=call_id, images=tuple(images or ())))


def _call(field: str, entry: Mapping[str, Any]) -> WrittenCall:
    if entry.get("type", "function") != "function":
        raise fields.unsupported(f"{field}.type", f"this server's calls are of type 'function', got {entry['type']!r}")
    function = fields.mapping(entry.get("function"), f"{field}.function")
    return WrittenCall(
        fields.name(entry.get("id"), f"{field}.id"),
        fields.text(function.get("name"), f"{field}.function.name"),
        fields.arguments(function.get("arguments"), f"{field}.function.arguments"),
    )


def _tools(raw: Any) -> tuple[tuple[Mapping[str, Any], ...], set[str]]:
    """The tools, and the names of what they ask for beside."""
    tools = []
    left_out: set[str] = set()
    for field, entry in fields.objects(raw, "tools"):
        if entry.get("type") != "function":
            kind = entry.get("type")
            raise fields.unsupported(f"{field}.type", f"this wire has tools of type 'function', got {kind!r}")
        function = fields.mapping(entry.get("function"), f"{field}.function")
        tools.append(fields.function(function, f"{field}.function"))
        left_out |= {f"tools.{name}" for name in fields.unheard(function, "strict")}
    return tuple(tools), left_out


def _choice(call: AgentCall, reply: Reply, index: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [
            {"id": entry.id, "type": "function", "function": {"name": entry.name, "arguments": entry.arguments}}
            for entry in reply.calls
        ]
    logprobs = {"content": token_logprobs(reply), "refusal": None} if call.logprobs else None
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reply.finish}


def _deltas(call: AgentCall, reply: Reply) -> Iterator[dict[str, Any]]:
    """The choices of a streamed answer, without their index."""
    yield {"delta": {"role": "assistant", "content": ""}}
    for piece in pieces(reply.reasoning or ""):
        yield {"delta": {"reasoning_content": piece}}
    for piece in pieces(reply.content):
        yield {"delta": {"content": piece}}
    for index, entry in enumerate(reply.calls):
        function = {"name": entry.name, "arguments": ""}
        yield {"delta": {"tool_calls": [{"index": index, "id": entry.id, "type": "function", "function": function}]}}
        for piece in pieces(entry.arguments):
            yield {"delta": {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}}
    if call.logprobs:
        yield {"delta": {}, "logprobs": {"content": token_logprobs(reply), "refusal": None}}
    yield {"delta": {}, "finish_reason": reply.finish}


def _head(call: AgentCall, reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl_{reply.id}", "object": kind, "created": reply.created, "model": call.model}


def _usage(replies: Sequence[Reply]) -> dict[str, Any]:
    prompt, completion = replies[0].prompt_tokens, sum(reply.completion_tokens for reply in replies)
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    details = {"reasoning_tokens": sum(reply.reasoning_tokens for reply in replies)}
    cached = {"cached_tokens": replies[0].cached_tokens}
    return {**usage, "prompt_tokens_details": cached, "completion_tokens_details": details}
