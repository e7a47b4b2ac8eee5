"""The stem: the process that has the libraries loaded, and from which a template has its children forked.

After a fork, whatever either side touches is a page that has to be copied. A template touches much between two forks:
it talks to its host and to every child. So it has nothing forked from itself, but from this process, which sleeps
between two forks and touches next to nothing. What it forks are not its children, though, but its siblings: their
parent is the template, which watches them, kills them and buries them.

The template asks with a slot's number and three descriptors for the child: control socket, standard output, standard
error. The answer is the slot, two process ids, of the child and of the first process of its namespace, and, where the
first of them is 0, what went wrong.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from toolgym.tools.sandbox.local import folders, init, kernel, mappings, pinning, program, repl, wire
from toolgym.tools.sandbox.local.confine import CONTROL_FD, Confinement
from toolgym.tools.sandbox.local.leaves import Leaves
from toolgym.tools.sandbox.local.script import Script, move_descriptor

_DESCRIPTORS = struct.Struct("3i")
_ROOM = socket.CMSG_SPACE(_DESCRIPTORS.size)

REHEARSAL_TIMEOUT = 20.0
"""Seconds for the rehearsal."""

_ANSWER = 65536
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
_REHEARSAL = (
    ({"op": "run", "code": _PROGRAM + "time.sleep(60)", "memory_mb": 1024},),
    (
        {"op": "session", "memory_mb": 1024},
        {"op": "cell", "code": _PROGRAM},
    ),
)
"""What two children are asked for. The program is one like many others; where it is run it stops at its end, so that
one can see what it has written to."""


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

    def folder(self, slot: int) -> str:
        """The working folder of a slot's child, as it sees it."""
        return self.confinement.home if self.confinement.namespaces else f"{self.work}/{slot}"


class Stem:
    """Forks children for the template at the other end of a line.

    Args:
        line: a socket that keeps messages apart.
        birth: how children are made.
    """

    def __init__(self, line: socket.socket, birth: Birth) -> None:
        self._line, self._birth = line, birth
        # In namespaces, all children do the same.
        self._script = birth.confinement.script(0, "") if birth.confinement.namespaces else None
        self._settling = birth.confinement.settling()
        self._devnull = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._thread_id = kernel.thread_id_address()
        self._inits = init.InitMaker(self._thread_id) if birth.pid_namespace >= 0 else None

    def rehearse(self, proc: int) -> int:
        """Make forks cheaper, see `pinning` and `mappings`.

        Which pages children write to, two of them show: one that runs a program, and one that becomes a session. Where
        anything of this fails, or the system does not allow it, all goes the same way, only slower.

        Args:
            proc: descriptor of a /proc that shows this process.

        Returns:
            How many pages will be copied at each fork.
        """
        gc.collect()
        kernel.trim_heap()
        gc.freeze()
        gc.disable()
        with contextlib.suppress(OSError):
            mappings.join(proc)
            written, places = zip(*(self._watch(proc, requests) for requests in _REHEARSAL), strict=True)
            huge = pinning.collapse(places[-1], set.union(*written))
            return pinning.pin(set.intersection(*written) - huge)
        return 0

    def _watch(self, proc: int, requests: Sequence[Mapping[str, Any]]) -> tuple[set[int], list[range]]:
        """Have a child carry out requests.

        Returns:
            The pages that it, or this process meanwhile, has written to, and where huge pages would have a place.
        """
        frames = [wire.encode_down(request) for request in requests]
        with contextlib.ExitStack() as stack:
            mirror = pinning.Mirror(proc)
            stack.callback(mirror.close)
            if not self._birth.confinement.namespaces:
                folder = self._birth.folder(0)
                os.mkdir(folder, 0o700)
                stack.callback(folders.remove, folder)
            if self._birth.leaves is not None:
                self._birth.leaves.prepare(0)
            control, its_control = (stack.enter_context(end) for end in socket.socketpair())
            out, its_out = (stack.enter_context(end) for end in socket.socketpair())
            for end in (control, out):
                end.settimeout(REHEARSAL_TIMEOUT)
            control.sendall(frames[0])
            pid, first, why = self._fork(0, its_control.fileno(), its_out.fileno(), self._devnull, sibling=False)
            stack.callback(kernel.end_processes, pid, first)
            its_control.close()
            its_out.close()
            for frame in frames[1:]:
                control.recv(_ANSWER)
                control.sendall(frame)
            if why or not out.recv(_ANSWER) or not control.recv(_ANSWER):
                raise OSError(why.decode("utf-8", "replace"))
            mirror.look()
            return mirror.unshared(), mirror.full()

    def serve(self) -> NoReturn:
        """Serve until the template closes its end."""
        try:
            while True:
                words, sent, _, _ = self._line.recvmsg(16, _ROOM)
                if not words:
                    os._exit(0)
                descriptors = _DESCRIPTORS.unpack(sent[0][2])
                self._line.send(b"%b %d %d %b" % (words, *self._fork(int(words), *descriptors)))
                for fd in descriptors:
                    os.close(fd)
        except ConnectionError:  # the template was killed
            os._exit(0)

    def _fork(self, slot: int, control: int, out: int, err: int, *, sibling: bool = True) -> tuple[int, int, bytes]:
        """Fork a child, as this process's sibling or not.

        Returns:
            Two process ids, of the child and of the first process of its namespace; 0: there is none. And what went
            wrong, which is why there is no child.
        """
        first = pid = 0
        why = b""
        try:
            folder = self._birth.folder(slot)
            script = self._script or self._birth.confinement.script(slot, folder)
            if self._inits is not None:
                kernel.unshare(kernel.CLONE_NEWPID)
                first = self._inits.make(sibling=sibling)
            pid = kernel.fork_sibling(self._thread_id) if sibling else kernel.fork()
            if pid == 0:
                self._be_child(script, slot, folder, control, out, err)
        except OSError as error:
            why = str(error).encode("utf-8", "replace")
        if self._inits is not None:
            kernel.setns(self._birth.pid_namespace, kernel.CLONE_NEWPID)
        return pid, first, why

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
        self._birth.confinement.limit_memory(request.get("compile_memory_mb") or request["memory_mb"])
        if request["op"] == "run":
            self._settling.run()
            program.run(request, base="/tmp" if self._birth.confinement.namespaces else ".")
        repl.serve(request)
