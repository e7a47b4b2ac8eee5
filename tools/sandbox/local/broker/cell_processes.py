"""The processes that a running cell has started, wherever they went: other groups and sessions, and orphans.

They are found in /proc, below the interpreter and among the orphans of the session, by the time of their start. What an
earlier cell left running is not the cell's, nor is what such a process starts; nor are programs beside the interpreter,
whose launcher is older than the cell.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from toolgym.tools.sandbox.local.broker import usage
from toolgym.tools.sandbox.local.broker.channel import Channel
from toolgym.tools.sandbox.local.kernel import users
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec

_TICKS = os.sysconf("SC_CLK_TCK")

MAX_ROUNDS = 50
"""Looks at the processes of a cell until all are gone. A cell whose processes multiply faster than they are stopped
costs its session."""

PATIENCE = 0.5
"""Seconds that all of these looks may take together: other sessions wait for them."""

ROUND = 0.001
"""Seconds between two of these looks."""


def now() -> int:
    """The time as /proc has it for the start of a process."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


class CellProcesses:
    def __init__(self, spec: ChildSpec) -> None:
        self._spec, self._proc = spec, spec.proc
        self._namespaces, self._first_uid = spec.hardening.namespaces, spec.hardening.first_uid

    def interrupt(self, channel: Channel) -> None:
        """Send SIGINT to an interpreter and to all that its cell has started."""
        started = list(self._started(channel))
        channel.interrupt()
        for number in started:
            self._signal(number, signal.SIGINT)

    def end(self, channel: Channel) -> bool:
        """Kill all that a session's last cell has started. Returns whether none of it can start anything more."""
        known: set[int] = set()
        killed, began = False, time.monotonic()
        for _ in range(MAX_ROUNDS):
            if time.monotonic() > began + PATIENCE:
                return killed
            left = list(self._started(channel))
            fresh = set(left) - known
            known |= fresh
            if not left:
                break
            for number in fresh:  # what is stopped starts nothing more
                self._signal(number, signal.SIGSTOP)
            killed = not fresh
            if killed:
                for number in left:
                    self._signal(number, signal.SIGKILL)
                time.sleep(ROUND)
        else:
            if not killed:
                return False
        self._reap(channel)
        return True

    def _reap(self, channel: Channel) -> None:
        """Without a namespace, whose first process does that: reap the orphans of a session that have ended."""
        if not self._namespaces:
            for number in self._orphans(channel):
                with contextlib.suppress(OSError, IndexError, ValueError):
                    if usage.stat_words(self._proc, number)[0] == "Z":
                        os.waitpid(int(usage.status(self._proc, number)["NSpid"].split()[-1]), os.WNOHANG)

    def shadow(self, channel: Channel) -> int:
        """Return a handle of the shadow of an interpreter that has ended, by the number that it claimed for it. Raises
        ProcessLookupError if there is no such orphan in the session, whatever the claim was."""
        child = channel.child
        if self._namespaces:
            return usage.child_handle(self._proc, [self._number(child.init)], channel.shadow)
        handle = os.pidfd_open(channel.shadow)
        about = usage.status(self._proc, usage.number(self._proc, handle))
        if users.owner(channel.shadow) == self._first_uid + child.slot and int(about["PPid"]) == os.getpid():
            return handle
        os.close(handle)
        raise ProcessLookupError(f"no orphan {channel.shadow}")

    def is_ending(self, handle: int) -> bool:
        """Whether the process behind a handle is gone or is about to be."""
        return usage.is_ending(self._proc, handle)

    def _started(self, channel: Channel) -> Iterator[int]:
        """Yield the numbers in /proc of the processes that a cell has started and that have not ended."""
        if self._proc < 0 or not self._spec.can_fork:
            return
        interpreter = usage.number(self._proc, channel.pidfd)
        pending = usage.children(self._proc, interpreter) if interpreter else []
        pending += self._orphans(channel)
        others = {usage.number(self._proc, other.pidfd) for other in channel.child.channels}
        others.add(usage.helper(self._proc, interpreter) if interpreter else 0)
        for pid in pending:
            if pid in others:
                continue
            with contextlib.suppress(OSError, IndexError, ValueError):  # it is gone
                words = usage.stat_words(self._proc, pid)
                if int(words[19]) < channel.cell_began or self._is_shadow(channel, pid):
                    continue
                pending += usage.children(self._proc, pid)
                if words[0] not in "ZX":
                    yield pid

    def _orphans(self, channel: Channel) -> list[int]:
        """Return the numbers of the orphans in a session's namespace, or of its user, that may be a cell's."""
        child = channel.child
        if self._namespaces:
            orphans = usage.children(self._proc, self._number(child.init))
        else:
            orphans = usage.children(self._proc, self._number(os.getpid()))
            user = self._first_uid + child.slot
            orphans = [pid for pid in orphans if usage.owner(self._proc, pid) == user]
        interpreters = {usage.number(self._proc, other.pidfd) for other in child.channels}
        orphans = [pid for pid in orphans if pid not in interpreters]
        if len(child.channels) == 1:
            return orphans
        root = usage.world(self._proc, usage.number(self._proc, channel.pidfd))
        return [pid for pid in orphans if root and usage.world(self._proc, pid) == root]

    def _is_shadow(self, channel: Channel, pid: int) -> bool:
        return bool(channel.shadow) and int(usage.status(self._proc, pid)["NSpid"].split()[-1]) == channel.shadow

    def _number(self, pid: int) -> int:
        """Return the number in /proc of a process that has this number here."""
        if self._spec.same_numbers:
            return pid
        handle = os.pidfd_open(pid)
        try:
            return usage.number(self._proc, handle)
        finally:
            os.close(handle)

    def _signal(self, number: int, which: int) -> None:
        """Signal a process by its number in /proc, if it is still the same one."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            numbers = usage.status(self._proc, number)["NSpid"].split()
            handle = os.pidfd_open(int(numbers[-2 if self._namespaces else -1]))
            try:
                if usage.number(self._proc, handle) == number:
                    signal.pidfd_send_signal(handle, which)
            finally:
                os.close(handle)
