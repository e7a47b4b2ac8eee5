"""Other users to become: those that this user namespace knows, and a user for each execution at the level `uid`.

A container may know a part of all users alone: often the first 65,536, sometimes just its own root.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
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
