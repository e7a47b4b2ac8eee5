"""Having confined children forked, ahead of need, and burying them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from toolgym.tools.sandbox.local import folders, kernel
from toolgym.tools.sandbox.local.lane import Child, Lane
from toolgym.tools.sandbox.local.reactor import Reactor
from toolgym.tools.sandbox.local.stem import Birth

ASKED_AT_ONCE = 16
"""How many forks are asked for before the first is answered. So few that neither side ever waits to send."""

SWEEP_TIMEOUT = 10.0
"""Seconds that the stem may take to answer before orphans are swept up."""

END_TIMEOUT = 2.0
"""Seconds that killed children may take to be gone."""

_ANSWER = 4096


class Nursery:
    """All children of a template process, those that wait for a request included.

    Args:
        reactor: tells when there is something to read.
        birth: how children are made.
        line: to the stem, which forks them.
        stem: its process id.
        on_birth: is called with each child that has come to be; from then on, `bury` may.
        on_stillbirth: is called with each child that will not be, and why.
    """

    def __init__(
        self,
        reactor: Reactor,
        birth: Birth,
        line: socket.socket,
        stem: int,
        on_birth: Callable[[Child], None],
        on_stillbirth: Callable[[Child, str], None],
    ) -> None:
        self._reactor, self._birth, self._line, self._stem = reactor, birth, line, stem
        self._on_birth, self._on_stillbirth = on_birth, on_stillbirth
        self._namespaces = birth.confinement.namespaces
        self._children: set[Child] = set()
        self._warm: list[Child] = []
        self._asked: dict[int, Child] = {}
        self._to_ask: deque[tuple[Child, tuple[int, int, int]]] = deque()
        self._slots: list[int] = []
        self._next_slot = 0
        line.setblocking(False)
        reactor.watch(line.fileno(), lambda _: self.hear())

    def __len__(self) -> int:
        return len(self._children)

    @property
    def warm(self) -> int:
        """How many children wait for their first request, or will as soon as they are there."""
        return len(self._warm)

    def warm_one(self) -> Lane:
        """Have a child forked to wait for its first request. Returns its lane, which the caller has to watch."""
        lane = self._conceive()
        self._warm.append(lane.child)
        return lane

    def take(self) -> tuple[Lane, bool]:
        """A confined child that waits for its first request: its lane, and whether that is new.

        It may not be born yet: what it is sent waits for it.
        """
        while self._warm:
            child = self._warm.pop(0)
            if not child.dead:
                return child.lanes[0], False
        return self._conceive(), True

    def hear(self) -> None:
        """Take note of births."""
        while True:
            try:
                answer = self._line.recv(_ANSWER)
            except BlockingIOError:
                return
            except OSError:
                answer = b""
            if not answer:
                os._exit(4)  # without the stem there are no more children; and those there are end with us
            slot, pid, first, why = answer.split(b" ", 3)
            child = self._asked.pop(int(slot))
            self._ask()
            self._bear(child, int(pid), int(first), why.decode("utf-8", "replace"))

    def await_birth(self, child: Child) -> None:
        """Wait for the stem to say which process a child is. The child may have been quicker to speak."""
        poll = select.poll()
        poll.register(self._line.fileno(), select.POLLIN)
        while not child.pid and not child.dead:
            if not poll.poll(SWEEP_TIMEOUT * 1000):
                os._exit(4)
            self.hear()

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
        for fd in (child.pidfd, child.init_fd):
            if fd >= 0:
                os.close(fd)
        child.first = None  # lanes know their child: nobody collects cycles here
        self._children.discard(child)
        self._slots.append(child.slot)

    def end(self) -> None:
        """Kill and bury all children and whatever they started, the stem included: the last that this process does.

        Children die with their parent, but what they started does not, where no namespace ends with it. And the dead
        would be left to the next parent, which in a container is a program that never asks for them.
        """
        if self._namespaces:
            return
        deadline = time.monotonic() + END_TIMEOUT
        while time.monotonic() < deadline:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                left = [int(word) for word in file.read().split()]
            if not left:
                return
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            for pid in left:
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)

    def _sweep(self) -> None:
        """Without a pid namespace: what a dead child left behind was re-parented to us, the subreaper."""
        # Until that is done, nobody is born: who was born this moment would look like an orphan.
        waiting, self._to_ask = self._to_ask, deque()
        self._await_births()
        own = {self._stem, *(child.pid for child in self._children if not child.dead)}
        for _ in range(100):
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                orphans = [int(word) for word in file.read().split() if int(word) not in own]
            if not orphans:
                break
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, 0)
        self._to_ask.extendleft(reversed(waiting))
        self._ask()

    def _await_births(self) -> None:
        poll = select.poll()
        poll.register(self._line.fileno(), select.POLLIN)
        while self._asked:
            if not poll.poll(SWEEP_TIMEOUT * 1000):
                os._exit(4)
            self.hear()

    def _conceive(self) -> Lane:
        slot = self._slots.pop() if self._slots else self._next_slot
        self._next_slot = max(self._next_slot, slot + 1)
        with contextlib.ExitStack() as undo:
            undo.callback(self._slots.append, slot)
            return self._conceive_in(slot, undo)

    def _conceive_in(self, slot: int, undo: contextlib.ExitStack) -> Lane:
        """Ask for the child of a slot; `undo` gets what to do should that fail."""
        if self._birth.leaves is not None:
            self._birth.leaves.prepare(slot)
        folder = self._birth.folder(slot)
        if not self._namespaces:
            if os.path.lexists(folder):
                folders.remove(folder)  # the last child's: want of descriptors can have kept it
            os.mkdir(folder, 0o700)
            undo.callback(folders.remove, folder)
        out_read, out_write = _undone(undo, *os.pipe())
        err_read, err_write = _undone(undo, *os.pipe())
        ours, theirs = _undone(undo, *(end.detach() for end in socket.socketpair()))
        child = Child(slot, folder)
        lane = Lane(self._reactor, child, ours, out_read, err_read, -1, self._birth.output_bytes)
        undo.pop_all()
        child.lanes.append(lane)
        child.first = lane
        self._children.add(child)
        self._to_ask.append((child, (theirs, out_write, err_write)))
        self._ask()
        if child.dead:
            raise OSError("a child could not be asked for")
        return lane

    def _ask(self) -> None:
        while self._to_ask and len(self._asked) < ASKED_AT_ONCE:
            child, descriptors = self._to_ask.popleft()
            self._asked[child.slot] = child
            try:
                socket.send_fds(self._line, [b"%d" % child.slot], descriptors)
            except ConnectionError:
                os._exit(4)  # see `hear`
            except OSError as error:
                del self._asked[child.slot]
                self._bear(child, 0, 0, str(error))
            finally:
                for fd in descriptors:
                    os.close(fd)

    def _bear(self, child: Child, pid: int, first: int, why: str) -> None:
        """A child has come to be; or, with a process id of 0, will not."""
        child.pid, child.init = pid, first
        if pid:
            try:
                child.pidfd = os.pidfd_open(pid)
            except OSError as error:
                why = str(error)
            else:
                if child.doomed:
                    child.kill()
                self._on_birth(child)
                return
        kernel.end_processes(pid, first)
        child.dead = child.ended = True
        self._on_stillbirth(child, why)


def _undone(undo: contextlib.ExitStack, *fds: int) -> tuple[int, ...]:
    for fd in fds:
        undo.callback(os.close, fd)
    return fds
