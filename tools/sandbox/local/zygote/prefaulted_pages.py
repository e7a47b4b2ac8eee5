"""Cheaper forks: fewer pages to share, and copying the pages that every child writes to at the fork.

After a fork, each page that either side writes to is copied in a page fault of its own, and these faults are most of
what a short program costs. Which pages they are is nearly the same each time. A page that is *pinned*, as for a device
that writes to it, must not move, so the kernel copies it for the child at the fork: without a fault, and without taking
the right to write from the parent. Memory that is registered with an io_uring is pinned; the ring does nothing else.

Every other page costs an entry in the child's page tables, made at the fork and removed at the exit. Where children
write to hardly any of a huge page's 512 pages, they become one huge page, with one entry. A child that does write to
one gets the 512 entries then, and a copy of that page alone.

Source: the kernel's `Documentation/core-api/pin_user_pages.rst`, `Documentation/admin-guide/mm/pagemap.rst`,
io_uring_register(2), proc_pid_maps(5), and madvise(2) on MADV_COLLAPSE.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import struct

from toolgym.tools.sandbox.local.kernel import syscalls

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = 8
_PRESENT, _ALONE = 1 << 63, 1 << 56
"""Bits of an entry of /proc/<pid>/pagemap: the page is present; no other process has it."""

_HUGE = 512
"""Pages of a huge page, where pages have 4 KiB; elsewhere none is made."""

_HUGE_BYTES = 2 << 20
_NEARLY = _HUGE - 16
"""How many of these must be present."""

_FEW = 8
"""How many of these children may write to: that many faults cost no more than the huge page saves."""

_COLLAPSE = 25

_SETUP, _REGISTER = 425, 427
_REGISTER_BUFFERS = 0
_PARAMETERS = 120
MAX_RANGES = 1024
"""Ranges of memory that the kernel allows to be registered."""


class PageSnapshot:
    """Shows which pages of this process's writable memory no other process has.

    Between a fork and the end of the forked process, these are the pages that either has written to. So all memory is
    allocated beforehand, and taking a snapshot writes to hardly any page.

    Args:
        proc: descriptor of a /proc that shows this process.

    Raises:
        OSError: that /proc does not show it.
    """

    def __init__(self, proc: int) -> None:
        self._pagemap = os.open("self/pagemap", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        self._mappings = []
        maps = os.open("self/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        with open(maps, encoding="utf-8", errors="replace") as lines:
            mapped = [line.split(None, 2)[:2] for line in lines]
        for addresses, rights in mapped:
            if rights == "rw-p":
                first, end = (int(address, 16) // _PAGE for address in addresses.split("-"))
                self._mappings.append((first, first * _ENTRY, [mmap.mmap(-1, (end - first) * _ENTRY)]))

    def take(self) -> None:
        """Take a snapshot, in place of the last one."""
        for _, offset, room in self._mappings:
            os.preadv(self._pagemap, room, offset)

    def unshared(self) -> set[int]:
        """The pages in the last snapshot that no other process has, as addresses divided by the size of a page."""
        found = set()
        for first, _, (room,) in self._mappings:
            for page, (entry,) in enumerate(struct.iter_unpack("Q", room), first):
                if entry & _PRESENT and entry & _ALONE:
                    found.add(page)
        return found

    def full(self) -> list[range]:
        """The ranges of pages in the last snapshot that fill, or nearly fill, the place of a huge page."""
        found = []
        for first, _, (room,) in self._mappings:
            present = bytes(entry >> 63 for (entry,) in struct.iter_unpack("Q", room))
            for start in range(-(-first // _HUGE) * _HUGE, first + len(present) - _HUGE + 1, _HUGE):
                if present.count(1, start - first, start - first + _HUGE) >= _NEARLY:
                    found.append(range(start, start + _HUGE))
        return found

    def close(self) -> None:
        """Free it."""
        os.close(self._pagemap)
        for _, _, (room,) in self._mappings:
            room.close()


def pin(pages: set[int]) -> int:
    """Pin pages for the life of this process. Returns how many the system allowed; only speed depends on it.

    The memory that may be locked is one sum for all processes of a user. Where too little of it is left for all of the
    pages, half of them are tried, and so on.

    Args:
        pages: addresses divided by the size of a page.
    """
    ranges: list[list[int]] = []
    for page in sorted(pages):
        if ranges and sum(ranges[-1]) == page:
            ranges[-1][1] += 1
        else:
            ranges.append([page, 1])
    ring = _ring()
    if ring < 0:
        return 0
    ranges = ranges[:MAX_RANGES]
    while ranges:
        registered = b"".join(struct.pack("QQ", first * _PAGE, count * _PAGE) for first, count in ranges)
        if syscalls.syscall(_REGISTER, ring, _REGISTER_BUFFERS, registered, len(ranges)) >= 0:
            return sum(count for _, count in ranges)
        if ctypes.get_errno() != errno.ENOMEM:
            break
        ranges = ranges[: len(ranges) // 2]
    os.close(ring)
    return 0


def why_not(pinned: int, wanted: int) -> str:
    """What keeps pages from being pinned here, and what helps; empty: nothing does."""
    if pinned >= wanted:
        return ""
    if not pinned:
        ring = _ring()
        if ring < 0:
            return f"io_uring is not allowed ({os.strerror(ctypes.get_errno())})"
        os.close(ring)
    needed, allowed = wanted * _PAGE >> 10, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] >> 10
    return (
        f"a template process would lock {needed} KiB, and {pinned * _PAGE >> 10} KiB fit into what is left of "
        f"RLIMIT_MEMLOCK, {allowed} KiB for all processes of its user together; raise it (`ulimit -l`, LimitMEMLOCK= "
        "for systemd, `--ulimit memlock=` for docker)"
    )


def _ring() -> int:
    """A descriptor of a new io_uring; negative: none is allowed."""
    return int(syscalls.syscall(_SETUP, 1, ctypes.create_string_buffer(_PARAMETERS)))


def collapse(places: list[range], written: set[int]) -> set[int]:
    """Make huge pages where children write to few of the pages, as far as the system allows. Returns all their pages.

    Args:
        places: see `PageSnapshot.full`.
        written: pages that children write to.
    """
    collapsed: set[int] = set()
    for pages in places:
        if _PAGE * _HUGE == _HUGE_BYTES and len(written.intersection(pages)) <= _FEW:
            size = ctypes.c_size_t(_HUGE_BYTES)
            if syscalls.libc.madvise(ctypes.c_void_p(pages.start * _PAGE), size, _COLLAPSE) == 0:
                collapsed.update(pages)
    return collapsed
