"""A tool's JSON schema as the signature and docstring of a Python function.

`transformers.utils.get_json_schema` and other readers of type hints get the same schema from it. What type hints cannot
say (bounds, patterns, the properties of an object) stands as JSON behind the parameter's description.
"""

from __future__ import annotations

import inspect
import json
import keyword
import re
from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Any, Literal, NamedTuple

from toolgym.tools.errors import ConfigError
from toolgym.tools.schema import ToolSchema

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
    "array": list,
    "object": dict,
}
_SAID = frozenset({"type", "description", "title", "default", "enum", "const", "items", "anyOf", "oneOf", "$ref"})

_SECTIONS = re.compile(r"\b(Args|Returns|Raises):")
"""Headings that would end a description when a docstring is read."""


class Signature(NamedTuple):
    signature: inspect.Signature
    doc: str


def signature_of(schema: ToolSchema) -> Signature:
    """Describe the method that calls a tool; `ConfigError` if a parameter is no name in Python."""
    properties: Mapping[str, Any] = schema.parameters.get("properties") or {}
    required = set(schema.parameters.get("required") or ())
    definitions = schema.parameters.get("$defs") or {}
    parameters, lines = [], []
    for name, described in sorted(properties.items(), key=lambda item: item[0] not in required):
        if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
            raise ConfigError(
                f"tool {schema.name!r} has a parameter {name!r}, which cannot be the name of one in Python: give the "
                "tool another schema, whose parameters are Python names"
            )
        resolved = _resolved(described, definitions) if isinstance(described, Mapping) else {}
        default = inspect.Parameter.empty if name in required else resolved.get("default")
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=_hint(resolved, definitions)
            )
        )
        lines.append(f"    {name}: {_described(name, resolved)}")
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    text = _SECTIONS.sub(r"\1 -", inspect.cleandoc(schema.description)) or schema.name
    arguments = ["", "Args:", *lines] if lines else []
    doc = "\n".join([text, *arguments, "", "Returns:", "    What the tool answered."])
    return Signature(inspect.Signature([itself, *parameters], return_annotation=str), doc)


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        return {**definitions.get(reference.removeprefix("#/$defs/"), {}), **schema}
    return schema


def _hint(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> Any:
    if not isinstance(schema, Mapping) or depth > 8:  # a schema may refer to itself
        return Any
    schema = _resolved(schema, definitions)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values and all(type(value) in (str, int, bool, type(None)) for value in values):
        return Literal[tuple(values)]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if not choices and isinstance(schema.get("type"), list):
        choices = [{**schema, "type": kind} for kind in schema["type"]]
    if choices:
        hints = [_hint(choice, definitions, depth + 1) for choice in choices]
        return Any if Any in hints else reduce(or_, hints[1:], hints[0])
    kind = schema.get("type")
    if kind == "array" and (items := _hint(schema.get("items"), definitions, depth + 1)) is not Any:
        return GenericAlias(list, (items,))
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        values = _hint(schema["additionalProperties"], definitions, depth + 1)
        return dict if values is Any else GenericAlias(dict, (str, values))
    return _TYPES.get(str(kind), Any)


def _described(name: str, schema: Mapping[str, Any]) -> str:
    text = " ".join(str(schema.get("description") or name.replace("_", " ")).split())
    unsaid = _unsaid(schema)
    return _SECTIONS.sub(r"\1 -", text) + (f" (JSON Schema: {json.dumps(unsaid, sort_keys=True)})" if unsaid else "")


def _unsaid(schema: Mapping[str, Any]) -> dict[str, Any]:
    expressed = _SAID | {"additionalProperties"} if isinstance(schema.get("additionalProperties"), Mapping) else _SAID
    unsaid = {key: value for key, value in schema.items() if key not in expressed}
    inner = schema.get("items")
    if isinstance(inner, Mapping) and ("$ref" in inner or _unsaid(inner)):
        unsaid["items"] = dict(inner)
    return unsaid
