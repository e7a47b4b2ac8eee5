"""The broker's state of a session's programs, and of the launcher that starts them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolgym.tools.sandbox.local.broker.reactor import Reactor, SendBuffer
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.protocol.capture import Capture

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.broker.channel import Channel
    from toolgym.tools.sandbox.local.protocol.messages import Status


class Waiter:
    def __init__(self, request: Mapping[str, Any], process: RunningProgram) -> None:
        self.request, self.process = request, process
        self.deadline = 0

    @property
    def met(self) -> bool:
        process, until = self.process, self.request["until"]
        if process.ended:
            return True
        if until == "stdin":
            return not process.outbox
        return until == "output" and any(capture.total for capture in process.output.values())


class RunningProgram:
    """One program, with the broker's ends of its pipes. Its deadline is when it is killed, and then its session; what
    comes from it is dropped once the host has `forgotten` it. `stops` counts the steps that were taken to stop it."""

    def __init__(self, number: int, request: Mapping[str, Any], launcher: LauncherLink, output_bytes: int) -> None:
        self.number, self.name, self.launcher = number, request["process"], launcher
        self.start_request: Mapping[str, Any] | None = request
        self.began = time.monotonic()
        self.duration = 0.0
        self.deadline = 0
        self.pipes: dict[int, int] = {}
        self.outbox = bytearray()
        self.closes_input = False
        self.spilled = 0
        self.output_bytes = output_bytes
        self.output = self.fresh_output()
        self.code: int | None = None
        self.why: Status | None = None
        self.ended = self.forgotten = self.killed = False
        self.stops = 0
        self.waiters: list[Waiter] = []

    def fresh_output(self) -> dict[int, Capture]:
        return {1: Capture(self.output_bytes), 2: Capture(self.output_bytes)}


class LauncherLink:
    """The broker's end of the socket to a session's launcher; calls `on_loss` with itself when that is gone."""

    def __init__(
        self, channel: Channel, control: socket.socket, reactor: Reactor, on_loss: Callable[[LauncherLink], None]
    ) -> None:
        self.channel, self.control = channel, control
        self.decoder = frames.ChildDecoder()
        self.processes: dict[int, RunningProgram] = {}
        self._reactor, self._on_loss = reactor, on_loss
        self._outbox = SendBuffer(control, reactor)

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        self._outbox.add(frames.encode_for_child(message), descriptors)
        self.flush()

    def flush(self) -> None:
        if not self._outbox.flush(self.flush) and self.control.fileno() >= 0:
            self._on_loss(self)

    def close(self) -> None:
        if self.control.fileno() >= 0:
            self._reactor.unwatch(self.control.fileno())
            self.control.close()
        self._outbox.clear()
