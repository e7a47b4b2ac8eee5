"""Cheaper forks: fewer pages to share, and those that every child writes to copied at once.

After a fork, a page that either side writes to is copied on a page fault of its own, and those are the most of what a
short program costs. Which pages they are is nearly the same each time. A page that is *pinned*, as for a device that
writes to it, must not move, so the kernel copies it for the child at the fork: without any fault, and without taking
from the parent the right to write. Memory that is registered with an io_uring is pinned; the ring does nothing else.

Every other page costs an entry in the child's tables, made at the fork and taken down at the exit. Where hardly any of
a huge page's 512 pages is ever written to, they become one huge page, with one entry. A child that does write to one
gets the 512 entries then, and a copy of that page alone.

Source: the kernel's `Documentation/core-api/pin_user_pages.rst`, `Documentation/admin-guide/mm/pagemap.rst`,
io_uring_register(2), and madvise(2) on MADV_COLLAPSE.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

from toolgym.tools.sandbox.local import kernel, mappings

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = 8
_PRESENT, _ALONE = 1 << 63, 1 << 56
"""Bits of an entry of /proc/<pid>/pagemap: the page is there; no other process has it."""
_HUGE = 512
"""Pages of a huge page, where pages have 4 KiB; elsewhere none is made."""

_HUGE_BYTES = 2 << 20
_NEARLY = _HUGE - 16
"""Of these, how many have to be there."""

_FEW = 8
"""And how many may be written to by most children: as many faults cost no more than what the huge page saves."""

_COLLAPSE = 25

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
        for piece in mappings.pieces(proc):
            if piece.rights == "rw-p":
                first, end = piece.start // _PAGE, piece.end // _PAGE
                self._pieces.append((first, first * _ENTRY, [mmap.mmap(-1, (end - first) * _ENTRY)]))

    def look(self) -> None:
        """Take a picture."""
        for _, offset, room in self._pieces:
            os.preadv(self._pagemap, room, offset)

    def unshared(self) -> set[int]:
        """The pages on the last picture, as addresses divided by the size of a page."""
        found = set()
        for first, _, (room,) in self._pieces:
            for page, (entry,) in enumerate(struct.iter_unpack("Q", room), first):
                if entry & _PRESENT and entry & _ALONE:
                    found.add(page)
        return found

    def full(self) -> list[range]:
        """The pages on the last picture that fill, or nearly fill, the place of a huge page."""
        found = []
        for first, _, (room,) in self._pieces:
            present = bytes(entry >> 63 for (entry,) in struct.iter_unpack("Q", room))
            for start in range(-(-first // _HUGE) * _HUGE, first + len(present) - _HUGE + 1, _HUGE):
                if present.count(1, start - first, start - first + _HUGE) >= _NEARLY:
                    found.append(range(start, start + _HUGE))
        return found

    def close(self) -> None:
        """Free it."""
        os.close(self._pagemap)
        for _, _, (room,) in self._pieces:
            room.close()


def pin(pages: set[int]) -> int:
    """Pin pages, as long as this process lives. Returns how many the system lets us; nothing but time depends on it.

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
        return 0
    pieces = b"".join(struct.pack("QQ", first * _PAGE, count * _PAGE) for first, count in runs[:MOST_RUNS])
    if kernel.syscall(_REGISTER, ring, _REGISTER_BUFFERS, pieces, len(runs[:MOST_RUNS])) < 0:
        os.close(ring)
        return 0
    return sum(count for _, count in runs[:MOST_RUNS])


def collapse(places: list[range], written: set[int]) -> set[int]:
    """Make huge pages of those that few of some pages lie in, as far as the system lets us. Returns all their pages.

    Args:
        places: see `Mirror.full`.
        written: pages that children write to.
    """
    collapsed: set[int] = set()
    for pages in places:
        if _PAGE * _HUGE == _HUGE_BYTES and len(written.intersection(pages)) <= _FEW:
            size = ctypes.c_size_t(_HUGE_BYTES)
            if kernel.libc.madvise(ctypes.c_void_p(pages.start * _PAGE), size, _COLLAPSE) == 0:
                collapsed.update(pages)
    return collapsed
