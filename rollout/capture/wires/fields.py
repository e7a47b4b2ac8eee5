"""The fields of a request, checked. One of a shape that the wire does not have is refused with 400, by its name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, get_args

from toolgym.rollout.capture.agent_call import AgentRole, CallRefusedError
from toolgym.tools.errors import shorten

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})

WRAPPED = "INVALID_JSON"
"""Key of the object that stands for arguments that are no JSON object, where a wire or a client must have one. It is
pydantic-ai's."""

_GRAMMARS = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),  # vLLM
    *("json_schema", "regex", "ebnf", "structural_tag"),  # SGLang
)

_ROLES: dict[str, AgentRole] = {role: role for role in get_args(AgentRole)} | {"developer": "system"}


def wrong(field: str, expected: str, value: Any) -> CallRefusedError:
    """Make the refusal of a field with another value than it must have."""
    came = "nothing" if value is None else shorten(repr(value), 120)
    return CallRefusedError(400, "invalid_value", f"{field} must be {expected}, got {came}")


def unsupported(field: str, text: str) -> CallRefusedError:
    """Make the refusal of a request that asks for something that this server cannot give."""
    return CallRefusedError(400, "unsupported_parameter", f"{field}: {text}")


def text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise wrong(field, "a text", value)
    return value


def name(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise wrong(field, "a text that is not empty", value)
    return value


def mapping(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(field, "an object", value)
    return value


def role(entry: Mapping[str, Any], field: str, *known: str) -> AgentRole:
    """The role of a message, of those that the wire knows."""
    value = entry.get("role")
    if not isinstance(value, str) or value not in known:
        raise wrong(f"{field}.role", f"{', '.join(known[:-1])} or {known[-1]}", value)
    return _ROLES[value]


def objects(value: Any, field: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The objects of a list, each with its name for an error. None is an empty list."""
    if not isinstance(value, list | None):
        raise wrong(field, "a list", value)
    return [(f"{field}[{index}]", mapping(entry, f"{field}[{index}]")) for index, entry in enumerate(value or ())]


def flag(body: Mapping[str, Any], field: str) -> bool:
    value = body.get(field)
    if not isinstance(value, bool | None):
        raise wrong(field, "true or false", value)
    return bool(value)


def tokens(body: Mapping[str, Any], *fields: str) -> int | None:
    """The number of tokens in the first of the fields that is there."""
    for field in fields:
        value = body.get(field)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise wrong(field, "a number of tokens, at least 1", value)
            return value
    return None


def sampling(body: Mapping[str, Any], stop: str = "stop") -> dict[str, Any]:
    """The sampling that a request asks for. `stop` is the name of the wire's field for stop texts."""
    asked: dict[str, Any] = {}
    for field, least, whole in (
        ("temperature", 0, False),
        ("top_p", 0, False),
        ("top_k", -1, True),
        ("seed", None, True),
    ):
        value = body.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not math.isfinite(value):
            raise wrong(field, "a whole number" if whole else "a number", value)
        if least is not None and value < least:
            raise wrong(field, f"at least {least}", value)
        asked[field] = value
    if (texts := body.get(stop)) is not None:
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(entry, str) for entry in texts):
            raise wrong(stop, "a text or a list of texts", texts)
        if kept := tuple(entry for entry in texts if entry):
            asked["stop"] = kept
    return asked


def joined(content: Any, field: str) -> str:
    """The text of a content: a string, None, or parts, which line ends join. Raises CallRefusedError for a part that is
    no text, so that no image is dropped."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(field, "a text or a list of parts", content)
    return "\n".join(part_text(part, f"{field}[{index}]") for index, part in enumerate(content))


def part_text(part: Any, field: str) -> str:
    if isinstance(part, str):
        return part
    kind = mapping(part, field).get("type", "text")
    if isinstance(kind, str) and kind in TEXT_PARTS:
        return text(part.get("text"), f"{field}.text")
    if kind == "refusal":
        return text(part.get("refusal"), f"{field}.refusal")
    raise unsupported(field, f"this server reads texts only, got a part of type {kind!r}")


def arguments(value: Any, field: str) -> str | Mapping[str, Any]:
    """A call's arguments as the agent sends them back. Those that a client has wrapped, because they were no JSON
    object, come as the policy wrote them."""
    if value is None:
        return ""
    if isinstance(value, str):
        if WRAPPED not in value and "__unparsedToolInput" not in value:
            return value
        try:
            raw = _unwrapped(json.loads(value))
        except ValueError:
            return value
        return value if raw is None else raw
    raw = _unwrapped(mapping(value, field))
    return value if raw is None else raw


def _unwrapped(value: Any) -> str | None:
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    raw = value.get(WRAPPED)
    cut = value.get("__unparsedToolInput")  # Claude Code's, with the length because it may have cut the text
    if isinstance(cut, Mapping) and isinstance(cut.get("raw"), str) and cut.get("len") == len(cut["raw"]):
        raw = cut["raw"]
    return raw if isinstance(raw, str) else None


def function(tool: Mapping[str, Any], field: str, schema: str = "parameters") -> dict[str, Any]:
    """A tool in the OpenAI shape, with only that of it which a model reads. `schema` is the name of its parameters'
    field."""
    parameters = tool.get(schema)
    described = tool.get("description")
    offered: dict[str, Any] = {"name": name(tool.get("name"), f"{field}.name")}
    if described is not None:
        offered["description"] = text(described, f"{field}.description")
    empty: Mapping[str, Any] = {"type": "object", "properties": {}}
    offered["parameters"] = empty if parameters is None else mapping(parameters, f"{field}.{schema}")
    return {"type": "function", "function": offered}


def refuse_constraints(body: Mapping[str, Any]) -> None:
    """Refuse several answers, and a grammar for the answer: sampled under one, a token's log-prob is not the
    policy's."""
    for field in ("n", "best_of"):
        if body.get(field) not in (None, 1):
            raise unsupported(field, f"this server gives one answer to a request, got {body[field]!r}")
    for field in _GRAMMARS:
        if body.get(field) is not None:
            raise unsupported(field, "this server samples without a grammar; ask for the format in the prompt")


def refuse_format(value: Any, field: str) -> None:
    """Refuse an answer's format unless it is plain text."""
    if value is None or (isinstance(value, Mapping) and value.get("type") in (None, "text")):
        return
    kind = value.get("type") if isinstance(value, Mapping) else value
    raise unsupported(field, f"this server samples without a grammar, got {kind!r}; ask for the format in the prompt")


def unheard(body: Mapping[str, Any], *fields: str) -> tuple[str, ...]:
    """Those of the fields that ask for something: of a tool call whether and which, of calls one only, of all others
    anything that is true."""

    def asks(field: str, value: Any) -> bool:
        if field == "tool_choice":
            return bool(value != "auto")
        return value is False if field == "parallel_tool_calls" else bool(value)

    return tuple(field for field in fields if body.get(field) is not None and asks(field, body[field]))
