"""System calls that are known beforehand: made ready once, before the fork, and made in every child.

What a child does to itself costs hardly any time in the kernel. What costs is the Python that asks for it: each object
that it touches lies on a page that the child shares with the template, and must be copied. So a child walks a list of
numbers, and touches little else.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

from toolgym.tools.sandbox.local import kernel

# name: (x86_64, aarch64)
_NUMBERS = {
    "capset": (126, 91),
    "chdir": (80, 49),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup3": (292, 24),
    "fchmodat": (268, 53),
    "fchownat": (260, 54),
    "ioctl": (16, 29),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "mkdirat": (258, 34),
    "mount": (165, 40),
    "openat": (257, 56),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "setgroups": (116, 159),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setsid": (112, 157),
    "socket": (41, 198),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "write": (1, 64),
}
_INDEX = {"x86_64": 0, "aarch64": 1}.get(kernel.MACHINE, 0)
ANY, NEVERMIND = -1, -2
"""Instead of an expected result: whatever is no error, and errors too."""

AT_FDCWD = -100

_HIGH = 64

_here = ctypes.PyDLL(None, use_errno=True)  # keeps Python's global lock: nobody else wants it
_call = _here["syscall"]
_call.restype = ctypes.c_long
_call.argtypes = (ctypes.c_long,) * 7


class Script:
    """A list of system calls.

    Their results must be known as well, descriptors for example: the kernel gives the lowest that is free, so whoever
    closes all others first knows it.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[int, int, int, int, int, int, int, int]] = []
        self._names: list[str] = []
        self._buffers: list[ctypes.Array[ctypes.c_char]] = []
        self._own: list[ctypes.c_uint32] = []

    def add(self, name: str, *arguments: int | bytes | str | None, expect: int = 0, about: str = "") -> None:
        """Add a call.

        Args:
            name: of the system call.
            arguments: numbers; texts and bytes are passed by address, None as a null pointer.
            expect: its result; see `ANY` and `NEVERMIND`.
            about: for the error's text.
        """
        words = [_NUMBERS[name][_INDEX], *(self._word(one) for one in arguments)]
        words += [0] * (7 - len(words))
        one, two, three, four, five, six, seven = words
        self._calls.append((expect, one, two, three, four, five, six, seven))
        self._names.append(f"{name} {about}".strip())

    def run(self) -> None:
        """Make the calls, in order.

        Raises:
            OSError: one failed, or did not return what it should; the rest are not made.
        """
        for word in self._own:
            word.value = os.getpid()
        for expect, number, a, b, c, d, e, f in self._calls:
            result = _call(number, a, b, c, d, e, f)
            if result != expect and expect != NEVERMIND and (expect != ANY or result < 0):
                self._complain(result, (expect, number, a, b, c, d, e, f))

    def _complain(self, result: int, call: tuple[int, ...]) -> None:
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
        """Keep bytes in memory as long as the script, and return their address."""
        self._buffers.append(ctypes.create_string_buffer(data))
        return ctypes.addressof(self._buffers[-1])

    def own_id(self, address: int) -> None:
        """Have the process id of whoever runs the script written to an address of it: an unsigned of 32 bits."""
        self._own.append(ctypes.c_uint32.from_address(address))


def move_descriptor(old: int, new: int) -> None:
    """Let the number `new` mean what `old` does, in this process and the programs that it starts."""
    if old != new and _call(_NUMBERS["dup3"][_INDEX], old, new, 0, 0, 0, 0) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"dup3: {os.strerror(code)}")


def high_descriptor(fd: int) -> int:
    """Move a descriptor up, so that the numbers from 3 on are free for a script. Returns the new number."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(fd)
    return moved
