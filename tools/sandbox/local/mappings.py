"""What a process has mapped, as /proc tells, and having fewer and larger pieces of it.

A fork copies, and an exit takes down, each piece by itself, and a library makes five: its head, its code, its
constants, what the loader wrote, and its variables. With the rights of the code for the first three, and those of the
variables for the rest, the kernel joins them to two. What that gives away protects a program from its own faults alone:
it may change such rights back whenever it likes.

Source: proc_pid_maps(5), mprotect(2).
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

from toolgym.tools.sandbox.local import kernel

_READ, _WRITE, _EXECUTE = 1, 2, 4


class Piece(NamedTuple):
    """A piece of memory that is mapped in one way.

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


def pieces(proc: int) -> list[Piece]:
    """All of this process, in order.

    Args:
        proc: descriptor of a /proc that shows this process.

    Raises:
        OSError: it does not.
    """
    fd = os.open("self/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    found = []
    with open(fd, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            words = line.rstrip("\n").split(None, 5)
            start, _, end = words[0].partition("-")
            found.append(Piece(int(start, 16), int(end, 16), words[1], words[5] if len(words) > 5 else ""))
    return found


def join(proc: int) -> None:
    """Join the pieces of each library, where the system lets us.

    Args:
        proc: descriptor of a /proc that shows this process.

    Raises:
        OSError: it does not.
    """
    row = pieces(proc)
    libraries = {piece.file for piece in row if piece.rights == "r-xp" and piece.file.startswith("/")}
    variables = {(piece.start, piece.file) for piece in row if piece.rights == "rw-p"}
    for piece in row:
        if piece.rights == "r--p" and piece.file in libraries:
            rights = _READ | (_WRITE if (piece.end, piece.file) in variables else _EXECUTE)
            kernel.libc.mprotect(ctypes.c_void_p(piece.start), ctypes.c_size_t(piece.end - piece.start), rights)
