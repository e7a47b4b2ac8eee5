"""The broker's channel to an interpreter in a child, the child itself, and the reasons to end it."""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from toolgym.tools.sandbox.local.broker import usage
from toolgym.tools.sandbox.local.broker.reactor import Reactor, SendBuffer
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.protocol.capture import Capture

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import CompilerOutput, Output, Status

READ_SIZE = 64 * 1024

_TO_THREAD = 1  # PIDFD_SIGNAL_THREAD

HELPER_ENDS = 0.5
"""Seconds after which the helper of a copy that was dropped has ended, if the copy has."""

READS_PER_TURN = 32
"""Reads of one child's output before other children have their turn."""


class KillReason(enum.Enum):
    TIMEOUT = "timeout"
    MEMORY_LIMIT = "memory_limit"
    FILE_LIMIT = "file_limit"
    DISK_LIMIT = "disk_limit"
    OUTPUT_LIMIT = "output_limit"
    SANDBOX_FAILURE = "sandbox_error"
    PROTOCOL = "protocol"
    """It sent what no child of ours sends: user code wrote to the control socket."""
    CANCELLED = "cancelled"
    """The host gave its run up, and takes no answer."""
    CLOSED = "closed"
    """The host closed its session."""

    @property
    def status(self) -> Status:
        if self in (KillReason.PROTOCOL, KillReason.CANCELLED, KillReason.CLOSED):
            return "killed"
        return cast("Status", self.value)


@dataclass(frozen=True)
class Kill:
    """Why to kill: `final` is whether the session may not continue from a shadow."""

    reason: KillReason
    detail: str = ""
    final: bool = False


@dataclass
class CopyState:
    """State of a session's channel that concerns its forks: the one under way, of which this is the origin or the copy.

    Attributes:
        pending_ends: descriptors for the copy to be: its control socket, standard output and standard error.
        handle: pidfd of the interpreter, if that is a copy; -1: it is the child itself.
        origin: the session that a copy was forked from; None if it is not a copy.
        namespace: descriptor of the namespace that holds a copy's mounts; -1: it has none of its own.
        beside: how many other interpreters, and helpers, its limit of processes allows for; -1: unknown.
        helped: whether the interpreter has a helper that forks it, see `sibling_fork`.
        numbers: the last known numbers of both.
        waiting: requests for further forks, each of which begins when the session has done its part in the last one.
    """

    fork: Fork | None = None
    waiting: list[dict[str, Any]] = field(default_factory=list)
    pending_ends: list[int] = field(default_factory=list)
    handle: int = -1
    origin: Channel | None = None
    namespace: int = -1
    beside: int = 0
    helped: bool = False
    numbers: usage.Numbers = field(default_factory=usage.Numbers)


class Channel:
    """A control socket, two pipes, and at most one request. Owns its descriptors until `free`.

    Attributes:
        session: name of the session; empty: it is a run, or still waits for its first request.
        untrusted: whether user code has run: it may have written all that comes from here on.
        folder: descriptor of the folder that a run's files are fetched from; -1: none.
        home: the program's working folder, relative to that.
        interrupts: how often a cell was interrupted at its deadline, if it had begun to listen to interrupts.
        interrupted: whether a cell got a SIGINT at its deadline.
        recovers: whether its interpreter makes a shadow before each cell.
        shadow: number of the running cell's shadow in the session, as the interpreter says; 0: it has none.
        shadow_mb: MiB that it may keep, by the same word.
        cell_began: when the last cell began, in the ticks of /proc.
        pauses: whether the interpreter is stopped while it has no request and no program, if it has threads.
        has_threads: whether it said so after its last cell.
        paused: whether it is stopped.
    """

    def __init__(
        self, reactor: Reactor, child: Child, control: int, out: int, err: int, handle: int, output_bytes: int
    ) -> None:
        self._reactor = reactor
        self.child = child
        self.control = socket.socket(fileno=control)
        self.control.setblocking(False)
        self.pipes = {1: out, 2: err}
        for fd in self.pipes.values():
            os.set_blocking(fd, False)
        self.decoder = frames.ChildDecoder()
        self.output_bytes = output_bytes
        self.request: dict[str, Any] | None = None
        self.deadline = 0
        self.session = ""
        self.untrusted = False
        self.killed: Kill | None = None
        self.folder, self.home = -1, "."
        self.compiled: CompilerOutput | None = None
        self.recovers = self.pauses = self.has_threads = self.paused = False
        self.shadow = self.shadow_mb = self.cell_began = 0
        self._restart()
        self.copying = CopyState(handle=handle)
        self._outbox = SendBuffer(self.control, reactor)

    def begin(self, request: dict[str, Any]) -> None:
        """Start on a request, or on the next step of one: the clock and the output start again."""
        self.request = request
        self.output_bytes = request.get("output_bytes", self.output_bytes)
        self._restart()

    def _restart(self) -> None:
        self.started = time.monotonic()
        self.output = {1: Capture(self.output_bytes), 2: Capture(self.output_bytes)}
        self.interrupted, self.interrupts = False, 0

    @property
    def shows_stack(self) -> bool:
        """Whether the process is a Python program, which writes its stack when it gets `frames.SHOW_STACK`."""
        return self.untrusted and self.request is not None and not self.request.get("argv")

    def take_request(self) -> dict[str, Any] | None:
        request, self.request, self.deadline = self.request, None, 0
        return request

    def blame(self, reason: KillReason, detail: str = "", *, final: bool = False) -> None:
        """Note why the child is about to be killed, unless there is a reason already."""
        if self.killed is None:
            self.killed = Kill(reason, detail, final)

    def stop(self, reason: KillReason, detail: str = "") -> None:
        """Kill the interpreter if a shadow can take its place, and otherwise the child."""
        if not self.shadow or self.killed is not None:
            self.kill_child(reason, detail)
        else:
            self.blame(reason, detail)
            self.signal(signal.SIGKILL)

    def continue_as(self, handle: int) -> None:
        """Let the process behind a handle be the interpreter, whose last one has ended."""
        if self.copying.handle >= 0:
            self._reactor.unwatch(self.copying.handle)
            os.close(self.copying.handle)
        self.copying.handle = handle
        self.decoder = frames.ChildDecoder()
        self.killed = None
        self.shadow = self.shadow_mb = 0
        self.has_threads = self.paused = False
        self.copying.beside = -1  # the shadow may be older than the limit

    def pause(self) -> None:
        """Stop the interpreter and its threads until its next request."""
        if self.pauses and self.has_threads and not self.paused and self.request is None:
            self.paused = True
            self.signal(signal.SIGSTOP)

    def wake(self) -> None:
        if self.paused:
            self.paused = False
            self.signal(signal.SIGCONT)

    def kill_child(self, reason: KillReason, detail: str = "") -> None:
        """Kill the child for this reason, whatever was noted before."""
        self.killed = Kill(reason, detail)
        self.child.kill()

    def send(self, request: Mapping[str, Any]) -> None:
        self._outbox.add(frames.encode_for_child(request))
        self.flush()

    def flush(self) -> None:
        self._outbox.flush(self.flush)

    def send_descriptors(self, *fds: int) -> None:
        """Send descriptors, with one byte, to an end that waits for nothing else."""
        socket.send_fds(self.control, [b"."], fds)

    def send_no_descriptors(self) -> None:
        """Tell an end that waits for descriptors that there are none."""
        with contextlib.suppress(OSError):  # it is gone
            self.control.send(b".")

    def open_pending_ends(self) -> None:
        """Make a socket and two pipes for the copy to be, and send the session its ends of them. A program that shared
        the broker's ends could make reads from them block, and the broker with them."""
        with contextlib.ExitStack() as lent:
            ours, theirs = socket.socketpair()
            lent.callback(theirs.close)
            self.copying.pending_ends = [ours.detach()]
            writes = []
            for _ in (1, 2):
                read, write = os.pipe()
                lent.callback(os.close, write)
                self.copying.pending_ends.append(read)
                writes.append(write)
            self.send_descriptors(theirs.fileno(), *writes)

    def close_pending_ends(self) -> None:
        """Close the ends for a copy that will not be; one that exists already ends then."""
        for fd in self.copying.pending_ends:
            os.close(fd)
        self.copying.pending_ends = []

    def read_output(self, stream: int) -> bool:
        """Read what a pipe has. A child that floods it is killed. Returns whether there may be more."""
        fd = self.pipes.get(stream, -1)
        if fd < 0:
            return False
        capture = self.output[stream]
        for _ in range(READS_PER_TURN):
            try:
                data = os.read(fd, READ_SIZE)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            if not data:
                self._close_pipe(stream)
                return False
            capture.add(data)
            if capture.flooded and self.killed is None:
                self.stop(KillReason.OUTPUT_LIMIT)
                return False
            if len(data) < READ_SIZE:
                return False
        return True

    def drain(self) -> None:
        for stream, capture in self.output.items():
            while not capture.flooded and self.read_output(stream):
                pass

    def drop_output(self) -> None:
        """Drop what the pipes hold, of an interpreter that has ended."""
        for fd in self.pipes.values():
            with contextlib.suppress(OSError):
                for _ in range(READS_PER_TURN):
                    if len(os.read(fd, READ_SIZE)) < READ_SIZE:
                        break
        self.output = {stream: Capture(self.output_bytes) for stream in self.output}

    def outputs(self) -> Output:
        out, err = self.output[1], self.output[2]
        return {
            "stdout": out.text(),
            "stderr": err.text(),
            "stdout_truncated": out.truncated,
            "stderr_truncated": err.truncated,
            "duration": time.monotonic() - self.started,
        }

    @property
    def pidfd(self) -> int:
        return self.copying.handle if self.copying.handle >= 0 else self.child.pidfd

    def interrupt(self) -> None:
        """Send SIGINT to the first thread of the interpreter, which runs cells: a lock that it waits for would not see
        that another thread got the signal."""
        if self.control.fileno() >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGINT, None, _TO_THREAD)
            except OSError:  # before Linux 6.9
                self.signal(signal.SIGINT)

    def signal(self, number: int) -> None:
        if self.control.fileno() < 0:
            return  # the channel was freed, and its handle closed
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, number)

    def free(self) -> None:
        self.deadline = 0
        self.close_pending_ends()
        for stream in (1, 2):
            self._close_pipe(stream)
        if self.control.fileno() >= 0:
            self._reactor.unwatch(self.control.fileno())
            self.control.close()
        self._reactor.unwatch(self.copying.handle)
        if self.copying.handle >= 0 and not self.child.ended:
            self.child.ending.append(EndingCopy(self.copying.origin, self.copying.handle, time.monotonic()))
            self.copying.handle = -1
        self.copying.origin = None
        for fd in (self.copying.handle, self.folder, self.copying.namespace):
            if fd >= 0:
                os.close(fd)
        self.copying.handle = self.folder = self.copying.namespace = -1
        if self in self.child.channels:
            self.child.channels.remove(self)

    def _close_pipe(self, stream: int) -> None:
        fd = self.pipes.pop(stream, -1)
        if fd >= 0:
            self._reactor.unwatch(fd)
            os.close(fd)


def receive(control: socket.socket) -> bytes | None:
    """Read from a control socket. None: nothing now; empty: it is closed. Raises `ValueError` if descriptors came
    along. There is no room for any, so the kernel has dropped them."""
    try:
        data, _, flags, _ = control.recvmsg(READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:
        return b""
    if flags & socket.MSG_CTRUNC:
        raise ValueError("a child sent descriptors, and is never asked for any")
    return data


class EndingCopy(NamedTuple):
    """A copy of a session that was dropped, and may not have ended yet. `dropped` is a time of the monotonic clock."""

    origin: Channel | None
    handle: int
    dropped: float


class Child:
    """A forked process and all that lives in its namespaces.

    Attributes:
        pid: its process id, as the broker sees it; 0: it is not forked yet, or its fork failed.
        init: the first process of its pid namespace, see `first_process`; 0: it has none.
        first: the channel into the process itself; further ones lead into forks of it.
        dead: whether the process itself has been reaped. Forks may live on in its namespace.
        ended: whether everything has been reaped.
        number: its number in another /proc than the broker's own, once that is known; 0 before.
        counted: when its files were counted last, which took `counting` seconds.
        weighed: when its memory was measured exactly, which took `weighing` seconds.
        shadow_mb: MiB on top of its limit for the shadow of a large interpreter.
        disk_factor: how many times its limit of disk space and files it may use, see `Recovery.stop_cells`.
        ending: dropped copies, which may count as processes for some time.
    """

    def __init__(self, slot: int, folder: str) -> None:
        self.slot, self.folder = slot, folder
        self.pid = self.init = 0
        self.pidfd = -1
        self.kill_on_fork = False
        self.channels: list[Channel] = []
        self.first: Channel | None = None
        self.init_fd = -1
        self.dead = False
        self.ended = False
        self.memory_mb = self.shadow_mb = 0
        self.number = 0
        self.counted = self.counting = 0.0
        self.disk_factor = 1
        self.weighed = self.weighing = 0.0
        self.weights: dict[int, tuple[list[str], int]] = {}
        self.ending: list[EndingCopy] = []

    def count_ending(self, channel: Channel) -> int:
        """Return how many dropped copies may still count as processes when a session begins its next request.

        A copy that has ended counts until its origin's next request, with which the origin reaps it. Its helper ends a
        little later.
        """
        if not self.ending:
            return 0
        poll = select.poll()
        for copy in self.ending:
            poll.register(copy.handle, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(0)}
        settled = time.monotonic() - HELPER_ENDS
        ending = []
        for copy in self.ending:
            is_reaped = copy.origin is channel or copy.origin not in self.channels
            if copy.handle in ended and is_reaped and copy.dropped < settled:
                os.close(copy.handle)
            else:
                ending.append(copy)
        self.ending = ending
        return len(ending)

    def close_handles(self) -> None:
        """Close the handles of a child that has ended."""
        for fd in (self.pidfd, self.init_fd, *(copy.handle for copy in self.ending)):
            if fd >= 0:
                os.close(fd)
        self.ending.clear()

    def kill(self) -> None:
        """End the process, and with it, in a pid namespace, every other one."""
        self.kill_on_fork = True
        # Both are children of the broker: until it reaps them, no other process gets their numbers.
        if self.init and not self.ended:
            os.kill(self.init, signal.SIGKILL)
        elif self.pid and not self.dead:
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class Fork:
    """A fork that is under way: whether the session goes on (`parted`), the copy is `ready`, and the host has its
    answer."""

    request: Mapping[str, Any]
    origin: Channel
    copy: Channel | None = None
    parted: bool = False
    ready: bool = False
    failure: tuple[Status, str] | None = None
    answered: bool = False
