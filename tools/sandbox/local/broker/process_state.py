"""What the broker knows of the programs of a session, and of the launcher that starts them."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.protocol.capture import Capture

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.broker.channel import Channel
    from toolgym.tools.sandbox.local.protocol.messages import Status


class Waiter:
    """A request of the host that waits for something that a program does.

    Attributes:
        deadline: see `reactor.Timed`.
    """

    def __init__(self, request: Mapping[str, Any], process: RunningProgram) -> None:
        self.request, self.process = request, process
        self.deadline = 0

    @property
    def met(self) -> bool:
        """Whether what it waits for has come."""
        process, until = self.process, self.request["until"]
        if process.ended:
            return True
        if until == "stdin":
            return not process.outbox
        return until == "output" and any(capture.total for capture in process.output.values())


class RunningProgram:
    """One program. Owns the broker's ends of its pipes.

    Attributes:
        deadline: see `reactor.Timed`: when it is killed, and then when its session is.
        code: its exit code, negative for a signal; None: it runs, or how it ended is not known.
        why: how it ended, if not by itself.
        ended: whether it has ended.
        forgotten: whether the host has no use for it any more: what comes from it is dropped.
    """

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
        self.waiters: list[Waiter] = []

    def fresh_output(self) -> dict[int, Capture]:
        return {1: Capture(self.output_bytes), 2: Capture(self.output_bytes)}


class LauncherLink:
    """The broker's end of the socket to a launcher."""

    def __init__(self, channel: Channel, control: socket.socket) -> None:
        self.channel, self.control = channel, control
        self.decoder = frames.ChildDecoder()
        self.outbox: deque[tuple[memoryview, list[int]]] = deque()
        self.processes: dict[int, RunningProgram] = {}
