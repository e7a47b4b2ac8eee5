"""Keeps a program's output within a cap."""

from __future__ import annotations

FLOOD_FACTOR = 64
"""A stream may carry this many times its cap before the program is killed for it."""


class Capture:
    """Keeps the head and the tail of a stream within a cap in bytes, and drops the middle."""

    def __init__(self, cap: int) -> None:
        self._half = cap // 2
        self._cap = cap
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    @property
    def truncated(self) -> bool:
        return self.total > len(self._head) + len(self._tail)

    @property
    def flooded(self) -> bool:
        return self.total > self._cap * FLOOD_FACTOR

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        excess = len(self._tail) - (self._cap - self._half)
        if excess > 0:
            del self._tail[:excess]

    def content(self) -> bytes:
        """The bytes that were kept, with a note in place of the missing middle."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        dropped = self.total - len(self._head) - len(self._tail)
        return b"".join((self._head, b"\n... [%d bytes cut] ...\n" % dropped, self._tail))

    def text(self) -> str:
        return self.content().decode("utf-8", errors="replace")
