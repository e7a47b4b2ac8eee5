"""Having the pages that every child copies anyway copied at its fork, all at once.

After a fork, a page that either side writes to is copied on a page fault of its own, and those are the most of what a
short program costs. Which pages they are is nearly the same each time. A page that is *pinned*, as for a device that
writes to it, must not move, so the kernel copies it for the child at the fork: without any fault, and without taking
from the parent the right to write. Memory that is registered with an io_uring is pinned; the ring does nothing else.

Source: the kernel's `Documentation/core-api/pin_user_pages.rst`, `Documentation/admin-guide/mm/pagemap.rst`, and
io_uring_register(2).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

from toolgym.tools.sandbox.local import kernel

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = 8
_WANTED = 1 << 63 | 1 << 56
"""Bits of an entry of /proc/<pid>/pagemap: the page is there; no other process has it."""

_SETUP, _REGISTER = 425, 427
_REGISTER_BUFFERS = 0
_PARAMETERS = 120
MOST_RUNS = 1024
"""Pieces of memory that may be registered, by the kernel's own limit."""


class Mirror:
    """Shows which pages of this process's writable memory no other process has.

    Between a fork and the end of the forked process, these are the pages that either has written to. So what can be
    done before is done before, and looking writes to hardly any.

    Args:
        proc: descriptor of a /proc that shows this process.

    Raises:
        OSError: it does not tell.
    """

    def __init__(self, proc: int) -> None:
        self._pagemap = os.open("self/pagemap", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        self._pieces = []
        for start, end in _writable(proc):
            room = mmap.mmap(-1, (end - start) // _PAGE * _ENTRY)
            self._pieces.append((start // _PAGE, start // _PAGE * _ENTRY, [room]))

    def look(self) -> None:
        """Take a picture."""
        for _, offset, room in self._pieces:
            os.preadv(self._pagemap, room, offset)

    def unshared(self) -> set[int]:
        """The pages on the last picture, as addresses divided by the size of a page."""
        found = set()
        for first, _, (room,) in self._pieces:
            for page, (entry,) in enumerate(struct.iter_unpack("Q", room), first):
                if entry & _WANTED == _WANTED:
                    found.add(page)
        return found

    def close(self) -> None:
        """Free it."""
        os.close(self._pagemap)
        for _, _, (room,) in self._pieces:
            room.close()


def pin(pages: set[int]) -> bool:
    """Pin pages, as long as this process lives. Returns whether the system lets us; nothing but time depends on it.

    Args:
        pages: addresses divided by the size of a page.
    """
    runs: list[list[int]] = []
    for page in sorted(pages):
        if runs and sum(runs[-1]) == page:
            runs[-1][1] += 1
        else:
            runs.append([page, 1])
    parameters = ctypes.create_string_buffer(_PARAMETERS)
    ring = kernel.syscall(_SETUP, 1, parameters)
    if ring < 0:
        return False
    pieces = b"".join(struct.pack("QQ", first * _PAGE, count * _PAGE) for first, count in runs[:MOST_RUNS])
    if kernel.syscall(_REGISTER, ring, _REGISTER_BUFFERS, pieces, len(pieces) // 16) < 0:
        os.close(ring)
        return False
    return True


def _writable(proc: int) -> list[tuple[int, int]]:
    fd = os.open("self/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    found = []
    with open(fd, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            where, rights = line.split(" ", 2)[:2]
            if rights.startswith("rw") and rights.endswith("p"):
                start, _, end = where.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found
