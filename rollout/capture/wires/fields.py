"""The fields of a request, checked. One of a shape that the wire does not have is refused with 400, by its name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from toolgym.rollout.capture.agent_call import IMAGE, AgentRole, CallRefusedError
from toolgym.rollout.capture.request_fields import FORMATS, TABLES, Treatment, entries_of
from toolgym.rollout.capture.rules import CaptureRules
from toolgym.rollout.capture.wires import unreadable
from toolgym.tools.errors import ConfigError, shorten
from toolgym.tools.message import image_part

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})

MOST_CHOICES = 128
"""Most answers to one request, as OpenAI's API has it."""

WRAPPED = "INVALID_JSON"
"""Key of the object that stands for arguments that are no JSON object, where a wire or a client must have one. It is
pydantic-ai's."""

_CUT = "__unparsedToolInput"
"""The same of Claude Code, of an object with the text and its length; the text may be cut."""

_RANGES: dict[str, tuple[Any, float, float]] = {
    "temperature": (int | float, 0, 100),
    "top_p": (int | float, 0, 1),
    "top_k": (int, -1, 2**31),
    "seed": (int, -(2**63), 2**64),
}

_ROLES: dict[str, AgentRole] = {role: role for role in get_args(AgentRole)} | {"developer": "system"}


def wrong(field: str, expected: str, value: Any) -> CallRefusedError:
    """Make the refusal of a field with another value than it must have."""
    came = "nothing" if value is None else shorten(repr(value), 120)
    return CallRefusedError(400, "invalid_value", f"{field} must be {expected}, got {came}", field)


def unsupported(field: str, text: str, code: str = "unsupported_parameter") -> CallRefusedError:
    """Make the refusal of a request that asks for something that this server cannot give."""
    return CallRefusedError(400, code, f"{field}: {text}", field)


def heeded(body: Mapping[str, Any], wire: str, rules: CaptureRules) -> tuple[Mapping[str, Any], list[str]]:
    """Apply the wire's table of fields, see `toolgym.rollout.capture.request_fields`.

    Returns the request without the fields that the session ignores, and the names of the fields that ask for something
    in vain. Raises CallRefusedError for a field that is refused.
    """
    left_out: list[str] = []
    kept = dict(body)
    for name, entry, _ in entries_of(TABLES[wire], body):
        outer, _, inner = name.partition(".")
        if name in rules.ignored:
            left_out.append(name)
            if inner:
                kept[outer] = {key: value for key, value in kept[outer].items() if key != inner}
            else:
                del kept[outer]
        elif entry.treatment is Treatment.REFUSED:
            raise unsupported(name, entry.text, entry.code)
        elif entry.treatment is Treatment.COUNTED:
            if name in rules.refused:
                raise unsupported(name, "the rules of this session refuse it, and the gateway cannot follow it")
            left_out.append(name)
    return kept, left_out


def grammar(
    formats: Mapping[str, Any], rules: CaptureRules, left_out: list[str], *, optional: bool = False
) -> tuple[str, str] | None:
    """Return the grammar that a request's formats ask for, by the session's rule for formats.

    Args:
        formats: the values of the wire's fields for the answer's format, which may be plain text.
        rules: the session's.
        left_out: gets the names of formats that are ignored.
        optional: whether the agent is known to live with an answer in another format.

    Raises:
        CallRefusedError: the session refuses formats, or follows them and this one is none that it knows.
    """
    for field, value in formats.items():
        if value is None or (isinstance(value, dict) and value.get("type") == "text"):
            continue
        if rules.formats == "ignore" or (optional and rules.formats == "refuse"):
            left_out.append(field)
        elif rules.formats == "refuse":
            raise unsupported(field, f"this server samples without a grammar; {FORMATS}")
        else:
            return _grammar(mapping(value, field), field)
    return None


def _grammar(value: Mapping[str, Any], field: str) -> tuple[str, str]:
    kind = value.get("type")
    if kind == "json_object":
        return "json_schema", '{"type": "object"}'
    if kind == "regex":
        return "regex", name(value.get("pattern"), f"{field}.pattern")
    if kind != "json_schema":
        raise wrong(f"{field}.type", "text, json_object, json_schema or regex", kind)
    inner = value.get("json_schema", value)
    return "json_schema", json.dumps(mapping(mapping(inner, field).get("schema"), f"{field}.schema"))


def is_none(choice: Any) -> bool:
    """Whether a choice of tools is none of them."""
    return (choice.get("type") if isinstance(choice, dict) else choice) == "none"


def choices(body: Mapping[str, Any]) -> int:
    """Return how many answers a request wants."""
    value = body.get("n")
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CHOICES:
        raise wrong("n", f"a whole number from 1 to {MOST_CHOICES}", value)
    return value


def text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise wrong(field, "a text", value)
    return value


def name(value: Any, field: str) -> str:
    if not text(value, field):
        raise wrong(field, "a text that is not empty", value)
    return value  # type: ignore[no-any-return]


def mapping(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise wrong(field, "an object", value)
    return value


def role(entry: Mapping[str, Any], field: str, *known: str) -> AgentRole:
    """The role of a message, of those that the wire knows."""
    value = entry.get("role")
    if not isinstance(value, str) or value not in known:
        raise wrong(f"{field}.role", f"{', '.join(known[:-1])} or {known[-1]}", value)
    return _ROLES[value]


def entries(value: Any, field: str) -> list[Any]:
    """A list; None is an empty one."""
    if not isinstance(value, list | None):
        raise wrong(field, "a list", value)
    return value or []


def objects(value: Any, field: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The objects of a list, each with its name for an error. None is an empty list."""
    listed = enumerate(entries(value, field))
    return [(name := f"{field}[{index}]", mapping(entry, name)) for index, entry in listed]


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
    for field, (kind, low, high) in _RANGES.items():
        value = body.get(field)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                raise wrong(field, f"a {'whole ' if kind is int else ''}number from {low} to {high}", value)
            asked[field] = value
    if (texts := body.get(stop)) is not None:
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(entry, str) for entry in texts):
            raise wrong(stop, "a text or a list of texts", texts)
        if kept := tuple(entry for entry in texts if entry):
            asked["stop"] = kept
    return asked


def joined(content: Any, field: str, images: list[str] | None = None, omitted: list[str] | None = None) -> str:
    """Return the text of a content: a string, None, or parts, which line ends join.

    Args:
        content: the field's value.
        field: its name, for errors.
        images: gets the data URLs of images, and `IMAGE` stands for each in the text. None if no image may be there.
        omitted: gets a name for each part that cannot be read, in whose place the text has a note.

    Raises:
        CallRefusedError: the content is neither a text nor a list of parts.
    """
    if content is None:
        return ""
    if not isinstance(content, str | list):
        raise wrong(field, "a text or a list of parts", content)
    if isinstance(content, str):
        return _of_text(content)
    parts = enumerate(content)
    return lines([part_text(part, f"{field}[{index}]", images, omitted) for index, part in parts])


def lines(texts: Sequence[str]) -> str:
    """Texts joined by line ends, but for those beside an image."""
    whole = ""
    for number, text in enumerate(texts):
        whole += ("\n" if number and text != IMAGE and texts[number - 1] != IMAGE else "") + text
    return whole


def part_text(part: Any, field: str, images: list[str] | None = None, omitted: list[str] | None = None) -> str:
    """Return the text of a part of a content, `IMAGE`, or a note about a part that cannot be read."""
    if isinstance(part, str):
        return _of_text(part)
    kind = mapping(part, field).get("type", "text")
    if isinstance(kind, str) and kind in TEXT_PARTS:
        return _of_text(text(part.get("text"), f"{field}.text"))
    if kind == "refusal":
        return _of_text(text(part.get("refusal"), f"{field}.refusal"))
    if images is not None and kind in ("image_url", "input_image", "image") and (url := _image_url(part)) is not None:
        images.append(url)
        return IMAGE
    if (shown := _inner_text(part, kind)) is not None:
        return shown
    if omitted is not None:
        omitted.append(f"content.{unreadable.kind_of(part)}")
    return _of_text(unreadable.note(part))


def _inner_text(part: Mapping[str, Any], kind: Any) -> str | None:
    """The text of a part that is a document or a search result made of texts."""
    if kind == "tool_reference" and isinstance(part.get("tool_name"), str):
        return _of_text(f"[tool: {part['tool_name']}]")
    source = part.get("source")
    inner = part.get("content") if kind == "search_result" else None
    if kind == "document" and isinstance(source, dict):
        inner = source.get("data") if source.get("type") == "text" else source.get("content")
    if isinstance(inner, list) and all(isinstance(entry, dict) and entry.get("type") == "text" for entry in inner):
        texts = [entry.get("text") for entry in inner]
        inner = "\n".join(texts) if all(isinstance(entry, str) for entry in texts) else None
    if not isinstance(inner, str):
        return None
    heads = [head for head in (part.get("title"), source) if isinstance(head, str) and head]
    return _of_text("\n".join([", ".join(heads), inner] if heads else [inner]))


def _of_text(value: str) -> str:
    """A text of a request, in which nothing can be taken for an image."""
    return value.replace(IMAGE, "\ufffd") if IMAGE in value else value


def _image_url(part: Mapping[str, Any]) -> str | None:
    """The data URL of an image, as the three wires write one; None if it is at an address or has no data."""
    url, source = part.get("image_url"), part.get("source")
    if isinstance(url, Mapping):
        url = url.get("url")
    elif isinstance(source, Mapping) and source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    elif isinstance(source, Mapping):
        url = source.get("url")
    try:
        return image_part(url)["image_url"]["url"]
    except ConfigError:
        return None


def arguments(value: Any, field: str) -> str | Mapping[str, Any]:
    """A call's arguments as the agent sends them back. Those that a client has wrapped, because they were no JSON
    object, come as the policy wrote them."""
    if isinstance(value, str):
        parsed = None
        if WRAPPED in value or _CUT in value:
            with contextlib.suppress(ValueError, RecursionError):
                parsed = json.loads(value)
        return _unwrapped(parsed, value)
    return "" if value is None else _unwrapped(value, mapping(value, field))


def _unwrapped(parsed: Any, sent: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    if not isinstance(parsed, dict) or len(parsed) != 1:
        return sent
    raw, cut = parsed.get(WRAPPED), parsed.get(_CUT)
    if isinstance(cut, dict) and isinstance(cut.get("raw"), str) and cut.get("len") == len(cut["raw"]):
        raw = cut["raw"]
    return raw if isinstance(raw, str) else sent


def function(tool: Mapping[str, Any], field: str, schema: str = "parameters") -> dict[str, Any]:
    """A tool in the OpenAI shape, with only that of it which a model reads. `schema` is the name of its parameters'
    field."""
    parameters, described = tool.get(schema), tool.get("description")
    offered: dict[str, Any] = {"name": name(tool.get("name"), f"{field}.name")}
    if described is not None:
        offered["description"] = text(described, f"{field}.description")
    empty = {"type": "object", "properties": {}}
    offered["parameters"] = empty if parameters is None else mapping(parameters, f"{field}.{schema}")
    return {"type": "function", "function": offered}


def unheard(entry: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """Return those of the fields of a message or a tool that ask for something."""
    return tuple(name for name in names if entry.get(name))
