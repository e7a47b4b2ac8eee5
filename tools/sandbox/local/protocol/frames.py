"""Frames between the host, the broker and its children: four bytes of length, then a message.

Messages are JSON in ASCII. Those from the broker to a child, which trusts it, are in Python's `marshal` format: reading
that touches fewer pages. The highest bit of the length marks a frame without a message: from a child an answer (see
`answer_codec`), which the broker forwards unread; from the broker the number of a request, and a chunk of its answer.
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
"""Bytes of one message from a child. The broker kills a child that sends a longer one."""

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of one answer from a child; likewise."""

SHOW_STACK = 64
"""Signal by which the broker makes an interpreter write its stack to stderr, before it ends what the program does. It
is the last real-time signal, which hardly any program uses."""

REPORTED_LIMITS = ("memory_limit", "file_limit", "disk_limit")
"""Statuses of limits that a program or cell may report to have met; a lie would gain it nothing."""

_READ_SIZE = 64 * 1024

_to_json = json.JSONEncoder(separators=(",", ":")).encode


class AnswerChunk(NamedTuple):
    data: bytes
    last: bool


class DataChunk(NamedTuple):
    """Some bytes that belong to the answer of the broker to the request with this id."""

    number: int
    data: bytes


class ForkReply(NamedTuple):
    """The zygote's answer for one slot: process ids of the child and of its namespace's first process, 0 for none."""

    slot: int
    pid: int
    init: int
    error: str

    def encode(self) -> bytes:
        return b"%d %d %d %b" % (self.slot, self.pid, self.init, self.error.encode("utf-8", "replace"))

    @classmethod
    def decode(cls, packet: bytes) -> ForkReply:
        slot, pid, init, error = packet.split(b" ", 3)
        return cls(int(slot), int(pid), int(init), error.decode("utf-8", "replace"))


def encode(message: Mapping[str, Any]) -> bytes:
    body = _to_json(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def encode_request(number: int, message: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The parts of a host's request. Its bytes, under `data` and by name under `files`, come first, in a raw frame."""
    short = dict(message)
    parts = [*message.get("files", {}).values()]
    if parts:
        short["files"] = {name: len(data) for name, data in message["files"].items()}
    if "data" in message:
        parts.append(message["data"])
        short["data"] = len(message["data"])
    if not parts:
        return (encode(short),)
    return (data_chunk_head(number, sum(map(len, parts))), *parts, encode(short))


def put_data(request: dict[str, Any], data: bytes) -> None:
    at = 0
    if request.get("files"):
        files = {}
        for name, size in request["files"].items():
            files[name] = data[at : at + size]
            at += size
        request["files"] = files
    if "data" in request:
        request["data"] = data[at : at + request["data"]] if at else data


def encode_for_child(message: Mapping[str, Any]) -> bytes:
    body = marshal.dumps(dict(message))
    return HEADER.pack(len(body)) + body


def encode_answer(packed: bytes) -> bytes:
    return HEADER.pack(_RAW | len(packed)) + packed


def data_chunk_head(number: int, length: int) -> bytes:
    """The beginning of a frame from the broker, for a chunk of this many bytes, which follow."""
    return HEADER.pack(_RAW | (_NUMBER.size + length)) + _NUMBER.pack(number)


class FrameDecoder:
    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | DataChunk]:
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            end = HEADER.size + (length & ~_RAW)
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEADER.size : end])
            del self._buffer[:end]
            if length & _RAW:
                yield DataChunk(_NUMBER.unpack_from(body)[0], body[_NUMBER.size :])
            else:
                yield json.loads(str(body, "ascii"))  # of bytes, it would guess the encoding first


class ChildDecoder:
    """Decodes the bytes of a child, as they come, to messages and chunks of answers. It never holds more than one
    message, and never parses a long one, because that would delay other children."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> Iterator[dict[str, Any] | AnswerChunk]:
        """Yield every message that is complete, and the bytes of an answer so far; `ValueError` for what is neither."""
        self._buffer += data
        while self._buffer:
            if self._left:
                part = bytes(self._buffer[: self._left])
                del self._buffer[: len(part)]
                self._left -= len(part)
                yield AnswerChunk(part, self._left == 0)
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
    """A number that a child reports of itself, or `ValueError` if no process can have used that much."""
    if not abs(number) < 1 << 50:
        raise ValueError(f"a number that no process reaches: {number}")
    return number


def send_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int) -> dict[str, Any] | None:
    """In a child: read one frame of the broker's; None at its end. The next comes only when this one is answered."""
    inbox = bytearray()
    while part := os.read(fd, _READ_SIZE):
        inbox += part
        for message in requests(inbox):
            return message
    return None


def requests(inbox: bytearray) -> Iterator[dict[str, Any]]:
    """In a launcher: yield the broker's frames that are complete, and remove them from what was received."""
    while len(inbox) >= HEADER.size:
        end = HEADER.size + HEADER.unpack_from(inbox)[0]
        if len(inbox) < end:
            return
        message: dict[str, Any] = marshal.loads(inbox[HEADER.size : end])
        del inbox[:end]
        yield message
