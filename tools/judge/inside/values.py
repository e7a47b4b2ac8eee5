"""Values that functions of the program return: written by the process of a test, read by the process of the tests.

A reply is one line of JSON. The process that writes it has run the program, so whatever is read may be a forgery.
Reading takes time in proportion to its length, and what was read has the shape that `plain` gives to values.
"""

from __future__ import annotations

import collections
import json
from typing import Any

from toolgym.tools.judge.inside.link import encode_integer, read_json, said

TOO_LARGE = "what the program returned does not fit into the memory"

_MAX_DEPTH = 300
"""Levels of lists in a value. Deeper ones could not be read everywhere."""

_SIMPLE = (bool, float, str)
_MAX_SMALL = 1 << 60

_encode = json.JSONEncoder(check_circular=False).encode


def plain(value: Any) -> Any:
    """Write a value for the judge: JSON, but for `{"dict": pairs}`, `{"int": hexadecimal}` and `{"other": text}`."""
    if value is None or isinstance(value, _SIMPLE):
        return value
    if isinstance(value, int):
        return encode_integer(value)
    if isinstance(value, list | tuple | collections.deque):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
    if type(value).__module__ == "numpy":
        return plain(value.tolist())
    if type(value).__module__ in ("decimal", "fractions") and value == float(value):
        return float(value)
    return {"other": said(value)}


def value_reply(value: Any) -> bytes:
    """Write the reply of a function that returned. It touches few objects: after a fork each costs a copied page."""
    if type(value) is int and -_MAX_SMALL < value < _MAX_SMALL:
        return b'{"value": %d}\n' % value
    return b'{"value": %s}\n' % _encode(plain(value)).encode()


def error_reply(error: BaseException) -> bytes:
    """Write the reply of a function that raised."""
    status, text = "error", f"{type(error).__name__}: {said(error)}"
    if isinstance(error, AssertionError):
        status, text = "wrong", said(error) or "an assertion does not hold"
    elif isinstance(error, MemoryError):
        status, text = "limit", TOO_LARGE
    return json.dumps({"status": status, "error": text}).encode() + b"\n"


def read_reply(line: bytes) -> dict[str, Any]:
    """Read a reply. Returns the outcome of a test. Raises ValueError, TypeError or RecursionError for a forgery."""
    reply = read_json(line)
    if not isinstance(reply, dict):
        raise TypeError("a reply is an object")
    if reply.keys() == {"value"}:
        return {"status": "value", "value": _checked(reply["value"], 0)}
    if reply.keys() != {"status", "error"} or reply["status"] not in ("error", "wrong", "limit"):
        raise ValueError("a reply has a value, or an error")
    return {"status": reply["status"], "error": str(reply["error"])}


def _checked(value: Any, depth: int) -> Any:
    """Return a value of the shape that `plain` writes. Raises for another."""
    if not isinstance(value, list | dict):
        return value
    if depth > _MAX_DEPTH:
        raise ValueError("a value has too many levels")
    if isinstance(value, list):
        return [_checked(item, depth + 1) for item in value]
    ((kind, content),) = value.items()
    if kind == "dict":
        return {"dict": [[_checked(key, depth + 1), _checked(item, depth + 1)] for key, item in content]}
    if kind == "int":
        return encode_integer(int(content, 16))
    if kind == "other" and isinstance(content, str):
        return {"other": content}
    raise ValueError(f"a value has no kind {kind!r}")
