"""The fork of a live session: a request that two processes have a part in, each in its own lane.

The session asks for ends, makes a copy of itself, and says which process that is; its copy says that it is in place, or
that it failed; the session says that it goes on. All of it may be the invention of a program that runs there: one copy
comes of a request, or none, and whatever goes wrong in between is the program's own failure, and not the sandbox's.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolgym.tools.sandbox.local import branch, memory
from toolgym.tools.sandbox.local.confine import Confinement
from toolgym.tools.sandbox.local.host import Host
from toolgym.tools.sandbox.local.lane import Lane
from toolgym.tools.sandbox.local.reactor import Reactor

MOST_SAID = 1000
"""Characters of what a child says went wrong."""


@dataclass
class Fork:
    """A fork on its way.

    Attributes:
        request: the host's.
        origin: the session's lane.
        copy: the copy's, from when there is one.
        parted: whether the session goes on.
        ready: whether the copy is in place.
        failure: status and words of what went wrong; None: nothing yet.
        over: whether the request is answered.
    """

    request: Mapping[str, Any]
    origin: Lane
    copy: Lane | None = None
    parted: bool = False
    ready: bool = False
    failure: tuple[str, str] | None = None
    over: bool = False


class Forks:
    """Carries out forks.

    Args:
        host: is answered.
        reactor: for the lanes of copies.
        confinement: of all children.
        proc: a /proc that shows them.
        adopt: takes over a copy's lane, whose request is the fork's.
        drop: ends one.
    """

    def __init__(
        self,
        host: Host,
        reactor: Reactor,
        confinement: Confinement,
        proc: int,
        adopt: Callable[[Lane], None],
        drop: Callable[[Lane, str], None],
    ) -> None:
        self._host, self._reactor, self._confinement, self._proc = host, reactor, confinement, proc
        self._adopt, self._drop = adopt, drop
        self._own_mounts = -1
        if confinement.namespaces:
            self._own_mounts = os.open("self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=confinement.proc)

    def hear(self, fork: Fork, lane: Lane, message: Mapping[str, Any]) -> None:
        """Take a message from the session or its copy.

        Raises:
            ValueError: it makes no sense.
        """
        if lane is fork.copy:
            self._hear_copy(fork, lane, message)
        elif "ends" in message and fork.copy is None and not lane.ends:
            lane.make_ends()
        elif "forked" in message and fork.copy is None and lane.ends:
            self._part(fork, int(message["forked"]))
        elif "done" in message or "failed" in message:
            lane.drain()
            lane.close_ends()
            lane.request = lane.fork = None
            lane.deadline = 0
            fork.parted = True
            if "failed" in message:
                self._fail(fork, "error", str(message["failed"])[:MOST_SAID])
            elif fork.copy is None:
                self._fail(fork, "error", "no copy came of it")
            self._finish(fork)
        else:
            raise ValueError("a message that belongs to no fork")

    def lost(self, fork: Fork, lane: Lane, status: str, why: str) -> None:
        """The session or its copy ended before it had done its part."""
        if lane is fork.origin:
            fork.parted = True
        else:
            fork.copy = None  # it is being dropped
        self._fail(fork, status, why)
        self._finish(fork, alive=lane is not fork.origin)

    def give_up(self, fork: Fork) -> None:
        """Nobody wants it any more. The session goes on without a copy."""
        self._fail(fork, "killed", "the fork was cancelled")
        self._finish(fork)

    def _hear_copy(self, fork: Fork, lane: Lane, message: Mapping[str, Any]) -> None:
        if "ready" in message and not fork.ready:
            fork.ready = True
            lane.request = lane.fork = None
            lane.deadline = 0
            self._finish(fork)
        elif "failed" in message:
            self._fail(fork, "error", str(message["failed"])[:MOST_SAID])
            self._finish(fork)
        else:
            raise ValueError("a message that belongs to no copy")

    def _part(self, fork: Fork, told: int) -> None:
        """Find the copy, and give it a root of its own."""
        origin = fork.origin
        if fork.failure is not None:
            origin.close_ends()  # whereupon the copy ends
            return
        here = memory.number(self._proc, origin.handle if origin.handle >= 0 else origin.child.pidfd)
        try:
            handle = memory.child_handle(self._proc, here, told)
        except (ProcessLookupError, FileNotFoundError):
            origin.close_ends()
            self._fail(fork, "error", "no copy came of it")
            return
        control, out, err = origin.ends
        origin.ends = []
        copy = Lane(self._reactor, origin.child, control, out, err, handle, origin.cap)
        copy.session = fork.request["into"]
        copy.foreign = True  # all that its origin ran is in it
        copy.fork = fork
        fork.copy = copy
        copy.begin(dict(fork.request))
        origin.child.lanes.append(copy)
        self._adopt(copy)
        try:
            grown = branch.grow(handle, self._own_mounts, self._confinement)
            copy.namespace = grown.namespace
            try:
                copy.send_descriptors(grown.root)
            finally:
                os.close(grown.root)
        except OSError as error:
            if not _has_ended(handle):  # otherwise its lane tells
                self._fail(fork, "sandbox_error", f"no file system for the copy: {error}")

    def _fail(self, fork: Fork, status: str, why: str) -> None:
        """Nothing comes of it, and no copy is left behind."""
        if fork.failure is None and not fork.over:
            fork.failure = status, why
            copy, fork.copy = fork.copy, None
            if copy is not None and copy in copy.child.lanes:
                copy.request = copy.fork = None
                self._drop(copy, "closed")

    def _finish(self, fork: Fork, *, alive: bool = True) -> None:
        """Answer when all is known, and the session is ready for what comes next."""
        if fork.over or not fork.parted or (fork.failure is None and not fork.ready):
            return
        fork.over = True
        status, why = fork.failure or ("ok", "")
        self._host.answer(fork.request, {"status": status, "alive": alive, "message": why})


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))
