"""A line of conversation with an interpreter in a child, and the child itself."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolgym.tools.sandbox.local import wire
from toolgym.tools.sandbox.local.capture import Capture
from toolgym.tools.sandbox.local.reactor import Reactor

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.forking import Fork

AT_ONCE = 64 * 1024
"""Bytes of one read from a child."""

READS_AT_ONCE = 32
"""Of its output, until others have their turn."""


class Lane:
    """A control socket, two pipes, and at most one request. Owns its descriptors until `free`.

    Args:
        reactor: tells when there is something to read; see `template.Template`, which registers the lane there.
        child: the process it leads into.
        control: our end of its control socket.
        out: read end of its standard output.
        err: and of its standard error.
        handle: pidfd of the interpreter, where that is a fork; -1: it is the child itself.
        cap: bytes of each stream to keep.
    """

    def __init__(self, reactor: Reactor, child: Child, control: int, out: int, err: int, handle: int, cap: int) -> None:
        self._reactor = reactor
        self.child = child
        self.control = socket.socket(fileno=control)
        self.control.setblocking(False)
        self.pipes = {1: out, 2: err}
        for fd in self.pipes.values():
            os.set_blocking(fd, False)
        self.handle = handle
        self.decoder = wire.Uplink()
        self.cap = cap
        self.output = {1: Capture(cap), 2: Capture(cap)}
        self.request: dict[str, Any] | None = None
        self.started = 0.0
        self.deadline = 0
        self.interrupted = False
        self.killed = ""
        self.foreign = False  # the user's code has the word: what comes may be its own invention
        self.why = ""
        self.folder = -1
        self.home = "."
        self.compiled: dict[str, Any] | None = None
        self.session = ""
        self.fork: Fork | None = None
        self.warned = False
        self.namespace = -1
        self.ends: list[int] = []
        self._outbox = bytearray()

    def begin(self, request: dict[str, Any]) -> None:
        """Turn to a request, or to the next step of one: the clock and the output start anew."""
        self.request = request
        self.started = time.monotonic()
        self.interrupted = self.warned = False
        self.output = {1: Capture(self.cap), 2: Capture(self.cap)}

    # ------------------------------------------------------------------ control

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a frame, as far as it goes now; `flush` sends the rest."""
        self._outbox += wire.encode_down(request)
        self.flush()

    def flush(self) -> None:
        """Send what waits."""
        if self.control.fileno() < 0:
            return
        while self._outbox:
            try:
                sent = self.control.send(self._outbox)
            except BlockingIOError:
                break
            except OSError:
                self._outbox.clear()
                return
            del self._outbox[:sent]
        self._reactor.change(self.control.fileno(), select.EPOLLIN | (select.EPOLLOUT if self._outbox else 0))

    def send_descriptors(self, *fds: int) -> None:
        """Send descriptors, with one byte, to an end that waits for nothing else."""
        socket.send_fds(self.control, [b"."], fds)

    def make_ends(self) -> None:
        """Make the lane of a fork to be, and send it the other ends: a socket and two pipes.

        Ours never were in a program's hands. One that shared them could have reads from them block, and us with it.
        """
        with contextlib.ExitStack() as lent:
            ours, theirs = socket.socketpair()
            lent.callback(theirs.close)
            self.ends = [ours.detach()]
            writes = []
            for _ in (1, 2):
                read, write = os.pipe()
                lent.callback(os.close, write)
                self.ends.append(read)
                writes.append(write)
            self.send_descriptors(theirs.fileno(), *writes)

    def close_ends(self) -> None:
        """The fork will not be."""
        for fd in self.ends:
            os.close(fd)
        self.ends = []

    def receive(self) -> bytes | None:
        """Read from the control socket. None: nothing now; empty: it is closed.

        Raises:
            ValueError: descriptors came along. There is no room for any, so the kernel has dropped them.
        """
        try:
            data, _, flags, _ = self.control.recvmsg(AT_ONCE)
        except BlockingIOError:
            return None
        except OSError:
            return b""
        if flags & socket.MSG_CTRUNC:
            raise ValueError("descriptors that nobody asked for")
        return data

    # ------------------------------------------------------------------ output

    def read_output(self, stream: int) -> None:
        """Read what a pipe has. A child that floods it is killed."""
        fd = self.pipes.get(stream, -1)
        if fd < 0:
            return
        for _ in range(READS_AT_ONCE):
            try:
                data = os.read(fd, AT_ONCE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_pipe(stream)
                return
            self.output[stream].add(data)
            if self.output[stream].flooded and not self.killed:
                self.killed = "output_limit"
                self.child.kill()
                return
            if len(data) < AT_ONCE:
                return

    def drain(self) -> None:
        """Read all that both pipes have."""
        for stream in (1, 2):
            before = -1
            while before != self.output[stream].total and not self.output[stream].flooded:
                before = self.output[stream].total
                self.read_output(stream)

    def outputs(self) -> dict[str, Any]:
        """The part of an answer that tells what was printed, and how long it took."""
        out, err = self.output[1], self.output[2]
        return {
            "stdout": out.text(),
            "stderr": err.text(),
            "stdout_truncated": out.truncated,
            "stderr_truncated": err.truncated,
            "duration": time.monotonic() - self.started,
        }

    # ------------------------------------------------------------------ ending

    def signal(self, number: int) -> None:
        """Send a signal to the interpreter at the other end."""
        if self.control.fileno() < 0:
            return  # it was given up, and its handle with it
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.handle if self.handle >= 0 else self.child.pidfd, number)

    def free(self) -> None:
        """Close everything."""
        self.deadline = 0
        self.close_ends()
        for stream in (1, 2):
            self._close_pipe(stream)
        if self.control.fileno() >= 0:
            self._reactor.unwatch(self.control.fileno())
            self.control.close()
        for fd in (self.handle, self.folder, self.namespace):
            if fd >= 0:
                os.close(fd)
        self.handle = self.folder = self.namespace = -1

    def _close_pipe(self, stream: int) -> None:
        fd = self.pipes.pop(stream, -1)
        if fd >= 0:
            self._reactor.unwatch(fd)
            os.close(fd)


class Child:
    """A forked process and all that lives in its namespaces.

    Args:
        slot: its number, unique among those alive.
        folder: its working folder.

    Attributes:
        pid: its process id, as the template sees it; 0: it is not born yet, or never will be.
        pidfd: a handle of it, once it is born; -1 before.
        init: process id of the first process of its pid namespace, see `init`; 0: it has none.
        doomed: whether it is to be killed as soon as it is born.
        first: the lane into the process itself; further ones lead into forks of it.
        dead: whether the process itself has been reaped. Forks may live on in its namespace.
        ended: whether everything has been reaped.
        memory_mb: what it may use.
        number: its number in another /proc than the template's own, once that is known; 0 before.
        counted: when its files were counted last, in the time of `time.monotonic`.
        counting: seconds that this took.
        init_fd: a handle of the first process, once the child is dead; -1 before.
    """

    def __init__(self, slot: int, folder: str) -> None:
        self.slot, self.folder = slot, folder
        self.pid = self.init = 0
        self.pidfd = -1
        self.doomed = False
        self.lanes: list[Lane] = []
        self.first: Lane | None = None
        self.init_fd = -1
        self.dead = False
        self.ended = False
        self.memory_mb = 0
        self.number = 0
        self.counted = self.counting = 0.0

    def kill(self) -> None:
        """End the process, and with it, in a pid namespace, every other one."""
        self.doomed = True
        # Both are children of the template: until it reaps them, their numbers are theirs.
        if self.init and not self.ended:
            os.kill(self.init, signal.SIGKILL)
        elif self.pid and not self.dead:
            os.kill(self.pid, signal.SIGKILL)
