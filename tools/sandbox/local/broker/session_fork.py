"""The fork of a live session: a request that two processes have a part in, each over its own channel.

The session asks for descriptors, forks, and says which process its copy is; the copy says that it is in place; the
session says that it goes on. User code can forge all of these notes. So a request yields at most one copy, and a
failure in between counts as the program's, and not as the sandbox's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toolgym.tools.sandbox.local.broker import usage
from toolgym.tools.sandbox.local.broker.channel import Channel, Fork, KillReason
from toolgym.tools.sandbox.local.broker.host_link import HostLink
from toolgym.tools.sandbox.local.broker.processes import Processes
from toolgym.tools.sandbox.local.broker.reactor import Reactor
from toolgym.tools.sandbox.local.broker.watchdog import Watchdog
from toolgym.tools.sandbox.local.kernel import fork_mounts
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import SessionAnswer, Status

MAX_REASON = 1000
"""Characters of a child's own words about what went wrong."""


FREE_DESCRIPTORS = 24
"""Descriptors that must be free before a fork begins. It takes five for good, and up to ten while it is made."""


class Forks:
    """Carries out forks. `adopt` takes over a copy's channel, whose request is the fork's, and `drop` ends a copy."""

    def __init__(
        self,
        host: HostLink,
        reactor: Reactor,
        spec: ChildSpec,
        watchdog: Watchdog,
        processes: Processes,
        adopt: Callable[[Channel], None],
        drop: Callable[[Channel, KillReason | None], None],
    ) -> None:
        self._host, self._reactor, self._spec, self._hardening = host, reactor, spec, spec.hardening
        self._watchdog, self._processes, self._adopt, self._drop = watchdog, processes, adopt, drop
        self._own_mounts = -1
        if self._hardening.namespaces:
            self._own_mounts = os.open("self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._hardening.proc)

    def refuses(self, channel: Channel, request: Mapping[str, Any]) -> bool:
        """Return whether there is too little memory or too few descriptors for a fork. Then the request is answered."""
        if not self._watchdog.has_room(channel.child):
            why = f"its memory is used up: it has {channel.child.memory_mb} MiB together with its forks (`memory_mb`)"
        elif not _has_descriptors():
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            why = f"its process on the host may have {most} open files, and each fork takes 5 of them; raise the hard "
            why += "limit before you start (`ulimit -Hn`)"
        else:
            return False
        self._host.refuse(request, why, busy=True)
        return True

    def let_start(self, channel: Channel, *, forks: bool = False) -> None:
        """Have a session's limit of processes allow for its forks (soon one more, if it `forks`): interpreters, their
        shadows, helpers and launchers do not count as such. What runs already keeps its limit."""
        child = channel.child
        others = [other for other in child.channels if other is not channel]
        # A shadow that has ended counts until its interpreter begins the next cell.
        shadows = channel.recovers + sum(other.recovers and other.cell_began > 0 for other in others)
        ending = child.count_ending(channel)
        shadows += ending * channel.recovers
        helpers = (forks + len(child.channels) + ending) * channel.copying.helped
        beside = forks + len(others) + ending + sum(map(self._processes.launchers, others)) + shadows + helpers
        if beside == channel.copying.beside:
            return
        if beside > channel.copying.beside >= 0:
            self._processes.retire_launcher(channel)
        channel.copying.beside = beside
        most = self._hardening.processes + beside
        with contextlib.suppress(OSError):  # it has ended, or the kernel does not allow it: then the limit stays
            if self._spec.cgroups is not None:
                self._spec.cgroups.allow(child.slot, most)
            numbers = self._numbers(channel)
            for pid in (numbers.interpreter_here, numbers.helper_here):  # copies get the helper's limit
                if pid:
                    _allow_processes(pid, most)

    def on_note(self, fork: Fork, channel: Channel, note: Mapping[str, Any]) -> None:
        ends_are_open = bool(channel.copying.pending_ends)
        if channel is fork.copy:
            self._on_copy_note(fork, channel, note)
        elif "ends" in note and fork.copy is None and not ends_are_open:
            try:
                channel.open_pending_ends()
            except OSError as error:
                channel.close_pending_ends()
                self._fail(fork, "error", f"no descriptors for the copy: {error.strerror}")
                channel.send_no_descriptors()
        elif "forked" in note and fork.copy is None and ends_are_open:
            self._part(fork, int(note["forked"]))
        elif "done" in note or "failed" in note:
            channel.drain()
            channel.close_pending_ends()
            channel.take_request()
            channel.copying.fork = None
            fork.parted = True
            if "failed" in note:
                self._fail(fork, "error", str(note["failed"])[:MAX_REASON])
            elif fork.copy is None:
                self._fail(fork, "error", "no copy came of it")
            self._finish(fork)
            while channel.copying.waiting and channel.copying.fork is None:  # one that is refused begins no fork
                self._host.handle(channel.copying.waiting.pop(0))
        else:
            raise ValueError("a note that belongs to no fork")

    def on_loss(self, fork: Fork, channel: Channel, status: Status, detail: str) -> None:
        if channel is fork.origin:
            fork.parted = True
        else:
            fork.copy = None  # it is being dropped
        self._fail(fork, status, detail)
        self._finish(fork, alive=channel is not fork.origin)

    def cancel(self, fork: Fork) -> None:
        self._fail(fork, "killed", "the fork was cancelled")
        self._finish(fork)

    def _on_copy_note(self, fork: Fork, channel: Channel, note: Mapping[str, Any]) -> None:
        if "ready" in note and not fork.ready:
            fork.ready = True
            channel.take_request()
            channel.copying.fork = None
            self._finish(fork)
        elif "failed" in note:
            self._fail(fork, "error", str(note["failed"])[:MAX_REASON])
            self._finish(fork)
        else:
            raise ValueError("a note that belongs to no copy")

    def _part(self, fork: Fork, claimed_pid: int) -> None:
        """Find the copy by the number that the session claims for it, and give it a root of its own."""
        origin = fork.origin
        if fork.failure is not None:
            origin.close_pending_ends()  # then the copy ends
            return
        numbers = self._numbers(origin)
        try:
            parents = (numbers.helper, numbers.interpreter)
            handle = usage.child_handle(self._spec.proc, parents, claimed_pid)
        except OSError as error:
            reason = f"the copy was not found: {error.strerror}"
            if isinstance(error, (ProcessLookupError, FileNotFoundError)):  # it has ended already
                reason = _failure_of(origin.copying.pending_ends[0]) or "no copy came of it"
            origin.close_pending_ends()
            self._fail(fork, "error", reason)
            return
        control, out, err = origin.copying.pending_ends
        origin.copying.pending_ends = []
        copy = Channel(self._reactor, origin.child, control, out, err, handle, origin.output_bytes)
        copy.session = fork.request["into"]
        copy.untrusted = True  # it holds all that its origin ran
        copy.copying.fork, copy.copying.beside = fork, origin.copying.beside
        copy.copying.origin = origin
        copy.recovers, copy.pauses = origin.recovers, origin.pauses
        copy.copying.helped = origin.copying.helped
        fork.copy = copy
        copy.begin(dict(fork.request))
        origin.child.channels.append(copy)
        self._adopt(copy)
        try:
            roots, copy.copying.namespace = fork_mounts.make_root(
                handle, origin.copying.namespace, self._own_mounts, self._hardening
            )
            try:
                copy.send_descriptors(*roots)
            finally:
                for fd in roots:
                    os.close(fd)
        except OSError as error:
            is_gone = isinstance(error, (ConnectionError, ProcessLookupError)) or _has_ended(handle)
            if not is_gone:  # else its closed channel says so
                self._fail(fork, "sandbox_error", f"no file system for the copy: {error}")

    def _numbers(self, channel: Channel) -> usage.Numbers:
        copying = channel.copying
        if self._spec.proc >= 0:
            copying.numbers = usage.numbers(self._spec.proc, channel.pidfd, copying.numbers, helped=copying.helped)
        return copying.numbers

    def _fail(self, fork: Fork, status: Status, detail: str) -> None:
        """Note the first failure, and end the copy if there is one."""
        if fork.failure is None and not fork.answered:
            fork.failure = status, detail
            copy, fork.copy = fork.copy, None
            if copy is not None and copy in copy.child.channels:
                copy.request = copy.copying.fork = None
                self._drop(copy, KillReason.CLOSED)

    def _finish(self, fork: Fork, *, alive: bool = True) -> None:
        """Answer the host once the outcome is known and the session is ready for its next request."""
        if fork.answered or not fork.parted or (fork.failure is None and not fork.ready):
            return
        fork.answered = True
        status, detail = fork.failure or ("ok", "")
        answer: SessionAnswer = {"status": status, "alive": alive, "message": detail}
        self._host.answer(fork.request, answer)


def _failure_of(control: int) -> str:
    """Return the reason that a copy gave on its control socket before it ended. Empty if there is none."""
    try:
        with socket.socket(fileno=os.dup(control)) as end:
            data = end.recv(frames.MAX_NOTE, socket.MSG_DONTWAIT)
        notes = [note for note in frames.ChildDecoder().feed(data) if isinstance(note, dict)]
    except (OSError, ValueError):  # it may write anything
        return ""
    return next((str(note["failed"])[:MAX_REASON] for note in notes if "failed" in note), "")


def _has_descriptors() -> bool:
    """Return whether this process may open as many files as a fork needs, and as other forks under way do."""
    opened: list[int] = []
    try:
        while len(opened) < FREE_DESCRIPTORS:
            opened.append(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 0))
    except OSError:
        return False
    finally:
        for fd in opened:
            os.close(fd)
    return True


def _allow_processes(pid: int, most: int) -> None:
    hard = resource.prlimit(pid, resource.RLIMIT_NPROC)[1]
    resource.prlimit(pid, resource.RLIMIT_NPROC, (most if hard < 0 else min(most, hard), hard))


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))
