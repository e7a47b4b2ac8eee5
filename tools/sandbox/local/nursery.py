"""Forking confined children, ahead of need, and burying them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from toolgym.tools.sandbox.local import folders, init, kernel, program, repl, wire
from toolgym.tools.sandbox.local.confine import CONTROL_FD, Confinement
from toolgym.tools.sandbox.local.lane import Child, Lane
from toolgym.tools.sandbox.local.leaves import Leaves
from toolgym.tools.sandbox.local.reactor import Reactor
from toolgym.tools.sandbox.local.script import Script, move_descriptor


@dataclass(frozen=True)
class Birth:
    """What a template's children have in common.

    Attributes:
        confinement: what each does to itself.
        work: folder in which each gets a working folder, where it has no file system of its own.
        output_bytes: of each stream, how much is kept.
        pid_namespace: descriptor of the template's own pid namespace, where each child gets one; -1: it gets none.
        leaves: control groups for them; None: there are none.
    """

    confinement: Confinement
    work: str
    output_bytes: int
    pid_namespace: int
    leaves: Leaves | None


class Nursery:
    """All children of a template process, those that wait for a request included."""

    def __init__(self, reactor: Reactor, birth: Birth) -> None:
        self._reactor, self._birth = reactor, birth
        self._namespaces = birth.confinement.namespaces
        # In namespaces, all children do the same.
        self._script = birth.confinement.script(0, "") if self._namespaces else None
        self._settling = birth.confinement.settling()
        self._devnull = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._children: set[Child] = set()
        self._inits = init.InitMaker() if birth.pid_namespace >= 0 else None
        self._warm: list[Child] = []
        self._slots: list[int] = []
        self._next_slot = 0

    def __len__(self) -> int:
        return len(self._children)

    @property
    def warm(self) -> int:
        """How many children wait for their first request."""
        return len(self._warm)

    def warm_one(self) -> Lane:
        """Fork a child to wait for its first request. Returns its lane, which the caller has to watch."""
        lane = self._fork()
        self._warm.append(lane.child)
        return lane

    def take(self) -> tuple[Lane, bool]:
        """A confined child that waits for its first request: its lane, and whether that is new."""
        while self._warm:
            child = self._warm.pop(0)
            if not child.dead:
                return child.lanes[0], False
        return self._fork(), True

    def bury(self, child: Child) -> tuple[int, Any] | None:
        """Reap a child that ended. Returns its exit code, negative for a signal, and its usage; None: it lives.

        In a pid namespace, others of it may live on until it is killed; `child.init_fd` tells when the last one ended.
        """
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid == 0:
            return None
        child.dead = True
        if child.init:
            child.init_fd = os.pidfd_open(child.init)
        else:
            child.ended = True
            self._sweep()
        return os.waitstatus_to_exitcode(status), usage

    def bury_rest(self, child: Child) -> bool:
        """Reap the first process of a child's namespace, which is its last one too. Returns whether it has ended."""
        if not child.ended:
            child.ended = os.waitpid(child.init, os.WNOHANG)[0] != 0
        return child.ended

    def forget(self, child: Child) -> None:
        """Free what a child had that ended."""
        if child in self._warm:
            self._warm.remove(child)
        if not self._namespaces:
            folders.remove(child.folder)
        os.close(child.pidfd)
        if child.init_fd >= 0:
            os.close(child.init_fd)
        child.first = None  # lanes know their child: nobody collects cycles here
        self._children.discard(child)
        self._slots.append(child.slot)

    def _sweep(self) -> None:
        """Without a pid namespace: what a dead child left behind was re-parented to us, the subreaper."""
        own = {child.pid for child in self._children if not child.dead}
        for _ in range(100):
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                orphans = [int(word) for word in file.read().split() if int(word) not in own]
            if not orphans:
                return
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)

    def _fork(self) -> Lane:
        slot = self._slots.pop() if self._slots else self._next_slot
        self._next_slot = max(self._next_slot, slot + 1)
        with contextlib.ExitStack() as undo:
            undo.callback(self._slots.append, slot)
            return self._fork_into(slot, undo)

    def _fork_into(self, slot: int, undo: contextlib.ExitStack) -> Lane:
        """Fork the child of a slot; `undo` gets what to do should that fail."""
        if self._birth.leaves is not None:
            self._birth.leaves.prepare(slot)
        folder = self._birth.confinement.home
        if not self._namespaces:
            folder = f"{self._birth.work}/{slot}"
            os.mkdir(folder, 0o700)
            undo.callback(folders.remove, folder)
        out_read, out_write = _undone(undo, *os.pipe())
        err_read, err_write = _undone(undo, *os.pipe())
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        undo.callback(theirs.close)
        script = self._script or self._birth.confinement.script(slot, folder)
        first = self._enter_pid_namespace()
        try:
            pid = kernel.fork()
            if pid == 0:
                self._be_child(script, slot, folder, theirs.detach(), out_write, err_write)
        except OSError:
            if first:
                os.kill(first, signal.SIGKILL)
                os.waitpid(first, 0)
            raise
        finally:
            if first:
                kernel.setns(self._birth.pid_namespace, kernel.CLONE_NEWPID)
        undo.pop_all()
        os.close(out_write)
        os.close(err_write)
        theirs.close()
        child = Child(slot, pid, os.pidfd_open(pid), folder, first)
        lane = Lane(self._reactor, child, ours.detach(), out_read, err_read, -1, self._birth.output_bytes)
        child.lanes.append(lane)
        child.first = lane
        self._children.add(child)
        return lane

    def _enter_pid_namespace(self) -> int:
        """Where children get a pid namespace: make one for the next child. Returns its first process; 0: none."""
        if self._inits is None:
            return 0
        kernel.unshare(kernel.CLONE_NEWPID)
        try:
            return self._inits.make()
        except OSError:
            kernel.setns(self._birth.pid_namespace, kernel.CLONE_NEWPID)
            raise

    def _be_child(self, script: Script, slot: int, folder: str, control: int, out: int, err: int) -> NoReturn:
        told = control
        try:
            if self._birth.leaves is not None:
                self._birth.leaves.enter(slot)
            move_descriptor(self._devnull, 0)
            move_descriptor(out, 1)
            move_descriptor(err, 2)
            move_descriptor(control, CONTROL_FD)
            told = CONTROL_FD
            script.run()
            if folder != "/tmp":
                os.environ.update(HOME=folder, TMPDIR=folder, MPLCONFIGDIR=folder)
            request = wire.receive(CONTROL_FD)
            if request is None:
                os._exit(0)
            self._carry_out(request)
        except BaseException as error:  # noqa: BLE001  nothing may leave this process but by its exit
            with contextlib.suppress(BaseException):
                wire.send_all(told, wire.encode({"broken": f"{type(error).__name__}: {error}"}))
        finally:
            os._exit(252)

    def _carry_out(self, request: Mapping[str, Any]) -> NoReturn:
        self._birth.confinement.limit_memory(request["memory_mb"])
        if request["op"] == "run":
            self._settling.run()
            program.run(request, base="/tmp" if self._namespaces else ".")
        repl.serve(request)


def _undone(undo: contextlib.ExitStack, *fds: int) -> tuple[int, ...]:
    for fd in fds:
        undo.callback(os.close, fd)
    return fds
