"""The description of an API, from its routes: OpenAPI 3.1, and a plain page that loads nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from toolgym.tools.serving.routes import Operation, Route

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}code,pre{font-family:monospace}"
    "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left;vertical-align:top}"
    "pre{overflow-x:auto;background:#f4f4f4;padding:.5rem}summary{cursor:pointer}"
)


class ValidationError(BaseModel):
    loc: list[str | int]
    msg: str
    type: str


class HTTPValidationError(BaseModel):
    detail: list[ValidationError] = []


class Error(BaseModel):
    detail: str


_ERRORS = {
    "400": "The body is garbled",
    "401": "No valid bearer token",
    "404": "What the path names does not exist",
    "405": "Method Not Allowed",
    "408": "The body came too slowly",
    "413": "The body is too long",
    "429": "Full: come back after Retry-After seconds",
    "500": "The server failed",
    "503": "The server is being stopped, or cannot do this now",
}


def describe(title: str, version: str, routes: Iterable[Route], with_token: bool) -> dict[str, Any]:
    """Return the whole description. Operations without a summary are left out."""
    shown = [
        (route, method, operation)
        for route in routes
        for method, operation in route.operations.items()
        if operation.summary
    ]
    bodies = [what for _, _, operation in shown for what in (operation.request, operation.response)]
    models: list[type[BaseModel]] = [what for what in bodies if isinstance(what, type)]
    models += [HTTPValidationError, Error]
    _, schemas = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for route, method, operation in shown:
        paths.setdefault(route.name, {})[method.lower()] = _operation(route, operation)
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }
    if with_token:
        description["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"bearer": []}]
    return description


def _operation(route: Route, operation: Operation) -> dict[str, Any]:
    success: dict[str, Any] = {"description": operation.summary}
    if operation.response is not None:
        success["content"] = _content(operation.response)
    responses = {str(operation.status): success}
    if operation.request is not None or len(route.placeholders) > 1:
        responses["422"] = {"description": "Validation Error", "content": _reference("HTTPValidationError")}
    for code, text in _ERRORS.items():
        responses[code] = {"description": text, "content": _reference("Error")}
    if operation.conflict:
        responses["409"] = {"description": operation.conflict, "content": _reference("Error")}
    description: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if route.public:
        description["security"] = []
    if operation.request is not None:
        description["requestBody"] = {"required": True, "content": _content(operation.request)}
    if route.placeholders:
        description["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.placeholders
        ]
    return description


def _content(what: type[BaseModel] | str) -> dict[str, Any]:
    """Describe a body: JSON of a model, or text of a MIME type."""
    return {what: {"schema": {"type": "string"}}} if isinstance(what, str) else _reference(what.__name__)


def _reference(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def render_page(description: Mapping[str, Any]) -> str:
    """Make one HTML page without scripts of an OpenAPI 3.1 description from `describe`."""
    info = description["info"]
    title = html.escape(f"{info['title']} {info['version']}".strip())
    token = ""
    if description.get("security"):
        token = "<p>Send the header <code>Authorization: Bearer TOKEN</code>, but where it says <em>no token</em>.</p>"
    operations = "".join(
        _operation_html(path, method, operation, bool(token))
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(
        f'<details id="{name}"><summary><code>{name}</code></summary>'
        f"<pre>{html.escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre></details>"
        for name, schema in sorted(description["components"]["schemas"].items())
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1>{token}<h2>Paths</h2>{operations}<h2>Bodies</h2>{schemas}</html>"
    )


def _operation_html(path: str, method: str, operation: Mapping[str, Any], with_token: bool) -> str:
    public = " <em>no token</em>" if with_token and operation.get("security") == [] else ""
    rows = "".join(
        f"<tr><td>{code}<td>{html.escape(response['description'])}<td>{_content_html(response)}"
        for code, response in sorted(operation["responses"].items())
    )
    body = f"<p>Body: {_content_html(operation['requestBody'])}</p>" if "requestBody" in operation else ""
    summary = html.escape(operation["summary"])
    return (
        f"<details><summary><code>{method.upper()} {html.escape(path)}</code> {summary}{public}</summary>"
        f"{body}<table><tr><th>Status<th>Meaning<th>Answer{rows}</table></details>"
    )


def _content_html(holder: Mapping[str, Any]) -> str:
    parts = []
    for kind, content in holder.get("content", {}).items():
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        parts.append(f'<a href="#{name}">{name}</a>' if name else f"<code>{html.escape(kind)}</code>")
    return ", ".join(parts)
