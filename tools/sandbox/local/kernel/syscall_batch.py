"""Batches of system calls: prepared once before the fork, and made in every child.

Each object that Python code touches lies on a page that must be copied. So a child walks a list of numbers, and touches
little else. What that saves is measured by `benchmarks/sandbox.py --without syscall-batch`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

from toolgym.tools.sandbox.local.kernel import syscalls

ANY, IGNORE_ERRORS = -1, -2
"""Instead of an expected result: any but an error, and errors too."""

AT_FDCWD = -100

_HIGH = 64
_DUP3 = syscalls.number("dup3")


class SyscallBatch:
    """A list of system calls. Their results must be known beforehand. Those of descriptors are: the kernel gives the
    lowest number that is free, and a batch begins by closing all others."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._names: list[str] = []
        self._buffers: list[ctypes.Array[ctypes.c_char]] = []
        self._own: list[ctypes.c_uint32] = []

    def add(self, name: str, *arguments: int | bytes | str | None, expect: int = 0, about: str = "") -> None:
        """Add a call. Texts and bytes are passed by address, None as a null pointer; `expect` is its result, or `ANY`,
        or `IGNORE_ERRORS`; `about` is for the error's text."""
        words = [syscalls.number(name), *(self._word(argument) for argument in arguments)]
        words += [0] * (7 - len(words))
        number, a, b, c, d, e, f = words
        self._calls.append((expect, number, a, b, c, d, e, f))
        self._names.append(f"{name} {about}".strip())

    def run(self) -> None:
        """Make the calls, in order; `OSError` at the first that fails or does not return what it should."""
        for word in self._own:
            word.value = os.getpid()
        for expect, number, a, b, c, d, e, f in self._calls:
            result = syscalls.quick_syscall(number, a, b, c, d, e, f)
            if result != expect and expect != IGNORE_ERRORS and (expect != ANY or result < 0):
                self._fail(result, (expect, number, a, b, c, d, e, f))

    def _fail(self, result: int, call: tuple[int, ...]) -> None:
        name = self._names[self._calls.index(call)]  # type: ignore[arg-type]
        code = ctypes.get_errno()
        why = os.strerror(code) if result < 0 else f"gave {result} instead of {call[0]}"
        raise OSError(code, f"{name}: {why}")

    def _word(self, argument: int | bytes | str | None) -> int:
        if argument is None:
            return 0
        if isinstance(argument, int):
            return argument
        return self.keep(argument.encode() if isinstance(argument, str) else argument)

    def keep(self, data: bytes) -> int:
        self._buffers.append(ctypes.create_string_buffer(data))
        return ctypes.addressof(self._buffers[-1])

    def own_id(self, address: int) -> None:
        """Have `run` write the process id of the process that runs it to an address, as 32 bits."""
        self._own.append(ctypes.c_uint32.from_address(address))


def move_descriptor(old: int, new: int) -> None:
    if old != new:
        syscalls.check(syscalls.quick_syscall(_DUP3, old, new, 0, 0, 0, 0), "dup3")


def high_descriptor(fd: int) -> int:
    """Move a descriptor up, so that the numbers from 3 on are free for a batch. Returns the new number."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(fd)
    return moved
