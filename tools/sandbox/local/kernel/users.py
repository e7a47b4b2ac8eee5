"""User ids for the sandbox: one for each execution if root can give it. A container may have only a part of all ids."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator

from toolgym.tools.sandbox.local.kernel import syscalls

SANDBOX_UID = 65534
"""The user that root's template process becomes, so that no process of the sandbox is root outside of it."""

SPAN = 4096
"""User ids of one template process: each of its children has one, and the last is for `end`."""

FIRST_INSIDE = 1
"""At the level `namespaces`: the first of them inside of the template process's user namespace."""

POOLS = (range(0x70000000, 0x71000000), range(20_000, 60_000))
"""Ranges of unused user ids, of which the first that exists here is used: the one lies beyond those that systemd and
`/etc/subuid` give to containers, the other between those of people and of services."""


@functools.cache
def _numbers(pid: int) -> Iterator[int]:
    """Numbers for the template processes of one process; those of other processes hardly ever get the same ones."""
    return itertools.count(secrets.randbelow(1 << 16))


def known(first: int, count: int = 1) -> bool:
    for name in ("uid_map", "gid_map"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/{name}") as file:
            ranges = [(int(start), int(length)) for start, _, length in map(str.split, file)]
            if not any(start <= first and first + count <= start + length for start, length in ranges):
                return False
    return True


def pool() -> range | None:
    return next((ids for ids in POOLS if known(ids.start, len(ids))), None)


def take() -> int:
    """The first of `SPAN` user ids for one template process, which no other one of this process gets."""
    ids = pool()
    if ids is None:
        raise OSError("this user namespace knows too few users")
    return ids.start + next(_numbers(os.getpid())) % (len(ids) // SPAN) * SPAN


def end(uid: int, first: int, fork: Callable[[], int] = syscalls.fork) -> None:
    """Kill all processes of a user at once, so that none can fork another one in between; for root. Does nothing if no
    process can be started for it; the caller tries again. `first` is from `take`."""
    try:
        helper = fork()
        if helper:
            os.waitpid(helper, 0)
            return
    except OSError:
        return
    try:
        # The effective id is the user's, so its processes are all that this one may signal. No process
        # has the other two ids, so that none of the user's can signal this one.
        os.setresuid(first + SPAN - 1, uid, first + SPAN - 1)
        os.kill(-1, signal.SIGKILL)
    finally:
        os._exit(0)


def owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def end_orphans(first: int, timeout: float) -> None:
    """Kill the processes that a template process's users left behind, and those that they started; for root. `first` is
    from `take`; after `timeout` seconds it gives up."""
    heirs = {1}  # possible new parents of a process below us that loses its own
    heir = os.getpid()
    while heir:
        heirs.add(heir)
        heir = _owner_and_parent(heir)[1]
    deadline = time.monotonic() + timeout
    users = {first}
    while users and time.monotonic() < deadline:
        known = [_owner_and_parent(int(pid)) for pid in filter(str.isdigit, os.listdir("/proc"))]
        users = {uid for uid, parent in known if first <= uid < first + SPAN and parent in heirs}
        for uid in users:
            end(uid, first, os.fork)  # with its hooks: the host may have further threads
        if users:
            time.sleep(0.001)


def _owner_and_parent(pid: int) -> tuple[int, int]:
    """User id and parent of a process; -1 and 0: it is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/status") as file:
            status = file.read()
    except OSError:
        return -1, 0
    if "\nState:\tZ" in status:
        return -1, 0
    return int(status.partition("\nUid:\t")[2].split()[0]), int(status.partition("\nPPid:\t")[2].split()[0])
