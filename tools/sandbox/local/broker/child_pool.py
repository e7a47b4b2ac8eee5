"""The children of a template process: forked ahead of need, handed out, and reaped."""

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

from toolgym.tools.sandbox.local.broker.channel import Channel, Child
from toolgym.tools.sandbox.local.broker.reactor import Reactor
from toolgym.tools.sandbox.local.kernel import folders, syscalls, users
from toolgym.tools.sandbox.local.protocol.frames import ForkReply
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec

MAX_ASKED = 16
"""Forks that are asked for before the first is answered: so few that neither side ever waits to send."""

ZYGOTE_TIMEOUT = 10.0

END_TIMEOUT = 2.0

_ZYGOTE_LOST = 4
"""Exit code of a broker without its zygote: there would be no more children, and those there are end with it."""

_REPLY_SIZE = 4096


class ChildPool:
    """All children of a template process, those that wait for a request included. `on_spawned` is called with the
    channel to each new child; `on_forked` when it was forked, `on_fork_failed` when it could not be, and the reason."""

    def __init__(
        self,
        reactor: Reactor,
        spec: ChildSpec,
        zygote: socket.socket,
        zygote_pid: int,
        on_spawned: Callable[[Channel], None],
        on_forked: Callable[[Child], None],
        on_fork_failed: Callable[[Child, str], None],
    ) -> None:
        self._reactor, self._spec, self._zygote, self._zygote_pid = reactor, spec, zygote, zygote_pid
        self._on_spawned, self._on_forked, self._on_fork_failed = on_spawned, on_forked, on_fork_failed
        self._namespaces = spec.hardening.namespaces
        self._children: set[Child] = set()
        self.warm: list[Child] = []  # these wait for their first request, or will as soon as they are forked
        self._asked: dict[int, Child] = {}
        self._to_ask: deque[tuple[Child, tuple[int, int, int]]] = deque()
        self._free_slots: list[int] = []
        self._next_slot = 0
        zygote.setblocking(False)
        reactor.watch(zygote.fileno(), self.read_replies)

    def spawn_warm(self) -> None:
        self.warm.append(self._spawn().child)

    def take(self) -> Channel:
        """The channel to a hardened child. The child may not be forked yet: what is sent to it waits in the socket."""
        while self.warm:
            child = self.warm.pop(0)
            if not child.dead:
                return child.channels[0]
        return self._spawn()

    def read_replies(self) -> None:
        while True:
            try:
                packet = self._zygote.recv(_REPLY_SIZE)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                os._exit(_ZYGOTE_LOST)
            reply = ForkReply.decode(packet)
            child = self._asked.pop(reply.slot)
            self._ask()
            self._on_reply(child, reply)

    def await_fork(self, child: Child) -> None:
        """Wait for the zygote to say which process a child is. The child's first message may come before that."""
        self._read_replies_while(lambda: not child.pid and not child.dead)

    def _read_replies_while(self, waits: Callable[[], bool]) -> None:
        poll = select.poll()
        poll.register(self._zygote.fileno(), select.POLLIN)
        while waits():
            if not poll.poll(ZYGOTE_TIMEOUT * 1000):
                os._exit(_ZYGOTE_LOST)
            self.read_replies()

    def reap(self, child: Child) -> tuple[int, Any] | None:
        """Reap a child that exited, and return its exit code, negative for a signal, and its usage; None: it is alive.
        Then `end` has to be called, unless another process takes the child's place."""
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid == 0:
            return None
        child.dead = True
        return os.waitstatus_to_exitcode(status), usage

    def end(self, child: Child) -> None:
        """End what a child that was reaped left behind. In a pid namespace others may live on until the child is
        killed; `child.init_fd` tells when the last one ended."""
        if child.init:
            child.init_fd = os.pidfd_open(child.init)
        else:
            child.ended = True
            self._sweep(child)

    def reap_init(self, child: Child) -> bool:
        """Reap the first process of a child's namespace, which is its last one too. Returns whether it has ended."""
        if not child.ended:
            child.ended = os.waitpid(child.init, os.WNOHANG)[0] != 0
        return child.ended

    def release(self, child: Child) -> None:
        """Free what an ended child had: its folder, its handles, and its slot."""
        if child in self.warm:
            self.warm.remove(child)
        if not self._namespaces:
            folders.remove(child.folder)
        child.close_handles()
        child.first = None  # breaks a cycle with its channel: this process has no garbage collection
        self._children.discard(child)
        self._free_slots.append(child.slot)

    def kill_all(self) -> None:
        """Kill and reap all children, all that they started, and the zygote. Children die with their parent, but what
        they started does not, unless a namespace ends with it; and unreaped, they would go to a container's first
        process, which never reaps."""
        if self._namespaces:
            return
        first = self._spec.hardening.first_uid
        for child in self._children if first else ():
            users.end(first + child.slot, first)
        deadline = time.monotonic() + END_TIMEOUT
        while time.monotonic() < deadline:
            left = _own_children()
            if not left:
                return
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            for pid in left:
                os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)

    def _sweep(self, dead: Child) -> None:
        """Without a pid namespace: kill what a dead child left behind, whose parent is this process, the subreaper."""
        first = self._spec.hardening.first_uid
        user = first + dead.slot if first else 0
        if user and any(users.owner(pid) == user for pid in _own_children()):
            users.end(user, first)  # before anything else: they may fork as fast as they can
        # No forks during the sweep: a child forked now would be mistaken for an orphan.
        waiting, self._to_ask = self._to_ask, deque()
        self._read_replies_while(lambda: bool(self._asked))
        known = {self._zygote_pid, *(child.pid for child in self._children if not child.dead)}
        left = True
        while left:
            left = False
            for pid in [pid for pid in _own_children() if pid not in known]:
                ours = not user or users.owner(pid) == user  # the others are of a child that lives
                left |= ours
                with contextlib.suppress(OSError):
                    if ours:
                        os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0 if ours else os.WNOHANG)
        self._to_ask.extendleft(reversed(waiting))
        self._ask()

    def _spawn(self) -> Channel:
        slot = self._free_slots.pop() if self._free_slots else self._next_slot
        self._next_slot = max(self._next_slot, slot + 1)
        folder = self._spec.folder(slot)
        with contextlib.ExitStack() as undo:
            undo.callback(self._free_slots.append, slot)
            if self._spec.cgroups is not None:
                self._spec.cgroups.prepare(slot)
            if not self._namespaces:
                if os.path.lexists(folder):
                    folders.remove(folder)  # of the slot's last child: that can have failed for want of descriptors
                os.mkdir(folder, 0o700)
                undo.callback(folders.remove, folder)
            out_read, out_write = _undone(undo, *os.pipe())
            err_read, err_write = _undone(undo, *os.pipe())
            ours, theirs = _undone(undo, *(end.detach() for end in socket.socketpair()))
            child = Child(slot, folder)
            channel = Channel(self._reactor, child, ours, out_read, err_read, -1, self._spec.output_bytes)
            undo.pop_all()
        child.channels.append(channel)
        child.first = channel
        self._children.add(child)
        self._to_ask.append((child, (theirs, out_write, err_write)))
        self._ask()
        if child.dead:
            raise OSError("the zygote could not be asked for a child")
        self._on_spawned(channel)
        return channel

    def _ask(self) -> None:
        while self._to_ask and len(self._asked) < MAX_ASKED:
            child, descriptors = self._to_ask.popleft()
            self._asked[child.slot] = child
            try:
                socket.send_fds(self._zygote, [b"%d" % child.slot], descriptors)
            except ConnectionError:
                os._exit(_ZYGOTE_LOST)
            except OSError as error:
                del self._asked[child.slot]
                self._on_reply(child, ForkReply(child.slot, 0, 0, str(error)))
            finally:
                for fd in descriptors:
                    os.close(fd)

    def _on_reply(self, child: Child, reply: ForkReply) -> None:
        child.pid, child.init = reply.pid, reply.init
        error = reply.error
        if reply.pid:
            try:
                child.pidfd = os.pidfd_open(reply.pid)
            except OSError as failure:
                error = str(failure)
            else:
                if child.kill_on_fork:
                    child.kill()
                self._on_forked(child)
                return
        syscalls.end_processes(reply.pid, reply.init)
        child.dead = child.ended = True
        self._on_fork_failed(child, error)


def _own_children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def _undone(undo: contextlib.ExitStack, *fds: int) -> tuple[int, ...]:
    for fd in fds:
        undo.callback(os.close, fd)
    return fds
