"""A tool in a notebook: its description, its parameters, a call that it accepts, and its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolgym.tools.schema import ToolSchema
from toolgym.tools.views.conversation import call_text
from toolgym.tools.views.html import block, fold, grid, note, page

_VALUES = {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "object": {}, "array": []}


def tool_html(tool: Any) -> str:
    schema: ToolSchema = tool.tool_schema
    required = schema.parameters.get("required", ())
    rows = [_row(name, each, name in required) for name, each in schema.parameters.get("properties", {}).items()]
    arguments = example_arguments(schema)
    call = "" if arguments is None else note(f"A call: {call_text({'name': schema.name, 'arguments': arguments})}")
    table = grid(["parameter", "type", "default", "description"], rows) if rows else note("No parameters.")
    whole = json.dumps(schema.to_openai(), indent=2, ensure_ascii=False, default=str)
    return page(repr(tool)[1:-1], block(schema.description), table, call, fold("schema", block(whole)))


def example_arguments(schema: ToolSchema) -> dict[str, Any] | None:
    """Values of the required arguments that the schema accepts: its own examples, else simple ones; None if it accepts
    none of these."""
    properties = schema.parameters.get("properties", {})
    arguments = {name: _example(properties.get(name)) for name in schema.parameters.get("required", ())}
    return None if schema.problems(arguments) else arguments


def _row(name: str, schema: Any, required: bool) -> tuple[object, ...]:
    rules = schema if isinstance(schema, Mapping) else {}
    kinds = [str(part.get("type", "any")) for part in rules.get("anyOf", (rules,))]
    kind = f"one of {', '.join(map(repr, rules['enum']))}" if "enum" in rules else " or ".join(kinds)
    default = "required" if required else repr(rules["default"]) if "default" in rules else ""
    return name, kind, default, rules.get("description", "")


def _example(schema: Any) -> Any:
    rules = schema if isinstance(schema, Mapping) else {}
    simple = _VALUES.get(str(rules.get("type")), "text")
    plain = rules.get("default", rules.get("const", rules.get("minimum", simple)))
    return next(iter(rules.get("examples") or rules.get("enum") or [plain]))
