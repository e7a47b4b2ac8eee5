"""JSON bodies of requests and answers, with errors in the shape that FastAPI gives them."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pydantic
import pydantic_core
from pydantic import BaseModel

from toolgym.tools.errors import ToolgymError

MAX_PROBLEMS = 20
"""Problems of one request that are listed."""

MAX_ECHO = 200
"""Characters of a bad value that are sent back."""

MAX_DEPTH = 50
"""Levels that are sent of a value that is nested too deeply to be sent whole."""

Problem = dict[str, Any]
"""One entry of a 422 answer, in FastAPI's shape: `type`, `loc`, `msg`, and `input` if it is short."""


class InvalidRequestError(ToolgymError):
    """A request has errors, at least one, and is answered with 422."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem.get("msg")) for problem in problems))
        self.problems = problems


def problem(
    loc: Sequence[str | int], message: str, kind: str = "value_error", value: Any = None
) -> InvalidRequestError:
    """Make the error for a request with one problem, at `loc` below the body."""
    entry: Problem = {"type": kind, "loc": ["body", *loc], "msg": message}
    return InvalidRequestError([entry | _echo(value)])


RequestType = TypeVar("RequestType", bound=BaseModel)


def parse(model: type[RequestType], body: bytes) -> RequestType:
    """Return the request in a body. Raises InvalidRequestError if it is not JSON, or not of the model's shape."""
    if not body or body == b"null":  # as FastAPI says it
        raise InvalidRequestError([{"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}])
    try:
        return model.model_validate_json(body)
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        if details[0]["type"] != "json_invalid":
            raise InvalidRequestError(_problems(details)) from None
    # The fast parser refuses lone surrogates, which the standard one lets through.
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        entry: Problem = {"type": "json_invalid", "loc": ["body", getattr(error, "pos", 0)], "msg": "JSON decode error"}
        entry |= {"input": {}, "ctx": {"error": getattr(error, "msg", str(error))}}
        raise InvalidRequestError([entry]) from None
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        raise InvalidRequestError(_problems(error.errors(include_url=False, include_context=False))) from None


_FASTAPI = {"model_type": "model_attributes_type"}
"""FastAPI's names for kinds of problems, because it lets pydantic read attributes too."""


def _problems(details: Sequence[Any]) -> list[Problem]:
    return [
        {"type": _FASTAPI.get(entry["type"], entry["type"]), "loc": ["body", *entry["loc"]], "msg": entry["msg"]}
        | _echo(entry["input"])
        for entry in details[:MAX_PROBLEMS]
    ]


def _echo(value: Any) -> dict[str, Any]:
    """Return a bad value that is short. (FastAPI sends it back whole, even megabytes.)"""
    if isinstance(value, str):
        return {"input": value} if len(value) <= MAX_ECHO else {}
    if isinstance(value, int) and value.bit_length() > 64:  # too long to be read as a number everywhere
        return {}
    if isinstance(value, float) and not math.isfinite(value):
        return {}
    return {"input": value} if isinstance(value, bool | int | float) else {}


def encode(message: BaseModel | Mapping[str, Any]) -> bytes:
    """Make UTF-8 JSON. Lone surrogates become U+FFFD, numbers that are not finite null."""
    try:
        if isinstance(message, BaseModel):
            return message.__pydantic_serializer__.to_json(message)
        return pydantic_core.to_json(message, inf_nan_mode="null")
    except (ValueError, RecursionError):  # pydantic's own error, among them for text that cannot be encoded
        return json.dumps(_mended(message, MAX_DEPTH), ensure_ascii=False).encode()


def _mended(value: Any, depth: int) -> Any:
    """Replace everything in a value that JSON in UTF-8 cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0:
        return "..."
    if isinstance(value, pydantic.RootModel):
        return _mended(value.root, depth)
    if isinstance(value, BaseModel):
        return {name: _mended(getattr(value, name), depth - 1) for name in type(value).model_fields}
    if dataclasses.is_dataclass(value):
        return {field.name: _mended(getattr(value, field.name), depth - 1) for field in dataclasses.fields(value)}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {_mended(str(key), depth): _mended(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item, depth - 1) for item in value]
    return str(value)
