"""Other users to become: those that this user namespace knows, and a user for each execution at the level `uid`.

A container may know a part of all users alone: often the first 65,536, sometimes just its own root.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import signal
import time
from collections.abc import Iterator

SANDBOX_UID = 65534
"""The user that a template started by root becomes, so that no process of the sandbox is root outside of it."""

SPAN = 4096
"""Users of one template: each of its children is one."""

POOLS = (range(0x70000000, 0x71000000), range(20_000, 60_000))
"""Users that nobody is: the first range lies beyond those that systemd and `/etc/subuid` give to containers, the second
one between those of people and of services. Taken from the first that is known here."""


@functools.cache
def _numbers(pid: int) -> Iterator[int]:
    """Of the templates of a process. Those of other processes on the machine hardly ever have the same ones."""
    return itertools.count(secrets.randbelow(1 << 16))


def known(first: int, count: int = 1) -> bool:
    """Whether the users and groups with these numbers exist in this user namespace."""
    for name in ("uid_map", "gid_map"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/{name}") as file:
            ranges = [(int(start), int(length)) for start, _, length in map(str.split, file)]
            if not any(start <= first and first + count <= start + length for start, length in ranges):
                return False
    return True


def pool() -> range | None:
    """The users that programs can be given here."""
    return next((one for one in POOLS if known(one.start, len(one))), None)


def take() -> int:
    """The first of `SPAN` users for the children of one template, which no other template of this process has.

    Raises:
        OSError: there are none.
    """
    found = pool()
    if found is None:
        raise OSError("this user namespace knows too few users")
    return found.start + next(_numbers(os.getpid())) % (len(found) // SPAN) * SPAN


def end_orphans(first: int, timeout: float) -> None:
    """Kill the processes of a template's users that it left behind, and those that they started; for root.

    Args:
        first: of the users, from `take`.
        timeout: seconds after which to give up.
    """
    heirs = {1}  # who becomes the parent of a process below us that loses its own
    heir = os.getpid()
    while heir:
        heirs.add(heir)
        heir = _owner_and_parent(heir)[1]
    deadline = time.monotonic() + timeout
    found = True
    while found and time.monotonic() < deadline:
        found = False
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            owner, parent = _owner_and_parent(pid)
            if first <= owner < first + SPAN and parent in heirs:
                found = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if found:
            time.sleep(0.001)


def _owner_and_parent(pid: int) -> tuple[int, int]:
    """Of a process, its user's and its parent's numbers; -1 and 0: it is gone, or dead already."""
    try:
        with open(f"/proc/{pid}/status") as file:
            told = file.read()
    except OSError:
        return -1, 0
    if "\nState:\tZ" in told:
        return -1, 0
    return int(told.partition("\nUid:\t")[2].split()[0]), int(told.partition("\nPPid:\t")[2].split()[0])
