"""The end of a cell that does not end by itself: the broker interrupts, kills, and continues from the shadow."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import time
from collections.abc import Callable
from fcntl import ioctl
from typing import TYPE_CHECKING

from toolgym.tools.sandbox.local.broker import cell_processes
from toolgym.tools.sandbox.local.broker.channel import Channel, Child, Kill, KillReason
from toolgym.tools.sandbox.local.broker.reactor import Reactor
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import EndAnswer

INTERRUPT_PAUSES = (0.3, 0.25, 0.25)
"""Seconds after each interrupt of a cell at its deadline. The second one frees a program that waits for its threads or
processes, the third one a program that did not notice one of them. After the last pause the cell is killed."""

SOFT_KILL = 0.5
"""Seconds that the origin of a fork that was cancelled has to end it."""

YOUNG = 0.25
"""Seconds after which a cell has surely begun to listen to interrupts."""

DISK_FACTOR = 2
"""How many times its limit of disk space a session may use after a cell was stopped for that, until it has made
room."""

RECOVERY = 5.0
"""Seconds that an interpreter may take to end once it is killed."""

RECOVERS_FROM = (
    KillReason.TIMEOUT,
    KillReason.MEMORY_LIMIT,
    KillReason.DISK_LIMIT,
    KillReason.OUTPUT_LIMIT,
    KillReason.PROTOCOL,
)
"""Reasons to kill an interpreter, beside its own end, after which the session continues from the shadow."""

REAP_TRIES, REAP_PAUSE = 10, 0.002
"""How often, and after how many seconds, to ask again for the exit code of an interpreter that init is yet to reap."""

_EXIT_INFO = 1 << 3  # PIDFD_INFO_EXIT, and struct pidfd_info, of <linux/pidfd.h>
_INFO_SIZE = 80
_GET_INFO = 0xC000FF0B | _INFO_SIZE << 16
_EXIT_CODE_AT = 60


class Recovery:
    """Ends cells that do not end by themselves. `settle` answers a channel's request, and `watch` watches an
    interpreter for its end."""

    def __init__(
        self,
        spec: ChildSpec,
        reactor: Reactor,
        settle: Callable[[Channel, EndAnswer], None],
        watch: Callable[[Channel], None],
    ) -> None:
        self._spec, self._reactor, self._settle, self._watch = spec, reactor, settle, watch
        self._processes = cell_processes.CellProcesses(spec)

    @property
    def possible(self) -> bool:
        """Whether interpreters can have shadows: they are processes, which have to be seen."""
        return self._spec.can_fork and self._spec.proc >= 0

    def begin(self, channel: Channel) -> None:
        """Note that a cell begins."""
        channel.cell_began = cell_processes.now()

    def note_shadow(self, channel: Channel, number: int, size_mb: int) -> None:
        """Note the shadow that an interpreter claims to have, and the memory that it may keep."""
        if channel.shadow or not channel.recovers or number <= 0 or size_mb < 0:
            raise ValueError("a second shadow")
        channel.shadow, channel.shadow_mb = number, size_mb
        self._allow_shadows(channel.child)

    def end(self, channel: Channel) -> None:
        """Note that a cell has ended by itself, and that its interpreter ends the shadow."""
        channel.shadow = channel.shadow_mb = 0
        self._allow_shadows(channel.child)

    def _allow_shadows(self, child: Child) -> None:
        """Let a child's memory have room for the shadows of large interpreters."""
        size = min(sum(channel.shadow_mb for channel in child.channels), child.memory_mb)
        if size != child.shadow_mb:
            child.shadow_mb = size
            if self._spec.cgroups is not None:
                with contextlib.suppress(OSError):  # more is in use than the limit would be: it stays
                    self._spec.cgroups.limit(child.slot, child.memory_mb + size)

    def interrupt(self, channel: Channel) -> float:
        """Interrupt a cell that is past its deadline, and all that it has started. Returns the seconds to wait before
        the next step; 0: it is to be killed now."""
        if channel.interrupts == len(INTERRUPT_PAUSES):
            return 0.0
        # A cell that has hardly begun may still ignore interrupts: it gets another one.
        young = time.monotonic() - channel.started < YOUNG
        channel.interrupted = True
        channel.interrupts += not young
        self._processes.interrupt(channel)
        return YOUNG / 5 if young else INTERRUPT_PAUSES[channel.interrupts - 1]

    def end_processes(self, channel: Channel) -> bool:
        """Kill what an interrupted cell has left running. Returns whether all of it is gone."""
        return self._processes.end(channel)

    def stop_cells(self, child: Child, kill: Kill) -> bool:
        """Kill the interpreters whose cells run, for what all of a child's processes use together, if their sessions
        can continue from shadows. Returns whether there are any.

        The files of a cell that used too much disk space stay. So that the next cell can remove them, the session may
        use more until then.
        """
        if kill.final or (kill.reason is KillReason.DISK_LIMIT and child.disk_factor > 1):
            return False
        running = [channel for channel in child.channels if channel.shadow and channel.request is not None]
        for channel in running:
            if channel.killed is None:
                channel.stop(kill.reason, kill.detail)
        if running and kill.reason is KillReason.DISK_LIMIT:
            child.disk_factor = DISK_FACTOR
        return bool(running) and all(channel.killed is not None for channel in running)

    def recover(self, channel: Channel, code: int | None) -> bool:
        """Continue a session from the shadow of its interpreter, which has ended with this exit code, and answer its
        cell. Returns whether that is possible."""
        request, killed = channel.request, channel.killed
        if request is None or request["op"] != "cell" or not channel.shadow:
            return False
        if killed is not None and (killed.final or killed.reason not in RECOVERS_FROM):
            return False
        try:
            handle = self._processes.shadow(channel)
        except (OSError, KeyError, ValueError, IndexError):
            return False
        number = channel.shadow
        channel.drain()
        channel.continue_as(handle)
        if not self._processes.end(channel) or self._processes.is_ending(handle):  # the cell has killed its shadow
            return False
        channel.drain()
        if killed is None and self._spec.ran_out_of_memory(channel.child.slot):
            killed = Kill(KillReason.MEMORY_LIMIT)
        channel.child.weights.clear()
        self._allow_shadows(channel.child)
        if self._spec.cgroups is not None:
            self._spec.cgroups.forget_kills(channel.child.slot)
        self._take_place(channel, number)
        channel.signal(signal.SIGCONT)  # a cell may have stopped it
        status = "killed" if killed is None else killed.reason.status
        detail = "" if killed is None else killed.detail
        exit_code = None if killed is not None and code == -signal.SIGKILL else code
        self._settle(
            channel, {"status": status, "alive": True, "message": detail, "recovered": True, "code": exit_code}
        )
        channel.drop_output()
        return True

    def exit_code(self, channel: Channel) -> int | None:
        """The exit code of an interpreter that is not this process's child, negative for a signal; None: the kernel
        does not tell it (before Linux 6.15)."""
        for _ in range(REAP_TRIES):  # the kernel tells it once the process is reaped
            info = bytearray(_INFO_SIZE)
            struct.pack_into("Q", info, 0, _EXIT_INFO)
            try:
                ioctl(channel.pidfd, _GET_INFO, info)
            except OSError:
                return None
            if struct.unpack_from("Q", info)[0] & _EXIT_INFO:
                return os.waitstatus_to_exitcode(struct.unpack_from("i", info, _EXIT_CODE_AT)[0])
            time.sleep(REAP_PAUSE)
        return None

    def _take_place(self, channel: Channel, number: int) -> None:
        """Have a child, if its first process was the interpreter, go on with the shadow in its place."""
        child = channel.child
        if child.first is channel:
            os.close(child.pidfd)
            child.pidfd, child.number = os.dup(channel.copying.handle), 0
            if child.init:
                child.first = None
            else:
                child.pid, child.dead = number, False
        self._watch(channel)
