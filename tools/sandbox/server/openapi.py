"""The description of the API, as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from toolgym.tools.sandbox.server import wire

_MODELS: tuple[type[BaseModel], ...] = (
    wire.RunCodeRequest,
    wire.RunCodeResponse,
    wire.RunJupyterRequest,
    wire.RunJupyterResponse,
    wire.CreateSessionRequest,
    wire.SessionInfo,
    wire.CellRequest,
    wire.CellResponse,
    wire.ExecRequest,
    wire.ExecResponse,
)

_VALIDATION = {
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
    "Health": {
        "type": "object",
        "title": "Health",
        "required": ["status", "version", "worker", "workers", "running", "waiting", "sessions", "languages"],
        "properties": {
            "status": {"enum": ["ok", "draining"]},
            "version": {"type": "string"},
            "worker": {"type": "integer"},
            "workers": {"type": "integer"},
            "running": {"type": "integer"},
            "waiting": {"type": "integer"},
            "sessions": {"type": "integer"},
            "languages": {"type": "array", "items": {"type": "string"}},
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
    "404": "No such session or file",
    "405": "Method Not Allowed",
    "408": "The body came too slowly",
    "413": "The body is too long",
    "429": "Full: come back after Retry-After seconds",
    "500": "The server failed",
    "503": "The server is being stopped, or cannot open a session now",
}


def _operation(
    summary: str,
    request: type[BaseModel] | str | None = None,
    response: type[BaseModel] | str | None = None,
    *,
    status: str = "200",
    parameters: tuple[str, ...] = (),
    conflict: str = "",
    public: bool = False,
) -> dict[str, Any]:
    """One operation. A body or answer is a model's name, a MIME type, or None; `conflict` tells what 409 means."""
    responses: dict[str, Any] = {status: {"description": summary}}
    if response is not None:
        responses[status]["content"] = _content(response)
    if request is not None or "name" in parameters:
        responses["422"] = {"description": "Validation Error", "content": _content("HTTPValidationError")}
    for code, text in _ERRORS.items():
        responses[code] = {"description": text, "content": _content("Error")}
    if conflict:
        responses["409"] = {"description": conflict, "content": _content("Error")}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if public:
        operation["security"] = []
    if request is not None:
        operation["requestBody"] = {"required": True, "content": _content(request)}
    if parameters:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parameters
        ]
    return operation


def _content(what: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(what, str) and "/" in what:
        return {what: {"schema": {"type": "string"}}}
    name = what if isinstance(what, str) else what.__name__
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def describe(version: str, with_token: bool) -> dict[str, Any]:
    """The whole description.

    Args:
        version: the library's version.
        with_token: whether clients need a bearer token.
    """
    _, schemas = models_json_schema(
        [(model, "validation") for model in _MODELS], ref_template="#/components/schemas/{model}"
    )
    one, file = ("id",), ("id", "name")
    raw = "application/octet-stream"
    paths = {
        "/run_code": {"post": _operation("Run a program", wire.RunCodeRequest, wire.RunCodeResponse)},
        "/run_jupyter": {
            "post": _operation("Run cells in a fresh session", wire.RunJupyterRequest, wire.RunJupyterResponse)
        },
        "/sessions": {"post": _operation("Open a session", wire.CreateSessionRequest, wire.SessionInfo, status="201")},
        "/sessions/{id}": {
            "get": _operation("Tell about a session", None, wire.SessionInfo, parameters=one),
            "delete": _operation("Close a session", status="204", parameters=one),
        },
        "/sessions/{id}/cells": {"post": _operation("Run a cell", wire.CellRequest, wire.CellResponse, parameters=one)},
        "/sessions/{id}/exec": {
            "post": _operation("Run a program in it", wire.ExecRequest, wire.ExecResponse, parameters=one)
        },
        "/sessions/{id}/fork": {
            "post": _operation(
                "Fork a session",
                None,
                wire.SessionInfo,
                status="201",
                parameters=one,
                conflict="It is in a state that cannot be forked",
            )
        },
        "/sessions/{id}/files/{name}": {
            "put": _operation("Write a file", raw, status="204", parameters=file, conflict="It cannot be written"),
            "get": _operation("Read a file", None, raw, parameters=file, conflict="It cannot be read"),
        },
        "/v1/ping": {"get": _operation("Answer with pong", None, "application/json", public=True)},
        "/health": {"get": _operation("Tell whether requests are taken", None, "Health", public=True)},
        "/metrics": {"get": _operation("Figures for Prometheus", None, "text/plain")},
    }
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "toolgym sandbox", "version": version},
        "paths": paths,
        "components": {"schemas": schemas["$defs"] | _VALIDATION},
    }
    if with_token:
        description["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"bearer": []}]
    return description
