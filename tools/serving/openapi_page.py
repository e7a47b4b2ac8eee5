"""The API's description as a page: plain HTML that loads nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}code,pre{font-family:monospace}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left;vertical-align:top}"
    "pre{overflow-x:auto;background:#f4f4f4;padding:.5rem}summary{cursor:pointer}"
)


def render_page(description: Mapping[str, Any]) -> str:
    """Return an OpenAPI 3.1 description, as `describe` makes it, as one HTML page without scripts."""
    info = description["info"]
    title = html.escape(f"{info['title']} {info['version']}".strip())
    token = ""
    if description.get("security"):
        token = "<p>Send the header <code>Authorization: Bearer TOKEN</code>, but where it says <em>no token</em>.</p>"
    operations = "".join(
        _operation(path, method, operation, bool(token))
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in sorted(description["components"]["schemas"].items()))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1>{token}<h2>Paths</h2>{operations}<h2>Bodies</h2>{schemas}</html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any], with_token: bool) -> str:
    public = " <em>no token</em>" if with_token and operation.get("security") == [] else ""
    rows = "".join(
        f"<tr><td>{code}<td>{html.escape(one['description'])}<td>{_content(one)}"
        for code, one in sorted(operation["responses"].items())
    )
    body = f"<p>Body: {_content(operation['requestBody'])}</p>" if "requestBody" in operation else ""
    summary = html.escape(operation["summary"])
    return (
        f"<details><summary><code>{method.upper()} {html.escape(path)}</code> {summary}{public}</summary>"
        f"{body}<table><tr><th>Status<th>Meaning<th>Answer{rows}</table></details>"
    )


def _content(holder: Mapping[str, Any]) -> str:
    parts = []
    for kind, one in holder.get("content", {}).items():
        name = one["schema"].get("$ref", "").rpartition("/")[2]
        parts.append(f'<a href="#{name}">{name}</a>' if name else f"<code>{html.escape(kind)}</code>")
    return ", ".join(parts)


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    text = html.escape(json.dumps(schema, indent=2, ensure_ascii=False))
    return f'<details id="{name}"><summary><code>{name}</code></summary><pre>{text}</pre></details>'
