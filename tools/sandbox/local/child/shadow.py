"""The shadow of a session's interpreter: a fork from before a cell, which continues the session if the cell ends the
interpreter.

The interpreter runs the cell, so it keeps its process id, its threads and its children. The shadow waits until its
parent, the interpreter, has ended, and then reads the session's next request: it shares the control socket and the
output pipes. It holds no descriptor of its own, and no signal but SIGKILL ends it. It is a child that `wait` does not
see, because no signal tells of its end. If the cell ends well, the interpreter kills it.

No hook for forks runs in the interpreter (`os.register_at_fork`): a cell must not notice that it has a shadow.
"""

from __future__ import annotations

import _imp
import _thread
import contextlib
import ctypes
import os
import random
import resource
import signal
import threading

from toolgym.tools.sandbox.local.kernel import syscalls

MIN_MB = 64
"""MiB from which a shadow's size matters: below, the overhead that a session's limit allows for covers it."""

_WAIT_CLONE = -(1 << 31)  # __WCLONE as a C int: wait for a child that sends no SIGCHLD
_SET_MASK = 2
_MASK_SIZE = 8
_SETTLED_S = 1
_PAGE = resource.getpagesize()

# Programs can replace anything.
_kill, _waitpid, _own_id, _parent_id, _set_group = os.kill, os.waitpid, os.getpid, os.getppid, os.setpgid
_usage, _count_threads = resource.getrusage, _thread._count

_every_signal = ctypes.create_string_buffer(b"\xff" * _MASK_SIZE, _MASK_SIZE)
_mask_before = ctypes.create_string_buffer(_MASK_SIZE)
_patience = (ctypes.c_long * 2)(_SETTLED_S, 0)


class Shadows:
    """Makes and ends the shadows of one interpreter. `thread_id` is from `syscalls.thread_id_address`; `size_mb` is how
    much memory the last shadow may keep for itself, once a cell has changed all that was there."""

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._current = 0
        self._ended: list[int] = []
        self._size_before = _usage(resource.RUSAGE_SELF).ru_maxrss >> 10
        self.size_mb = 0

    def start(self) -> int:
        """Fork the shadow. Returns its process id, or 0 in the shadow itself, once the interpreter has ended.

        Raises OSError if there is no room for it: then the cell runs without one.
        """
        self._reap()
        self.size_mb = self._size()
        interpreter, threads = _own_id(), _count_threads()
        syscalls.quick_syscall(_RT_SIGPROCMASK, _SET_MASK, *_addresses(_every_signal, _mask_before), _MASK_SIZE, 0, 0)
        try:
            try:
                pid = syscalls.fork_unseen(self._thread_id)
            except BlockingIOError:  # there are too many processes: some may have ended, and nobody has asked how
                _reap_children()
                pid = syscalls.fork_unseen(self._thread_id)
            if pid == 0:
                self._take_over(interpreter, threads)
                return 0
        finally:
            syscalls.quick_syscall(_RT_SIGPROCMASK, _SET_MASK, *_addresses(_mask_before), 0, _MASK_SIZE, 0, 0)
        self._current = pid
        _set_group(pid, pid)  # a signal to the interpreter's group is not for the shadow
        return pid

    @property
    def any(self) -> bool:
        return bool(self._current)

    def end(self) -> None:
        """End the shadow, if there is one: the cell has ended by itself."""
        if self._current:
            with contextlib.suppress(OSError):
                _kill(self._current, signal.SIGKILL)
            self._ended.append(self._current)
            self._current = 0

    def _reap(self) -> None:
        for pid in [*self._ended]:
            with contextlib.suppress(OSError):  # a program has asked for it
                if _waitpid(pid, os.WNOHANG | _WAIT_CLONE)[0] == 0:
                    continue
            self._ended.remove(pid)

    def _take_over(self, interpreter: int, threads: int) -> None:
        """Wait until the interpreter has ended. This must not release Python's global lock: other threads of the
        interpreter do not exist here, and one of them may have been about to take it."""
        syscalls.quick_syscall(_PRCTL, syscalls.PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0, 0)
        while _parent_id() == interpreter:
            syscalls.quick_syscall(_RT_SIGTIMEDWAIT, *_addresses(_every_signal), 0, *_addresses(_patience), 8, 0, 0)
        syscalls.quick_syscall(_PRCTL, syscalls.PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0, 0)
        self._current, self._ended = 0, []
        if threads:
            state = random.getstate()  # the hooks seed it again, and here it has to be as before the cell
            if not _imp.lock_held():
                _imp.acquire_lock()  # as `os.fork` does: what follows releases it
            ctypes.pythonapi.PyOS_AfterFork_Child()
            random.setstate(state)
        else:
            threading.main_thread()._set_native_id()  # type: ignore[attr-defined]

    def _size(self) -> int:
        """Return how many MiB the interpreter has in memory beyond what it began with; 0 if it is little."""
        size = (_usage(resource.RUSAGE_SELF).ru_maxrss >> 10) - self._size_before
        if size < MIN_MB:
            return 0
        try:
            with open("/proc/self/statm", "rb", buffering=0) as file:
                return max(0, (int(file.read().split()[1]) * _PAGE >> 20) - self._size_before)
        except OSError:  # no /proc: then the most that it has ever had
            return size


def _reap_children() -> None:
    with contextlib.suppress(OSError):  # there is none
        while _waitpid(-1, os.WNOHANG)[0]:
            pass


_RT_SIGPROCMASK, _RT_SIGTIMEDWAIT, _PRCTL = map(syscalls.number, ("rt_sigprocmask", "rt_sigtimedwait", "prctl"))


def _addresses(*buffers: ctypes.Array[ctypes.c_char] | ctypes.Array[ctypes.c_long]) -> list[int]:
    return [ctypes.addressof(buffer) for buffer in buffers]
