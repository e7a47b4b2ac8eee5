"""A tool in a notebook: its description, its parameters, and its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolgym.tools.schema import ToolSchema
from toolgym.tools.views.html import block, fold, grid, note, page


def tool_html(tool: Any) -> str:
    schema: ToolSchema = tool.tool_schema
    required = schema.parameters.get("required", ())
    rows = [_row(name, each, name in required) for name, each in schema.parameters.get("properties", {}).items()]
    table = grid(["parameter", "type", "default", "description"], rows) if rows else note("No parameters.")
    whole = json.dumps(schema.to_openai(), indent=2, ensure_ascii=False, default=str)
    return page(repr(tool)[1:-1], block(schema.description), table, fold("schema", block(whole)))


def _row(name: str, schema: Any, required: bool) -> tuple[object, ...]:
    rules = schema if isinstance(schema, Mapping) else {}
    kinds = [str(part.get("type", "any")) for part in rules.get("anyOf", (rules,))]
    kind = f"one of {', '.join(map(repr, rules['enum']))}" if "enum" in rules else " or ".join(kinds)
    default = "required" if required else repr(rules["default"]) if "default" in rules else ""
    return name, kind, default, rules.get("description", "")
