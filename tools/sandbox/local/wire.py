"""Frames between the host, a template process and its children: four bytes of length, then a message.

Messages are JSON in ASCII; but those from a template to a child, which trusts it, are in Python's own `marshal` form:
reading that touches fewer of the pages that the child shares.
"""

from __future__ import annotations

import json
import marshal
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

N = TypeVar("N", int, float)

HEADER = struct.Struct("<I")

MAX_FROM_CHILD = 64 * 1024 * 1024
"""Bytes of one frame from a child. A child is hostile; a longer frame ends it."""


MAX_DEPTH = 200
"""How deeply lists and objects of such a frame may lie in each other: the host must be able to read them too."""

MAX_CONTAINERS = 1_000_000
"""How many of them it may have: each takes many times the memory here that it takes in the frame."""

_AT_ONCE = 64 * 1024


def encode(message: Mapping[str, Any]) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return HEADER.pack(len(body)) + body


def encode_down(message: Mapping[str, Any]) -> bytes:
    """One frame from a template to a child."""
    body = marshal.dumps(dict(message))
    return HEADER.pack(len(body)) + body


class Decoder:
    """Takes bytes as they come, and gives whole messages.

    Args:
        limit: most bytes of one frame of a child, whose shape is limited too; None: whoever writes is trusted.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._hostile = limit is not None
        self._limit = 0xFFFFFFFF if limit is None else limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield every message that is complete.

        Raises:
            ValueError: the frame is too long, too deep, or not a JSON object.
            RecursionError: it is deeper still.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if length > self._limit:
                raise ValueError(f"a frame of {length} bytes, more than the {self._limit} allowed")
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            containers = body.count(b"[") + body.count(b"{") if self._hostile else 0
            if containers > MAX_CONTAINERS:
                raise ValueError("a frame of too many parts")
            message = json.loads(body)
            if containers > MAX_DEPTH and _deeper(message, MAX_DEPTH):
                raise ValueError("a frame of too many layers")
            if not isinstance(message, dict):
                raise ValueError("a frame that is not a JSON object")
            yield message


def _deeper(message: Any, depth: int) -> bool:
    layer = [message]
    for _ in range(depth):
        inner = (part for one in layer for part in (one.values() if isinstance(one, dict) else one))
        layer = [part for part in inner if isinstance(part, dict | list)]
        if not layer:
            return False
    return True


def plausible(number: N) -> N:
    """What a child reports of itself, unless no process could have used so much.

    Raises:
        ValueError: none could.
    """
    if not abs(number) < 1 << 50:
        raise ValueError("a number that is none")
    return number


def send_all(fd: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int) -> dict[str, Any] | None:
    """In a child: read one frame of the template's from a blocking descriptor; None at its end.

    The template sends the next one when this one is answered, so there is never more to read than one.
    """
    data = os.read(fd, _AT_ONCE)
    if len(data) < HEADER.size:
        more = _read_exactly(fd, HEADER.size - len(data)) if data else None
        if more is None:
            return None
        data += more
    missing = HEADER.size + HEADER.unpack_from(data)[0] - len(data)
    if missing:
        more = _read_exactly(fd, missing)
        if more is None:
            return None
        data += more
    message: dict[str, Any] = marshal.loads(memoryview(data)[HEADER.size :])
    return message


def _read_exactly(fd: int, count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
