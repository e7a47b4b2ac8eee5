"""Makes a program look as if no code of the sandbox had called it.

Its callers would appear in every stack, and count towards the recursion limit. The interpreter keeps both, the running
frame and the remaining depth, in places that are not public, so this module searches for them. If it does not find one,
and in an interpreter of another version, the program sees a few frames of the sandbox.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig

_INTS = 64
_CALLS_BETWEEN = 1 if sys.version_info < (3, 12) else 0
"""Calls that count between the C function that runs a program and the program, which counts itself."""


def _known() -> bool:
    """Whether this interpreter is one for which all this was tested. Later ones may require a frame at the bottom."""
    built_as_usual = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    return built_as_usual and (3, 11) <= sys.version_info < (3, 14)


class RecursionDepth:
    """Finds where the interpreter keeps the depth and the frame of this thread. In a forked process it is the same."""

    def __init__(self) -> None:
        self._calls_left: ctypes.c_int | None = None
        self._chain = self._inside = 0
        if not _known():
            return
        state = ctypes.pythonapi.PyThreadState_Get
        state.restype = ctypes.c_void_p
        self._state: int = state()
        ints = (ctypes.c_int * _INTS).from_address(self._state)
        limit_at = _changing(ints)
        if limit_at:
            self._calls_left = ctypes.c_int.from_buffer(ints, 4 * (limit_at - 1))
        self._chain, self._inside = self._find_frame(limit_at)

    def reset_depth(self) -> None:
        """Give the next call all the depth that the recursion limit allows."""
        if self._calls_left is not None:
            self._calls_left.value = sys.getrecursionlimit() + _CALLS_BETWEEN - 1  # for leaving this one

    def frame_place(self) -> ctypes.c_void_p:
        """The place where the interpreter keeps the frame that is running. A caller that sets it to None, in a
        statement of its own, has the next code that it runs from C run without a caller. It must set it back before it
        calls Python."""
        if not self._chain:
            return ctypes.c_void_p()  # not found
        at = ctypes.c_void_p.from_address(self._chain)
        if self._inside < 0:
            return at
        return ctypes.c_void_p.from_address((at.value or 0) + self._inside)

    def _find_frame(self, limit_at: int) -> tuple[int, int]:
        """The address of the frame's place, and the offset if it is in a structure. Zeros: not found."""
        # The address of the interpreter's own structure of a frame is the second word after the object's head.
        frame = ctypes.c_size_t.from_address(id(sys._getframe()) + object.__basicsize__ + 8).value
        if sys.version_info >= (3, 13):
            words = (ctypes.c_size_t * (_INTS // 2)).from_address(self._state)
            places = [place for place, word in enumerate(words) if word == frame]
            return (self._state + 8 * places[0], -1) if len(places) == 1 else (0, 0)
        if not limit_at or ctypes.sizeof(ctypes.c_void_p) != 8:
            return 0, 0
        # Three or four more 32-bit numbers follow the limit; then comes the address of the structure.
        after, inside = (4, 8) if sys.version_info < (3, 12) else (5, 0)
        chain = self._state + (4 * (limit_at + after) + 7) // 8 * 8
        structure = ctypes.c_size_t.from_address(chain).value
        noted = ctypes.c_size_t.from_address(structure + inside).value if structure else 0
        return (chain, inside) if noted == frame else (0, 0)


def _changing(ints: ctypes.Array[ctypes.c_int]) -> int:
    """The place of the limit: at the number that changes with it, behind the depth that is left. 0: not found."""
    limit = sys.getrecursionlimit()
    places = set(range(1, len(ints)))
    try:
        for trial in (limit + 1023, limit + 511, limit):
            sys.setrecursionlimit(trial)
            places = {place for place in places if ints[place] == trial and 0 < trial - ints[place - 1] < limit}
    finally:
        sys.setrecursionlimit(limit)
    return places.pop() if len(places) == 1 else 0
