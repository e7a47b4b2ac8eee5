"""The broker's end of the socket to the host."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from toolgym.tools.sandbox.local.broker.reactor import Reactor, SendBuffer
from toolgym.tools.sandbox.local.protocol import frames


class HostLink:
    """Takes requests and sends answers. When the host is gone, this process calls `on_end`, and ends with its children.
    `operations` are called with each request, a `messages.HostMessage`, by its `op`."""

    def __init__(
        self,
        end: socket.socket,
        reactor: Reactor,
        operations: Mapping[str, Callable[[Any], None]],
        on_end: Callable[[], None],
    ) -> None:
        self._socket, self._operations, self._on_end = end, operations, on_end
        self._decoder = frames.FrameDecoder()
        self._data: dict[int, bytes] = {}
        self.outbox = SendBuffer(end, reactor)
        end.setblocking(False)
        reactor.watch(end.fileno(), self._receive)

    def send(self, message: Mapping[str, Any]) -> None:
        self.outbox.add(frames.encode(message))

    def forward(self, number: int, data: bytes, *, more: bool = True) -> None:
        """Send bytes of the answer to a request ahead of it; at once, if `more` follow before the answer."""
        self.outbox.add(frames.data_chunk_head(number, len(data)))
        self.outbox.add(data)
        if more:
            self.flush()

    def answer(self, request: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        self.send({"id": request.get("id"), **message})

    def refuse(self, request: Mapping[str, Any], why: str, **details: Any) -> None:
        """Answer that a request failed, and that its session goes on."""
        self.answer(request, {"status": "error", "alive": True, "message": why, **details})

    def _receive(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
        for request in self._decoder.feed(data):
            if isinstance(request, frames.DataChunk):
                self._data[request.number] = request.data
                continue
            frames.put_data(request, self._data.pop(request.get("id", 0), b""))
            self.handle(request)

    def handle(self, request: dict[str, Any]) -> None:
        try:
            self._operations[request["op"]](request)
        except Exception as error:  # noqa: BLE001  one bad request must not harm another
            self.answer(request, {"status": "sandbox_error", "message": f"{type(error).__name__}: {error}"})

    def _end(self) -> NoReturn:
        try:
            self._on_end()
        finally:
            os._exit(0)

    def flush(self) -> None:
        """Send what waits, and the rest when there is room. Once a turn: answers that came together go out together."""
        if not self.outbox.flush(self.flush):
            self._end()
