"""The zygote: the process that has the libraries loaded, and that forks the children.

After a fork, each page that either side writes to must be copied. The broker writes to many pages, so children are
forked from this process instead, which sleeps in between. They are its siblings, though: their parent is the broker. It
asks with a slot's number and three descriptors for the child: control socket, standard output, standard error.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from toolgym.tools.sandbox.local.child import program, repl
from toolgym.tools.sandbox.local.kernel import folders, syscalls
from toolgym.tools.sandbox.local.kernel.child_cgroups import ChildCgroups
from toolgym.tools.sandbox.local.kernel.harden import CONTROL_FD, Hardening
from toolgym.tools.sandbox.local.kernel.syscall_batch import SyscallBatch, move_descriptor
from toolgym.tools.sandbox.local.protocol import frames
from toolgym.tools.sandbox.local.protocol.frames import ForkReply
from toolgym.tools.sandbox.local.zygote import first_process, fork_pages, loading

_DESCRIPTORS = struct.Struct("3i")
_ANCILLARY_SIZE = socket.CMSG_SPACE(_DESCRIPTORS.size)

CALIBRATION_TIMEOUT = 20.0

MOST_KEPT = 256
"""Slots whose calls are kept for the next child in them."""

_READ_SIZE = 65536
_PROGRAM = """
import math, time
class Point:
    def __init__(self, x):
        self.x = x
try:
    print(math.sqrt(2), sorted([Point(3).x, 1]), f"{2 / 3:.3f}")
except ValueError:
    pass
"""


@dataclass(frozen=True)
class ChildSpec:
    """Recipe for all children of a template process.

    Attributes:
        work: folder where each gets a working folder, if it has no file system of its own.
        output_bytes: bytes of each stream that are kept.
        pid_namespace: descriptor of the broker's own pid namespace, in which each child gets one; -1: it gets none.
        proc: descriptor of a /proc that shows the children; -1: none does.
        same_numbers: whether processes have the same numbers there as for the broker.
        shared_pages: resident pages of the zygote, which every child shares.
        calibrated: whether the zygote's forks were made cheaper, see `Zygote.calibrate`.
    """

    hardening: Hardening
    work: str
    output_bytes: int
    pid_namespace: int
    cgroups: ChildCgroups | None
    proc: int
    same_numbers: bool
    shared_pages: int = 0
    calibrated: bool = False

    @property
    def can_fork(self) -> bool:
        """Whether programs may start processes: a namespace or a user of their own tells whose these are."""
        return self.hardening.namespaces or self.hardening.first_uid > 0

    @property
    def disk(self) -> tuple[int, int] | None:
        """Bytes and files that each child may keep on the host's disk; None: children do not write there."""
        return None if self.hardening.namespaces else (self.hardening.disk_mb << 20, self.hardening.inodes)

    def folder(self, slot: int) -> str:
        """The working folder of a slot's child, as the child sees it."""
        return self.hardening.home if self.hardening.namespaces else f"{self.work}/{slot}"

    def ran_out_of_memory(self, slot: int) -> bool:
        return self.cgroups is not None and self.cgroups.overrun(slot)


class Zygote:
    """Forks children for the broker, which `broker` is a socket to; it must keep packets apart."""

    def __init__(self, broker: socket.socket, spec: ChildSpec) -> None:
        self._broker, self._spec = broker, spec
        spec.hardening.batches(0, "")  # before the pages of this process are frozen
        self._drop_capabilities = spec.hardening.drop_capabilities()
        self._batches: dict[int, list[SyscallBatch]] = {}
        self._devnull = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._thread_id = syscalls.thread_id_address()
        self._owned: list[int] | None = None if spec.can_fork else []
        self._inits = first_process.InitMaker(self._thread_id) if spec.pid_namespace >= 0 else None

    def calibrate(self) -> bool:
        """Make forks cheaper, see `fork_pages`. Two children show which pages children write to: one runs a program,
        and one becomes a session.

        Returns:
            Whether that succeeded. If a step fails, everything works the same way, only slower.
        """
        gc.collect()
        syscalls.trim_heap()
        gc.freeze()
        gc.disable()
        try:
            written, ranges = zip(*map(self._watch, self._calibration_requests()), strict=True)
        except OSError:
            return False
        fork_pages.pin(set.intersection(*written) - fork_pages.collapse(ranges[-1], set.union(*written)))
        return True

    def _calibration_requests(self) -> tuple[Sequence[Mapping[str, Any]], ...]:
        """Return the requests to the two children of the calibration. The program is a typical one. In the run it
        sleeps at its end, so that the pages that it has written to can be seen."""
        # The pages that a session shares with its shadow would look as if it had not written to them.
        session = {"op": "session", "recover": False, "siblings": self._spec.hardening.namespaces, "memory_mb": 1024}
        run = {"op": "run", "code": f"{_PROGRAM}time.sleep(60)", "memory_mb": 1024}
        return (run,), (session, {"op": "cell", "code": _PROGRAM})

    def _watch(self, requests: Sequence[Mapping[str, Any]]) -> tuple[set[int], list[range]]:
        """Have a child carry out requests. Returns the pages that it or this process has written to, and the ranges
        that huge pages could replace."""
        encoded = [frames.encode_for_child(request) for request in requests]
        with contextlib.ExitStack() as stack:
            snapshot = fork_pages.PageSnapshot(self._spec.proc)
            stack.callback(snapshot.close)
            if not self._spec.hardening.namespaces:
                folder = self._spec.folder(0)
                os.mkdir(folder, 0o700)
                stack.callback(folders.remove, folder)
            if self._spec.cgroups is not None:
                self._spec.cgroups.prepare(0)
            control, its_control = (stack.enter_context(end) for end in socket.socketpair())
            out, its_out = (stack.enter_context(end) for end in socket.socketpair())
            for end in (control, out):
                end.settimeout(CALIBRATION_TIMEOUT)
            control.sendall(encoded[0])
            reply = self._fork(0, its_control.fileno(), its_out.fileno(), self._devnull, sibling=False)
            stack.callback(syscalls.end_processes, reply.pid, reply.init)
            its_control.close()
            its_out.close()
            for frame in encoded[1:]:
                control.recv(_READ_SIZE)
                control.sendall(frame)
            if reply.error or not out.recv(_READ_SIZE) or not control.recv(_READ_SIZE):
                raise OSError(reply.error)
            snapshot.take()
            return snapshot.unshared(), snapshot.full()

    def serve(self) -> NoReturn:
        """Serve until the broker closes its end. If nothing else tells whose the children are, this process kills those
        that a killed broker leaves: the kernel's own signal at a parent's end can be turned off by a program."""
        if self._owned is not None:
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 0)
        try:
            while True:
                slot, sent, _, _ = self._broker.recvmsg(16, _ANCILLARY_SIZE)
                if not slot:
                    self._end()
                descriptors = _DESCRIPTORS.unpack(sent[0][2])
                self._broker.send(self._fork(int(slot), *descriptors).encode())
                for fd in descriptors:
                    os.close(fd)
        except ConnectionError:  # the broker was killed
            self._end()

    def _end(self) -> NoReturn:
        for fd in self._owned or ():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        os._exit(0)

    def _own(self, pid: int) -> None:
        """Keep a handle of a child, which the broker reaps, and drop those of children that have ended."""
        assert self._owned is not None
        ended = select.poll()
        for fd in self._owned:
            ended.register(fd, select.POLLIN)
        for fd, _ in ended.poll(0):
            os.close(fd)
            self._owned.remove(fd)
        self._owned.append(os.pidfd_open(pid))

    def _fork(self, slot: int, control: int, out: int, err: int, *, sibling: bool = True) -> ForkReply:
        init = pid = 0
        error = ""
        try:
            folder = self._spec.folder(slot)
            batches = self._batches.get(slot)
            if batches is None:  # made once for each slot: what this process writes to between two forks is copied
                batches = self._spec.hardening.batches(slot, folder)
                if slot < MOST_KEPT:
                    self._batches[slot] = batches
            if self._inits is not None:
                syscalls.unshare(syscalls.CLONE_NEWPID)
                init = self._inits.make(sibling=sibling)
            pid = syscalls.fork_sibling(self._thread_id) if sibling else syscalls.fork()
            if pid == 0:
                self._be_child(batches, slot, folder, control, out, err)
            if self._owned is not None and sibling:
                self._own(pid)
        except OSError as failure:
            error = str(failure)
        if self._inits is not None:
            syscalls.setns(self._spec.pid_namespace, syscalls.CLONE_NEWPID)
        return ForkReply(slot, pid, init, error)

    def _be_child(
        self, batches: list[SyscallBatch], slot: int, folder: str, control: int, out: int, err: int
    ) -> NoReturn:
        broker = control
        try:
            if self._spec.cgroups is not None:
                self._spec.cgroups.enter(slot)
            move_descriptor(self._devnull, 0)
            move_descriptor(out, 1)
            move_descriptor(err, 2)
            move_descriptor(control, CONTROL_FD)
            broker = CONTROL_FD
            for batch in batches:
                batch.run()
            if folder != "/tmp":
                os.environ.update(HOME=folder, TMPDIR=folder)
                if not self._spec.hardening.namespaces:
                    os.environ.update(loading.cache_folders(folder))
            request = frames.receive(CONTROL_FD)
            if request is None:
                os._exit(0)
            self._carry_out(request)
        except BaseException as error:  # noqa: BLE001  the child must end here, and never return into the zygote's loop
            with contextlib.suppress(BaseException):
                frames.send_all(broker, frames.encode({"broken": f"{type(error).__name__}: {error}"}))
        finally:
            os._exit(252)

    def _carry_out(self, request: Mapping[str, Any]) -> NoReturn:
        self._spec.hardening.limit_memory(request.get("compile_memory_mb") or request["memory_mb"])
        if request["op"] == "run":
            self._drop_capabilities.run()
            program.run(request, base="/tmp" if self._spec.hardening.namespaces else ".")
        repl.serve(request, tuple(folder for _, folder in self._spec.hardening.mounts), self._thread_id)
