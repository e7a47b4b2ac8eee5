"""Pipes between the process of the tests and those of the program."""

from __future__ import annotations

import fcntl
import io
import os
import select
import sys
import termios
from typing import Any

from toolgym.tools.judge.inside.limits import LimitWatch


class Pipe:
    """Reads and writes descriptors without a buffer, which would be memory to copy after a fork."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer

    def read(self, size: int) -> bytes:
        data = os.read(self._reader, size)
        if len(data) == size or not data:
            return data
        parts, left = [data], size - len(data)
        while left and (data := os.read(self._reader, left)):
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def write(self, data: bytes) -> None:
        sent = os.write(self._writer, data)
        view = memoryview(data)
        while sent < len(data):
            sent += os.write(self._writer, view[sent:])

    def flush(self) -> None: ...


class WatchedReader(io.RawIOBase):
    """Reads a pipe from the program, and watches the program's limits while it waits.

    It is at its end if there is nothing to read and `ended` can be read, which tells that the process has ended.
    """

    def __init__(self, fd: int, watch: LimitWatch, ended: int) -> None:
        self._fd, self._watch, self._ended = fd, watch, ended

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._watch.wait(self._fd, self._ended) != self._fd:
            return 0
        return os.readv(self._fd, [buffer])


class WatchedWriter(io.RawIOBase):
    """Writes to a pipe to the program, and watches the program's limits while it does not read."""

    def __init__(self, fd: int, watch: LimitWatch) -> None:
        self._fd, self._watch = fd, watch
        os.set_blocking(fd, False)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._fd, data)
            except BlockingIOError:
                self._watch.wait(self._fd, for_writing=True)


def drain(fd: int) -> bool:
    """Read all that is in a pipe. Returns whether it was empty at last: nothing goes on writing to it."""
    for _ in range(64):
        if not _waits(fd):
            return True
        os.read(fd, 1 << 16)
    return False


def is_drained(fd: int) -> bool:
    """Whether a pipe that is open for writing holds nothing that was not read."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4), sys.byteorder) == 0


def _waits(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
