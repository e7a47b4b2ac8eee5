"""What a process has mapped, as /proc shows it, and joining mappings to have fewer and larger ones.

A fork copies each mapping by itself, and an exit removes each by itself. A library has five: its head, its code, its
constants, what the loader wrote, and its variables. With the rights of the code for the first three, and those of the
variables for the rest, the kernel joins them to two. The rights that this gives away protect a program only from its
own faults: it may change such rights itself at any time.

Source: proc_pid_maps(5), mprotect(2).
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

from toolgym.tools.sandbox.local.kernel import syscalls

_READ, _WRITE, _EXECUTE = 1, 2, 4


class Mapping(NamedTuple):
    """A range of memory that is mapped in one way.

    Attributes:
        start: its first address.
        end: the first address beyond it.
        rights: as four letters, `rw-p` for example.
        file: what is mapped there; empty: nothing.
    """

    start: int
    end: int
    rights: str
    file: str


def mappings(proc: int) -> list[Mapping]:
    """All mappings of this process, in order of their addresses.

    Args:
        proc: descriptor of a /proc that shows this process.

    Raises:
        OSError: that /proc does not show it.
    """
    fd = os.open("self/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    found = []
    with open(fd, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.rstrip("\n").split(None, 5)
            start, _, end = words[0].partition("-")
            found.append(Mapping(int(start, 16), int(end, 16), words[1], words[5] if len(words) > 5 else ""))
    return found


def join(proc: int) -> None:
    """Join the mappings of each library, where the system allows it.

    Args:
        proc: descriptor of a /proc that shows this process.

    Raises:
        OSError: that /proc does not show it.
    """
    row = mappings(proc)
    libraries = {mapping.file for mapping in row if mapping.rights == "r-xp" and mapping.file.startswith("/")}
    variables = {(mapping.start, mapping.file) for mapping in row if mapping.rights == "rw-p"}
    for mapping in row:
        if mapping.rights == "r--p" and mapping.file in libraries:
            rights = _READ | (_WRITE if (mapping.end, mapping.file) in variables else _EXECUTE)
            syscalls.libc.mprotect(ctypes.c_void_p(mapping.start), ctypes.c_size_t(mapping.end - mapping.start), rights)
