"""`Outbox`: writes to a socket from any thread, without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading


class Outbox:
    """Sends bytes at once, as far as the socket takes them, and the rest, in order, when there is room.

    Args:
        end: the socket, which becomes this object's to close; it is not read here.
        loop: the event loop that waits for room.
    """

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        end.setblocking(False)
        self.loop = loop
        self._socket, self._waiting = end, bytearray()
        self._lock = threading.Lock()
        self._closed = False

    def write(self, data: bytes) -> None:
        """Send bytes. Those for a socket that is closed are dropped: its reader tells of the loss."""
        with self._lock:
            if self._closed:
                return
            idle = not self._waiting
            self._waiting += data
            if idle:  # else the loop waits for room already
                self._send()
                if self._waiting:
                    with contextlib.suppress(RuntimeError):  # the loop is closed, and the reader with it
                        self.loop.call_soon_threadsafe(self._await_room)

    def close(self) -> None:
        """Close the socket, on the loop. Closing twice is fine."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._stop_waiting()
                self._socket.close()

    def _await_room(self) -> None:
        with self._lock:
            if not self._closed:
                self.loop.add_writer(self._socket, self._on_room)

    def _on_room(self) -> None:
        with self._lock:
            self._send()
            if not self._waiting:
                self._stop_waiting()

    def _stop_waiting(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_writer(self._socket)

    def _send(self) -> None:
        try:
            sent = self._socket.send(self._waiting)
        except BlockingIOError:
            return
        except OSError:  # the other end is gone
            sent = len(self._waiting)
        del self._waiting[:sent]
