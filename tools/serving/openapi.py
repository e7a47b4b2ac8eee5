"""The description of an API as OpenAPI 3.1, from its routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from toolgym.tools.serving.routes import Operation, Route

_SCHEMAS = {
    "HTTPValidationError": {
        "type": "object",
        "title": "HTTPValidationError",
        "properties": {"detail": {"type": "array", "items": {"$ref": "#/components/schemas/ValidationError"}}},
    },
    "ValidationError": {
        "type": "object",
        "title": "ValidationError",
        "required": ["loc", "msg", "type"],
        "properties": {
            "loc": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
            "msg": {"type": "string"},
            "type": {"type": "string"},
        },
    },
    "Error": {
        "type": "object",
        "title": "Error",
        "required": ["detail"],
        "properties": {"detail": {"type": "string"}},
    },
}

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
    """Return the whole description.

    Args:
        title: the server's name.
        version: the library's version.
        routes: all routes; operations without a summary are left out.
        with_token: whether clients need a bearer token.
    """
    shown = [
        (route, method, operation)
        for route in routes
        for method, operation in route.operations.items()
        if operation.summary
    ]
    models = {
        what: None
        for _, _, operation in shown
        for what in (operation.request, operation.response)
        if isinstance(what, type)
    }
    _, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for route, method, operation in shown:
        paths.setdefault(route.name, {})[method.lower()] = _operation(route, operation)
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {}) | _SCHEMAS},
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
    found: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if route.public:
        found["security"] = []
    if operation.request is not None:
        found["requestBody"] = {"required": True, "content": _content(operation.request)}
    if route.placeholders:
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.placeholders
        ]
    return found


def _content(what: type[BaseModel] | str) -> dict[str, Any]:
    """Return the content of a body: JSON of a model, or text of a MIME type."""
    return {what: {"schema": {"type": "string"}}} if isinstance(what, str) else _reference(what.__name__)


def _reference(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
