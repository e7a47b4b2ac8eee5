"""OpenAI's chat completions: the wire of most agents. Thinking is `reasoning_content`, as SGLang and vLLM have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from toolgym.rollout.capture.agent_call import AgentCall, AgentMessage, CallRefusedError, Reply, WrittenCall
from toolgym.rollout.capture.wires import fields
from toolgym.rollout.capture.wires.events import COMMENT, error_body, event, pieces
from toolgym.rollout.capture.wires.memory import RequestMemory

_ROLES = ("system", "developer", "user", "assistant", "tool")
_UNHEARD = (
    *("tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs", "logit_bias", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "min_p", "min_tokens", "ignore_eos", "reasoning_effort"),
    *("chat_template_kwargs", "continue_final_message", "web_search_options", "prediction", "verbosity"),
)


class ChatWire:
    name = "chat"
    path = "/chat/completions"
    counting_path: str | None = None

    def read(self, body: Mapping[str, Any], memory: RequestMemory) -> AgentCall:
        fields.refuse_constraints(body, {"response_format": body.get("response_format")})
        if body.get("functions"):
            raise fields.unsupported("functions", "this is the old name of `tools`; send those")
        if "audio" in fields.entries(body.get("modalities"), "modalities"):
            raise fields.unsupported("modalities", "this server answers with texts only")
        left_out = [*fields.unheard(body, *_UNHEARD)]
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
            left_out=(*left_out, *more),
            extra={"include_usage": fields.flag(options, "include_usage")},
        )

    def answer(self, call: AgentCall, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["content"] = reply.content or None
            message["tool_calls"] = [
                {"id": entry.id, "type": "function", "function": {"name": entry.name, "arguments": entry.arguments}}
                for entry in reply.calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish}
        return {**_head(call, reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)}

    def events(self, call: AgentCall, reply: Reply, heartbeats: int = 0) -> Iterator[bytes]:
        head = _head(call, reply, "chat.completion.chunk")

        def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return event({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        for piece in pieces(reply.reasoning or ""):
            yield chunk({"reasoning_content": piece})
        for piece in pieces(reply.content):
            yield chunk({"content": piece})
        for index, entry in enumerate(reply.calls):
            function = {"name": entry.name, "arguments": ""}
            yield chunk({"tool_calls": [{"index": index, "id": entry.id, "type": "function", "function": function}]})
            for piece in pieces(entry.arguments):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, reply.finish)
        if call.extra.get("include_usage"):
            yield event({**head, "choices": [], "usage": _usage(reply)})
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


def _head(call: AgentCall, reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl_{reply.id}", "object": kind, "created": reply.created, "model": call.model}


def _usage(reply: Reply) -> dict[str, Any]:
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    details = {"reasoning_tokens": reply.reasoning_tokens}
    cached = {"cached_tokens": reply.cached_tokens}
    return {**usage, "prompt_tokens_details": cached, "completion_tokens_details": details}
