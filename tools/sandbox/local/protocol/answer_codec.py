"""Packs a session's answers in its process, and unpacks them in the host; the broker forwards them unread.

An answer is a head in JSON, then long texts and file contents as raw bytes: so little JSON is to be parsed. A program
can write anything into its session's answers; only the host reads them, and trusts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, MutableSequence
from typing import Any

from toolgym.tools.sandbox.local.protocol.frames import HEADER, MAX_ANSWER

MAX_HEAD = 2 * 1024 * 1024

MAX_PARTS = 100_000
"""Commas and brackets that a head may have: with its length, this bounds the time that parsing takes."""

MAX_DEPTH = 200

LONG = 256
"""Texts with more characters than this come after the head."""


class TooLargeError(ValueError):
    """An answer has more bytes or parts than allowed."""


def pack(answer: Mapping[str, Any]) -> bytes:
    """Pack an answer: JSON, except `data`, which may be bytes. See `messages`. Only `data`, `result`, and the parts of
    `error` and of the mappings of `display` may be long. Raises `TooLargeError`, or what `json.dumps` raises."""
    places: list[list[Any]] = []
    parts: list[bytes] = []

    def move(holder: Any, key: Any, *path: Any) -> None:
        value = holder[key]
        if isinstance(value, str) and len(value) > LONG:
            value = value.encode("utf-8", "surrogatepass")
        if isinstance(value, bytes):
            places.append([*path, key, len(value)])
            parts.append(value)
            holder[key] = None

    head = dict(answer)
    for name in ("data", "result"):
        if name in head:
            move(head, name)
    if head.get("error"):
        head["error"] = error = {**head["error"], "traceback": list(head["error"]["traceback"])}
        move(error, "name", "error")
        move(error, "value", "error")
        for index in range(len(error["traceback"])):
            move(error["traceback"], index, "error", "traceback")
    if head.get("display"):
        head["display"] = [dict(bundle) for bundle in head["display"]]
        for index, bundle in enumerate(head["display"]):
            for mime in bundle:
                move(bundle, mime, "display", index)
    if places:
        head["places"] = places
    encoded = json.dumps(head, separators=(",", ":")).encode("ascii")
    size = HEADER.size + len(encoded) + sum(map(len, parts))
    if len(encoded) > MAX_HEAD or size > MAX_ANSWER or count(encoded) > MAX_PARTS:
        raise TooLargeError(f"{size} bytes, {count(encoded)} parts")
    return b"".join([HEADER.pack(len(encoded)), encoded, *parts])


def unpack(packed: bytes) -> dict[str, Any]:
    """Read an answer that user code may have written. Raises `ValueError` if these bytes are no answer, and
    `RecursionError` if it is nested too deeply to parse."""
    if len(packed) < HEADER.size:
        raise ValueError("an answer without a head")
    (length,) = HEADER.unpack_from(packed)
    if length > MAX_HEAD or HEADER.size + length > len(packed):
        raise ValueError("an answer whose head is too long")
    head = packed[HEADER.size : HEADER.size + length]
    if count(head) > MAX_PARTS:
        raise ValueError("an answer of too many parts")
    answer = json.loads(head)
    if not isinstance(answer, dict) or (count(head) > MAX_DEPTH and _deeper(answer, MAX_DEPTH)):
        raise ValueError("an answer that is no object, or has too many layers")
    places = answer.pop("places", [])
    at = HEADER.size + length
    data = memoryview(packed)
    try:
        for *path, key, size in places:
            if not 0 <= size <= len(packed) - at:
                raise ValueError("an answer with less than it says")
            part = data[at : at + size]
            at += size
            holder = answer
            for step in path:
                holder = holder[step]
            if not isinstance(holder, MutableMapping | MutableSequence):
                raise ValueError("an answer with a text that belongs nowhere")
            holder[key] = bytes(part) if key == "data" and not path else str(part, "utf-8", "surrogatepass")
    except (TypeError, LookupError) as error:
        raise ValueError(f"an answer whose parts have no place: {error}") from None
    return answer


def count(head: bytes) -> int:
    return head.count(b",") + head.count(b"[") + head.count(b"{")


def cut(text: str, most: int) -> str:
    """The beginning of a text, with a note of how much is missing."""
    return text if len(text) <= most else f"{text[:most]}... [{len(text) - most} characters cut]"


def _deeper(message: Any, depth: int) -> bool:
    layer = [message]
    for _ in range(depth):
        inner = (part for outer in layer for part in (outer.values() if isinstance(outer, Mapping) else outer))
        layer = [part for part in inner if isinstance(part, dict | list)]
        if not layer:
            return False
    return True
