"""Values between tags that nothing escapes, as `<parameter=key>value</parameter>`, and their types.

The tool's schema says whether 5 or "5" is meant. What it does not settle stays text: the check against the schema then
tells the model whether it is right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import ToolgymError
from toolgym.tools.parsers.scan import TurnBuilder, region_end
from toolgym.tools.parsers.strict_json import read_whole_json
from toolgym.tools.schema import ToolSchema

_PYTHON = {"True": True, "False": False, "None": None}
"""Chat templates of such formats write these values with Python's `str`."""

_TYPES = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


class MalformedError(ToolgymError, ValueError):
    """A call is not written as its format wants it; `at` is where, and `name` the tool's, as far as it was read."""

    def __init__(self, why: str, at: int, name: str = "") -> None:
        super().__init__(why)
        self.at, self.name = at, name


def read_value(
    text: str, start: int, key: str, name: str, *, opening: str, close: str, follows: re.Pattern[str]
) -> tuple[str, int]:
    """Return the value that begins at `start`, and the place behind its closing tag.

    The value may hold its own closing tag, as code about such tags does: the first one counts after which the format
    goes on (`follows`). So it may be two values: one is refused in which an opening tag begins a line, or stands
    behind a closing tag.
    """
    end = text.find(close, start)
    while end != -1 and not follows.match(text, end + len(close)):
        end = text.find(close, end + len(close))
    if end == -1:
        raise MalformedError(f"the value of {key!r} has no closing {close}", start, name)
    value = text[start:end]
    if -1 < value.find(close) < value.rfind(opening) or re.search(rf"(?m)^[^\S\n]*{re.escape(opening)}", value):
        why = f"the value of {key!r} has no closing {close}, or it holds {opening!r}; a parser cannot tell which"
        raise MalformedError(why, end, name)
    return value, end + len(close)


def add_malformed(
    turn: TurnBuilder, error: MalformedError, text: str, start: int, *, opening: str, close: str, shape: str
) -> int:
    end, closed = region_end(text, error.at, close, opening)
    if not closed:
        turn.add_unclosed(close, text[start:end], error.name)
        return end
    turn.add_misread(str(error), f"Write it as:\n{shape}", text[start:end], error.name)
    return end + len(close)


def typed(name: str, texts: Mapping[str, str], schemas: Mapping[str, ToolSchema] | None) -> dict[str, Any]:
    """Type the arguments of a call.

    * A parameter that may be a string gets the text as it is; only `null` or `None` is null if the schema allows null
      as well.
    * Any other gets the JSON value that the text holds, or `True`, `False`, `None` as Python writes them.
    * If an `enum` or `const` lists the values, the listed string counts before the listed other value.
    * A text that holds no such value, a parameter whose type the schema leaves open, one that it does not have, and all
      parameters of an unknown tool stay text.
    """
    schema = (schemas or {}).get(name)
    if schema is None:
        return dict(texts)
    root = schema.parameters
    properties, others = root.get("properties", {}), root.get("additionalProperties")
    return {key: _typed(text, _types(properties.get(key, others), root)) for key, text in texts.items()}


def _typed(text: str, types: set[str] | None) -> Any:
    if types is None:
        return text
    bare = text.strip()
    if "null" in types and bare in ("null", "None"):
        return None
    if "string" in types:
        return text
    if bare in _PYTHON:
        value: Any = _PYTHON[bare]
    else:
        value, _, problem = read_whole_json(bare)
        if problem:
            return text
    return text if isinstance(value, str) else value


def _types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str] | None:
    if not isinstance(schema, Mapping) or depth > 20:
        return None
    alternatives: list[set[str]] = []
    if "type" in schema:
        kind = schema["type"]
        alternatives.append({kind} if isinstance(kind, str) else set(kind))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        alternatives.append({_type_of(value) for value in values})
    if isinstance(reference := schema.get("$ref"), str):
        alternatives.append(_types(_resolve(reference, root), root, depth + 1) or set())
    for rule in ("anyOf", "oneOf"):
        parts = [_types(part, root, depth + 1) for part in schema.get(rule, [])]
        if parts:
            alternatives.append(set().union(*parts) if all(parts) else set())  # type: ignore[arg-type]
    alternatives += [part for part_schema in schema.get("allOf", []) if (part := _types(part_schema, root, depth + 1))]
    alternatives = [part for part in alternatives if part]
    whole = [part | {"integer"} if "number" in part else part for part in alternatives]
    return set.intersection(*whole) or None if whole else None


def _type_of(value: Any) -> str:
    return next((name for name, kind in _TYPES.items() if isinstance(value, kind)), "number")


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#/"):
        return None
    node: Any = root
    for part in reference[2:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node
