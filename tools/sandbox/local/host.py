"""The template's end of the socket to the host."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from toolgym.tools.sandbox.local import wire
from toolgym.tools.sandbox.local.reactor import Reactor


class Host:
    """Takes requests and gives answers. When the host is gone, so is this process, and its children with it.

    Args:
        end: the socket.
        reactor: tells when there is something to read.
        on_request: is called with each request.
        on_end: is called when the host is gone, before this process ends.
    """

    def __init__(
        self,
        end: socket.socket,
        reactor: Reactor,
        on_request: Callable[[dict[str, Any]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._socket, self._reactor, self._on_request, self._on_end = end, reactor, on_request, on_end
        self._decoder = wire.Decoder()
        self._outbox = bytearray()
        end.setblocking(False)
        reactor.watch(end.fileno(), self._on_event)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message, as far as it goes now, and the rest when there is room."""
        self._outbox += wire.encode(message)
        self._flush()

    @property
    def backlog(self) -> int:
        """Bytes that wait for the host to read."""
        return len(self._outbox)

    def pass_on(self, number: int, data: bytes, *, more: bool = True) -> None:
        """Send bytes that belong to what a request will be answered, ahead of the answer.

        Args:
            number: of the request.
            data: the bytes.
            more: whether others will follow first; otherwise they go out with the answer, which comes now.
        """
        self._outbox += wire.piece_head(number, len(data))
        self._outbox += data
        if more:
            self._flush()

    def answer(self, request: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        """Answer a request."""
        self.tell({"id": request.get("id"), **message})

    def _on_event(self, event: int) -> None:
        if event & select.EPOLLOUT:
            self._flush()
        if not event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
        for request in self._decoder.feed(data):
            if isinstance(request, wire.Piece):
                continue  # the host sends none
            self.carry_out(request)

    def carry_out(self, request: dict[str, Any]) -> None:
        """Take a request as if it came now."""
        try:
            self._on_request(request)
        except Exception as error:  # noqa: BLE001  one bad request must not harm another
            self.answer(request, {"status": "sandbox_error", "message": f"{type(error).__name__}: {error}"})

    def _end(self) -> NoReturn:
        try:
            self._on_end()
        finally:
            os._exit(0)

    def _flush(self) -> None:
        waiting = len(self._outbox)
        while self._outbox:
            try:
                sent = self._socket.send(self._outbox)
            except BlockingIOError:
                break
            except OSError:
                self._end()
            del self._outbox[:sent]
        if self._outbox:
            self._reactor.change(self._socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
        elif waiting:
            self._reactor.change(self._socket.fileno(), select.EPOLLIN)
