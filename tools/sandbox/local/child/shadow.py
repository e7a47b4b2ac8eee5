"""The shadow of a session's interpreter: a fork from before a cell, which continues the session if the cell ends the
interpreter.

The interpreter runs the cell, so it keeps its process id, its threads and its children. The shadow waits until its
parent, the interpreter, has ended, and then reads the session's next request: it shares the control socket and the
output pipes. No signal but SIGKILL ends it. It is a child that `wait` does not see, because no signal tells of its end.

Between two cells the interpreter replaces the shadow of the last cell by a new one, so that no cell waits for the fork.
A cell that has no such shadow makes its own.

No hook for forks runs in the interpreter (`os.register_at_fork`): a cell must not notice that it has a shadow. So the
shadow also closes its copies of pipes, sockets and terminals. Their other ends have to see when the interpreter closes
them. If the shadow takes over, sockets whose other end is closed replace them.
"""

from __future__ import annotations

import _imp
import _thread
import contextlib
import ctypes
import fcntl
import os
import random
import resource
import signal
import socket
import stat
import struct
import threading

from toolgym.tools.sandbox.local.kernel import harden, syscalls

MIN_MB = 64
"""MiB from which a shadow's size matters: below, the overhead that a session's limit allows for covers it."""

_WAIT_CLONE = -(1 << 31)  # __WCLONE as a C int: wait for a child that sends no SIGCHLD
_SET_MASK = 2
_MASK_SIZE = 8
_PARENT_ENDED = signal.SIGCONT
"""The signal at the parent's end. It may come late, when the shadow is the interpreter, which it must not end."""

_PATIENCE_S = 60
"""Seconds after which a shadow looks for its parent even if no signal tells that it has ended."""

_FIRST_FD = 3
_MAX_FDS = 1024
_TERMINALS = (5, *range(136, 144))
"""Major numbers of terminals and of their controlling ends. Source: the kernel's `admin-guide/devices.txt`."""

_PAGE = resource.getpagesize()

_ENTRY = struct.Struct("16xHx")
"""The head of a struct linux_dirent64, with the length of the entry. A name follows. Source: getdents(2)."""

_STATX = struct.Struct("28xH2xQ88xI4xII")
"""A struct statx: mode, inode, a device's major number, the file system's major and minor number. Source: statx(2)."""

_BY_DESCRIPTOR, _BASIC = 0x1000, 0x7FF  # AT_EMPTY_PATH, STATX_BASIC_STATS

# Programs can replace anything.
_kill, _waitpid, _own_id, _parent_id, _set_group = os.kill, os.waitpid, os.getpid, os.getppid, os.setpgid
_usage, _count_threads = resource.getrusage, _thread._count

_every_signal = ctypes.create_string_buffer(b"\xff" * _MASK_SIZE, _MASK_SIZE)
_mask_before = ctypes.create_string_buffer(_MASK_SIZE)
_descriptors_folder, _no_path = ctypes.create_string_buffer(b"/proc/self/fd"), ctypes.create_string_buffer(b"")
_entries, _about = ctypes.create_string_buffer(8192), ctypes.create_string_buffer(256)
_patience, _no_patience = (ctypes.c_long * 2)(_PATIENCE_S, 0), (ctypes.c_long * 2)(0, 0)


class Shadows:
    """Makes and ends the shadows of one interpreter.

    Args:
        thread_id: from `syscalls.thread_id_address`.

    Attributes:
        size_mb: how much memory the last shadow may keep for itself, in MiB, once a cell has changed all of it.
        is_used: whether a cell has run since the shadow was made.
    """

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._current = 0
        self._ended: list[int] = []
        self._closed: list[tuple[int, int, int]] = []
        self._outputs = {(about.st_dev, about.st_ino) for about in map(os.fstat, (1, 2))}
        self._size_before = _usage(resource.RUSAGE_SELF).ru_maxrss >> 10
        self.size_mb = 0
        self.is_used = False

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
        self._current, self.is_used = pid, False
        _set_group(pid, pid)  # a signal to the interpreter's group is not for the shadow
        return pid

    @property
    def current(self) -> int:
        """The process id of the shadow, or 0 if there is none."""
        return self._current

    def can_take_over(self) -> bool:
        """Return whether there is an unused shadow. A process of an earlier cell may have killed it."""
        if not self._current or self.is_used:
            return False
        with contextlib.suppress(OSError):  # a program has asked for it
            if _waitpid(self._current, os.WNOHANG | _WAIT_CLONE)[0] == 0:
                return True
        self._current = 0
        return False

    def end(self) -> None:
        """End the shadow, if there is one."""
        if self._current:
            with contextlib.suppress(OSError):
                _kill(self._current, signal.SIGKILL)
            self._ended.append(self._current)
            self._current = 0

    def await_end(self) -> None:
        """Wait until the shadows that were ended are gone: until then they count as processes of the session."""
        self._reap(0)

    def be_copy(self) -> None:
        """Forget the shadow of the origin, in a copy of the interpreter."""
        self._current, self._ended = 0, []
        self._outputs = {(about.st_dev, about.st_ino) for about in map(os.fstat, (1, 2))}

    def _reap(self, options: int = os.WNOHANG) -> None:
        for pid in [*self._ended]:
            with contextlib.suppress(OSError):  # a program has asked for it
                if _waitpid(pid, options | _WAIT_CLONE)[0] == 0:
                    continue
            self._ended.remove(pid)

    def _take_over(self, interpreter: int, threads: int) -> None:
        """Wait until the interpreter has ended. This must not release Python's global lock: other threads of the
        interpreter do not exist here, and one of them may have been about to take it."""
        syscalls.quick_syscall(_PRCTL, syscalls.PR_SET_PDEATHSIG, int(_PARENT_ENDED), 0, 0, 0, 0)
        self._close_ends()
        while _parent_id() == interpreter:
            _take_signal(_patience)
        syscalls.quick_syscall(_PRCTL, syscalls.PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0, 0)
        while _take_signal(_no_patience) > 0:  # none that was sent to the shadow may end the interpreter
            pass
        self._current, self._ended = 0, []
        if threads:
            state = random.getstate()  # the hooks seed it again, and here it has to be as before the cell
            if not _imp.lock_held():
                _imp.acquire_lock()  # as `os.fork` does: what follows releases it
            ctypes.pythonapi.PyOS_AfterFork_Child()
            random.setstate(state)
        else:
            threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
        for fd, flags, flags_of_descriptor in self._closed:
            with contextlib.suppress(OSError):  # there is no room: then it stays closed
                inheritable = not flags_of_descriptor & fcntl.FD_CLOEXEC
                _put_socket(fd, blocking=not flags & os.O_NONBLOCK, inheritable=inheritable)
        self._closed = []

    def _close_ends(self) -> None:
        """Close this process's copies of pipes, sockets and terminals. No call may release Python's global lock."""
        for fd in _open_descriptors():
            place = (fd, *_addresses(_no_path), _BY_DESCRIPTOR, _BASIC, *_addresses(_about))
            if fd == harden.CONTROL_FD or syscalls.quick_syscall(_STAT, *place, 0):
                continue
            mode, inode, major, *file_system = _STATX.unpack_from(_about)
            if (os.makedev(*file_system), inode) in self._outputs:
                continue
            if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and major in _TERMINALS):
                flags = syscalls.quick_syscall(_FCNTL, fd, fcntl.F_GETFL, 0, 0, 0, 0)
                flags_of_descriptor = syscalls.quick_syscall(_FCNTL, fd, fcntl.F_GETFD, 0, 0, 0, 0)
                syscalls.quick_syscall(_CLOSE, fd, 0, 0, 0, 0, 0)
                self._closed.append((fd, flags, flags_of_descriptor))

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


def _take_signal(patience: ctypes.Array[ctypes.c_long]) -> int:
    """Wait for a signal and take it away. Returns its number, or -1 if none came."""
    return int(
        syscalls.quick_syscall(_RT_SIGTIMEDWAIT, *_addresses(_every_signal), 0, *_addresses(patience), _MASK_SIZE, 0, 0)
    )


def _open_descriptors() -> list[int]:
    """Return the open descriptors above those of the standard streams; without a /proc, all that there can be."""
    folder = syscalls.quick_syscall(_OPENAT, -1, *_addresses(_descriptors_folder), os.O_DIRECTORY, 0, 0, 0)
    if folder < 0:
        return [*range(_FIRST_FD, min(_MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0]))]
    descriptors = []
    while True:
        size = syscalls.quick_syscall(_GETDENTS, folder, *_addresses(_entries), len(_entries), 0, 0, 0)
        if size <= 0:
            break
        rows, at = _entries.raw[:size], 0
        while at < size:
            length = _ENTRY.unpack_from(rows, at)[0]
            name = rows[at + _ENTRY.size : at + length].partition(b"\0")[0]
            if name.isdigit() and int(name) >= _FIRST_FD and int(name) != folder:
                descriptors.append(int(name))
            at += length
    syscalls.quick_syscall(_CLOSE, folder, 0, 0, 0, 0, 0)
    return descriptors


def _put_socket(fd: int, *, blocking: bool, inheritable: bool) -> None:
    """Give a descriptor a socket whose other end is closed: it has nothing to read, and writing to it fails."""
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.setblocking(blocking)
    number = ours.detach()
    if number == fd:
        os.set_inheritable(fd, inheritable)
    else:
        os.dup2(number, fd, inheritable)
        os.close(number)


_RT_SIGPROCMASK, _RT_SIGTIMEDWAIT, _PRCTL, _OPENAT, _GETDENTS, _STAT, _FCNTL, _CLOSE = map(
    syscalls.number,
    ("rt_sigprocmask", "rt_sigtimedwait", "prctl", "openat", "getdents64", "statx", "fcntl", "close"),
)


def _addresses(*buffers: ctypes.Array[ctypes.c_char] | ctypes.Array[ctypes.c_long]) -> list[int]:
    return [ctypes.addressof(buffer) for buffer in buffers]
