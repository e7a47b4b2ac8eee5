"""Cheaper forks: pages that every child writes to are copied at the fork, and huge pages hold what few write to.

After a fork each page that either side writes to is copied in a fault of its own. The kernel copies a *pinned* page at
the fork instead: a device may write to it, so it must not move. Memory that is registered with an io_uring is pinned.

Every other page costs an entry in the child's page tables, made at the fork and removed at the exit; a huge page costs
one for its 512 pages. A child that does write to one gets the 512 entries then, and a copy of that page only.

Source: the kernel's `Documentation/core-api/pin_user_pages.rst`, `Documentation/admin-guide/mm/pagemap.rst`,
io_uring_register(2), proc_pid_maps(5), and madvise(2) on MADV_COLLAPSE.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import struct

from toolgym.tools.sandbox.local.kernel import syscalls

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = 8
_PRESENT, _EXCLUSIVE = 1 << 63, 1 << 56
"""Bits of an entry of /proc/<pid>/pagemap: the page is present; no other process has it."""

_HUGE = 512
"""Pages of a huge page, if pages have 4 KiB; else none is made."""

_HUGE_BYTES = 2 << 20
_NEARLY = _HUGE - 16  # must be present

_FEW = 8
"""How many of these children may write to: that many faults cost no more than the huge page saves."""

_COLLAPSE = 25

_REGISTER_BUFFERS = 0
_MAX_RANGES = 1024  # that a ring registers


class PageSnapshot:
    """Shows which pages of this process's writable memory no other process has: between a fork and the end of the
    forked process, those that either has written to. Taking a snapshot writes to hardly any page. `OSError` if `proc`
    does not show this process."""

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
        for _, offset, room in self._mappings:
            os.preadv(self._pagemap, room, offset)

    def unshared(self) -> set[int]:
        """The pages that no other process had, as addresses divided by the size of a page."""
        return {
            page
            for first, _, (room,) in self._mappings
            for page, (entry,) in enumerate(struct.iter_unpack("Q", room), first)
            if entry & _PRESENT and entry & _EXCLUSIVE
        }

    def full(self) -> list[range]:
        ranges = []
        for first, _, (room,) in self._mappings:
            present = bytes(entry >> 63 for (entry,) in struct.iter_unpack("Q", room))
            for start in range(-(-first // _HUGE) * _HUGE, first + len(present) - _HUGE + 1, _HUGE):
                if present.count(1, start - first, start - first + _HUGE) >= _NEARLY:
                    ranges.append(range(start, start + _HUGE))
        return ranges

    def close(self) -> None:
        os.close(self._pagemap)
        for _, _, (room,) in self._mappings:
            room.close()


def collapse(ranges: list[range], written: set[int]) -> set[int]:
    """Make huge pages of the `ranges` in which children have `written` to few pages, as far as the system allows.
    Returns the pages in them."""
    collapsed: set[int] = set()
    for pages in ranges:
        if _PAGE * _HUGE == _HUGE_BYTES and len(written.intersection(pages)) <= _FEW:
            size = ctypes.c_size_t(_HUGE_BYTES)
            if syscalls.libc.madvise(ctypes.c_void_p(pages.start * _PAGE), size, _COLLAPSE) == 0:
                collapsed.update(pages)
    return collapsed


def pin(pages: set[int]) -> None:
    """Have the kernel copy `pages` at each fork of this process, or half of them and so on: RLIMIT_MEMLOCK, one sum for
    all processes of a user, may have too little left."""
    numbered = itertools.groupby(enumerate(sorted(pages)), lambda pair: pair[1] - pair[0])
    buffers = [[page * _PAGE for _, page in adjacent] for _, adjacent in numbered][:_MAX_RANGES]
    parameters = ctypes.create_string_buffer(120)  # bytes of struct io_uring_params
    ring = syscalls.syscall(syscalls.number("io_uring_setup"), 1, parameters)  # stays open as long as this process
    while ring >= 0 and buffers:
        packed = b"".join(struct.pack("QQ", buffer[0], len(buffer) * _PAGE) for buffer in buffers)
        if syscalls.syscall(syscalls.number("io_uring_register"), ring, _REGISTER_BUFFERS, packed, len(buffers)) == 0:
            break
        buffers = buffers[: len(buffers) // 2]
