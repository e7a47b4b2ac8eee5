"""Reading a program's output without ever holding more of it than a cap."""

from __future__ import annotations

FLOOD_FACTOR = 64
"""A stream may carry this many times its cap before the program is killed for it."""


class Capture:
    """Keeps the head and the tail of a stream within a cap, and drops the middle.

    Args:
        cap: bytes to keep.
    """

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
        """Whether the stream carried absurdly more than the cap."""
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
        """Return the bytes that were kept, with a note where the middle is missing."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        dropped = self.total - len(self._head) - len(self._tail)
        return b"".join((self._head, b"\n... [%d bytes cut] ...\n" % dropped, self._tail))

    def text(self) -> str:
        """As `content`, invalid UTF-8 replaced."""
        return self.content().decode("utf-8", errors="replace")
