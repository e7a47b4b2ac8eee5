"""Frames between the host, a template process and its children: four bytes of length, then JSON in ASCII."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

HEADER = struct.Struct("<I")

MAX_FROM_CHILD = 64 * 1024 * 1024
"""Bytes of one frame from a child. A child is hostile; a longer frame ends it."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return HEADER.pack(len(body)) + body


class Decoder:
    """Takes bytes as they come, and gives whole messages.

    Args:
        limit: most bytes of one frame.
    """

    def __init__(self, limit: int = 0xFFFFFFFF) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield every message that is complete.

        Raises:
            ValueError: the frame is too long or not a JSON object.
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
            message = json.loads(body)
            if not isinstance(message, dict):
                raise ValueError("a frame that is not a JSON object")
            yield message


def send_all(fd: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int) -> dict[str, Any] | None:
    """Read one frame from a blocking descriptor; None at its end."""
    head = _read_exactly(fd, HEADER.size)
    if head is None:
        return None
    body = _read_exactly(fd, HEADER.unpack(head)[0])
    if body is None:
        return None
    message: dict[str, Any] = json.loads(body)
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
