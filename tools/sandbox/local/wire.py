"""Frames between the host, a template process and its children: four bytes of length, then a message.

Messages are JSON in ASCII; but those from a template to a child, which trusts it, are in Python's own `marshal` form:
reading that touches fewer of the pages that the child shares.

The highest bit of the length marks a frame that is no message: from a child, an answer (see `answers`), which the
template passes on as it comes, unread; from a template, a piece of such an answer, or of files, after the number of the
request that it belongs to.
"""

from __future__ import annotations

import json
import marshal
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

N = TypeVar("N", int, float)

HEADER = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")
_RAW = 1 << 31

MAX_NOTE = 16 * 1024
"""Bytes of one message from a child. A child is hostile; a longer one ends it."""

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer from a child, likewise."""

_AT_ONCE = 64 * 1024


class Part(NamedTuple):
    """Some bytes of a child's answer.

    Attributes:
        data: the bytes.
        last: whether they are the end of it.
    """

    data: bytes
    last: bool


class Piece(NamedTuple):
    """Some bytes that belong to what a template will answer.

    Attributes:
        number: of the request.
        data: the bytes.
    """

    number: int
    data: bytes


def encode(message: Mapping[str, Any]) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return HEADER.pack(len(body)) + body


def encode_down(message: Mapping[str, Any]) -> bytes:
    """One frame from a template to a child."""
    body = marshal.dumps(dict(message))
    return HEADER.pack(len(body)) + body


def encode_answer(packed: bytes) -> bytes:
    """One frame from a child: an answer."""
    return HEADER.pack(_RAW | len(packed)) + packed


def piece_head(number: int, length: int) -> bytes:
    """The beginning of a frame from a template: of a piece of so many bytes, which follow."""
    return HEADER.pack(_RAW | (_NUMBER.size + length)) + _NUMBER.pack(number)


class Decoder:
    """Takes bytes of the host or of a template as they come, and gives whole messages and pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | Piece]:
        """Yield everything that is complete.

        Raises:
            ValueError: a frame is not JSON.
        """
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            end = HEADER.size + (length & ~_RAW)
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            if length & _RAW:
                yield Piece(_NUMBER.unpack_from(body)[0], body[_NUMBER.size :])
            else:
                yield json.loads(body)


class Uplink:
    """Takes a child's bytes as they come, and gives whole messages, and answers in parts.

    It never holds more than one message, nor parses a longer one: others wait meanwhile.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | Part]:
        """Yield every message that is complete, and what there is of an answer.

        Raises:
            ValueError: a frame is too long, or no JSON object.
            RecursionError: it is too deep.
        """
        self._buffer += data
        while self._buffer:
            if self._left:
                part = bytes(self._buffer[: self._left])
                del self._buffer[: len(part)]
                self._left -= len(part)
                yield Part(part, self._left == 0)
                continue
            if len(self._buffer) < HEADER.size:
                return
            (length,) = HEADER.unpack_from(self._buffer)
            if length & _RAW:
                self._left = length & ~_RAW
                if not 0 < self._left <= MAX_ANSWER:
                    raise ValueError(f"an answer of {self._left} bytes, not of 1 to {MAX_ANSWER}")
                del self._buffer[: HEADER.size]
                continue
            if length > MAX_NOTE:
                raise ValueError(f"a message of {length} bytes, more than the {MAX_NOTE} allowed")
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            message = json.loads(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            if not isinstance(message, dict):
                raise ValueError("a message that is not a JSON object")
            yield message


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
