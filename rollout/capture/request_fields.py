"""The treatment of each field of a request, wire by wire: followed, without effect, ignored and counted, or refused.

A field that carries context, or changes what an answer means, is followed or refused by name. What only tunes the
sampling or the billing is ignored; where an agent could miss it, it is counted in the session's metrics. The rules of
a session may ignore what is refused here, and refuse what is counted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple


class Treatment(enum.StrEnum):
    """The treatment of a field that asks for something."""

    FOLLOWED = "followed"
    HARMLESS = "without effect"
    COUNTED = "ignored, counted"
    REFUSED = "refused"


def _anything(value: Any) -> bool:
    return bool(value)


class RequestField(NamedTuple):
    """A field: its treatment, what a refusal says, whether a value asks for something, and the refusal's code."""

    treatment: Treatment
    text: str = ""
    asks: Callable[[Any], bool] = _anything
    code: str = "unsupported_parameter"


Table = Mapping[str, RequestField]
"""Fields by name, `outer.inner` for those of an object."""

FORMATS = "ask for the format in the prompt, or open the session with rules={'formats': 'follow'} or 'ignore'"

_CONTEXT = re.compile(
    r"(^|_)(threads?|conversations?|sessions?|previous|parent|history|contexts?|memory|state|prompt|prefix|prefill|"
    r"continue|resume|template|assistant|documents?|files?|container|vector|images?|ids?)(_|$)"
)
"""Words in the name of a field that may carry context. An unknown field with one of them is refused."""


def treatment_of(table: Table, name: str) -> RequestField:
    """Return the entry of a field; unknown ones are refused if their name speaks of context, else counted."""
    known = table.get(name)
    if known is not None:
        return known
    if _CONTEXT.search(name):
        return RequestField(
            Treatment.REFUSED, "this gateway does not know this field, which may carry context; leave it out"
        )
    return RequestField(Treatment.COUNTED)


def entries_of(table: Table, body: Mapping[str, Any]) -> Iterable[tuple[str, RequestField, Any]]:
    """Yield the fields of a request that ask for something, inner ones too, each with its entry and its value."""
    nested = {name.partition(".")[0] for name in table if "." in name}
    for name, value in body.items():
        if name in nested and isinstance(value, dict):
            inner = {f"{name}.{key}": entry for key, entry in value.items()}
            yield from (
                (key, table[key], entry) for key, entry in inner.items() if key in table and _asks(table[key], entry)
            )
        entry = treatment_of(table, name)
        if _asks(entry, value):
            yield name, entry, value


def _asks(entry: RequestField, value: Any) -> bool:
    return value is not None and entry.asks(value)


def _table(*groups: tuple[Treatment, Iterable[str]], **special: RequestField) -> dict[str, RequestField]:
    return {name: RequestField(treatment) for treatment, names in groups for name in names} | special


def _more_than_one(value: Any) -> bool:
    return bool(value != 1)


def _forced(value: Any) -> bool:
    """Whether a choice of tools is one that only a grammar could enforce; `none` is followed."""
    kind = value.get("type") if isinstance(value, dict) else value
    return kind not in ("auto", "none")


_FOLLOWED, _HARMLESS, _COUNTED, _REFUSED = Treatment
_SAMPLING = ("temperature", "top_p", "top_k", "seed")
_BILLING = (
    *("metadata", "service_tier", "store", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("prompt_cache_options", "client_metadata", "extra_headers", "extra_query", "timeout", "cache_salt", "request_id"),
    *("priority", "rid", "session_id", "user_id", "litellm_session_id", "litellm_call_id", "provider", "usage"),
)
"""Fields about who pays, who asks, and what a cache may keep."""

_SERVER_SIDE = RequestField(_REFUSED, "this gateway renders the prompt itself, from `messages` and `tools`")
_GRAMMAR = RequestField(_REFUSED, f"this gateway samples without a grammar; {FORMATS}", lambda value: value is not None)
_ONLY_FALSE = RequestField(_COUNTED, asks=lambda value: value is False)

SAMPLED_WITH_GRAMMAR = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "structural_tag"),
    *("json_schema", "regex", "ebnf", "grammar"),
)
"""Fields of vLLM and SGLang."""

CHAT: Table = _table(
    (_FOLLOWED, ("messages", "model", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens")),
    (_FOLLOWED, (*_SAMPLING, "stop", "n", "logprobs", "response_format")),
    (_HARMLESS, (*_BILLING, "separate_reasoning", "include_reasoning", "stream_reasoning", "return_token_ids")),
    (_HARMLESS, ("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens", "response_id")),
    (_COUNTED, ("logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p", "min_tokens")),
    (_COUNTED, ("ignore_eos", "reasoning_effort", "reasoning", "chat_template_kwargs", "web_search_options", "audio")),
    (_COUNTED, ("prediction", "verbosity", "moderation", "stop_token_ids", "include_stop_str_in_output", "echo")),
    (_COUNTED, ("mm_processor_kwargs", "kv_transfer_params", "transforms", "plugins", "truncate_prompt_tokens")),
    tool_choice=RequestField(_COUNTED, asks=_forced),
    parallel_tool_calls=_ONLY_FALSE,
    functions=RequestField(_REFUSED, "this is the old name of `tools`; send those"),
    function_call=RequestField(_REFUSED, "this is the old name of `tool_choice`; send that", _forced),
    modalities=RequestField(
        _REFUSED, "this server answers with texts only", lambda value: not isinstance(value, list) or "audio" in value
    ),
    continue_final_message=RequestField(
        _REFUSED, "this gateway begins a turn of its own; it continues no turn of the agent"
    ),
    add_generation_prompt=RequestField(
        _REFUSED,
        "this gateway begins a turn of its own; it continues no turn of the agent",
        lambda value: value is False,
    ),
    top_logprobs=RequestField(
        _REFUSED, "the engine tells the log-probabilities of sampled tokens only; send `logprobs` alone"
    ),
    prompt_logprobs=RequestField(_REFUSED, "the engine tells the log-probabilities of sampled tokens only"),
    best_of=RequestField(_REFUSED, "this gateway drops no answer that was sampled; ask for `n`", _more_than_one),
    use_beam_search=RequestField(_REFUSED, "this gateway samples"),
    custom_logit_processor=RequestField(_REFUSED, "this gateway samples from the policy's own distribution"),
    documents=_SERVER_SIDE,
    chat_template=_SERVER_SIDE,
    input_ids=_SERVER_SIDE,
    prompt_embeds=_SERVER_SIDE,
    session_params=RequestField(_REFUSED, "this gateway keeps no such session; send the whole history as `messages`"),
    **dict.fromkeys(SAMPLED_WITH_GRAMMAR, _GRAMMAR),
)

RESPONSES: Table = {
    **_table(
        (_FOLLOWED, ("input", "instructions", "model", "tools", "stream", "max_output_tokens", "include", "text")),
        (_FOLLOWED, (*_SAMPLING, "stop", "previous_response_id")),
        (_HARMLESS, (*_BILLING, "stream_options", "background_options", "reasoning")),
        (_COUNTED, ("max_tool_calls", "moderation", "access_programs", "context_management", "image")),
        tool_choice=RequestField(_COUNTED, asks=_forced),
        parallel_tool_calls=_ONLY_FALSE,
        truncation=RequestField(_COUNTED, asks=lambda value: value != "disabled"),
        conversation=RequestField(_REFUSED, "this server keeps none; send the whole history as `input`"),
        prompt=RequestField(_REFUSED, "this server keeps none; send the whole history as `input`"),
        background=RequestField(_REFUSED, "this server answers at once only"),
        top_logprobs=CHAT["top_logprobs"],
        n=RequestField(_REFUSED, "this wire has one answer to a request", _more_than_one),
        **dict.fromkeys(SAMPLED_WITH_GRAMMAR, _GRAMMAR),
    ),
    "text.format": RequestField(_FOLLOWED),
    "text.verbosity": RequestField(_COUNTED),
    "reasoning.effort": RequestField(_COUNTED),
}

MESSAGES: Table = {
    **_table(
        (_FOLLOWED, ("messages", "system", "model", "tools", "stream", "max_tokens", "stop_sequences", "thinking")),
        (_FOLLOWED, (*_SAMPLING, "output_format", "output_config", "context_management")),
        (_HARMLESS, (*_BILLING, "betas", "anthropic_beta", "anthropic_version", "billing_policy", "cache_control")),
        (_HARMLESS, ("inference_geo", "speed", "diagnostics", "user_profile_id", "workspace_id")),
        (_HARMLESS, ("fallback_credit_token",)),
        (_COUNTED, ("mcp_servers", "container", "fallbacks", "compaction")),
        tool_choice=RequestField(_COUNTED, asks=_forced),
        thread=RequestField(
            _REFUSED,
            "this server keeps no threads; send the whole conversation without `thread`",
            code="thread_unsupported_request",  # upon which Anthropic's client sends the whole conversation
        ),
        n=RequestField(_REFUSED, "this wire has one answer to a request", _more_than_one),
        **dict.fromkeys(SAMPLED_WITH_GRAMMAR, _GRAMMAR),
    ),
    "tool_choice.disable_parallel_tool_use": RequestField(_COUNTED),
    "output_config.format": RequestField(_FOLLOWED),
    "output_config.effort": RequestField(_COUNTED),
    "context_management.edits": RequestField(_COUNTED),
}

TABLES: Mapping[str, Table] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
