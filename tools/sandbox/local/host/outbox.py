"""`Outbox`: writes to a socket from any thread, without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

from toolgym.tools.concurrency.rate_limit import running_loop


class Outbox:
    """Sends bytes, in order, as soon as the socket takes them. The socket becomes this object's to close.

    All that an event loop writes in one turn can go out together: a system call each would let another thread have the
    interpreter's lock, and wake up the reader.
    """

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        end.setblocking(False)
        self.loop = loop
        self._socket, self._waiting = end, bytearray()
        self._turns: dict[asyncio.AbstractEventLoop, list[bytes]] = {}  # what each loop has written in its turn
        self._lock = threading.Lock()
        self._closed = False

    def write(self, data: bytes) -> None:
        """Send bytes. Those for a socket that is closed are dropped: its reader tells of the loss."""
        loop = running_loop() if self._turns else None
        if loop is not None and loop in self._turns:  # behind what the loop has written before
            self._turns[loop].append(data)
        else:
            self._write(data)

    def write_soon(self, data: bytes) -> None:
        """Write at the end of the running loop's turn, for a caller that lets the loop go on."""
        loop = asyncio.get_running_loop()
        turn = self._turns.get(loop)
        if turn is not None:
            turn.append(data)
        else:
            self._turns[loop] = [data]
            loop.call_soon(self._end_turn, loop)

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._write(b"".join(self._turns.pop(loop)))

    def _write(self, data: bytes) -> None:
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
        """Close the socket, on the loop."""
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
