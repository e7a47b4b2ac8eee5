"""Starts, limits and ends processes, and sets what the kernel lets them do."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import signal
import struct
import time
from collections.abc import Mapping, Sequence

from toolgym.tools.judge.inside.limits import file_text

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_WALL = 0x40000000
"""Wait also for a child that `fork_apart` made."""
_STACK_GUARD = 1 << 20
_SPACE_BESIDE = 256 << 20
"""Bytes of address space beside the memory of a native program: its code and libraries."""
_MAX_STACK_MB = 1024
_libc = ctypes.PyDLL(None, use_errno=True)


def guard() -> None:
    """Keep the program out of this process's memory, and become the parent of what the program leaves behind."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork_apart() -> int:
    """Fork a process that `waitpid(-1)` does not report. So that call tells whether the program left processes behind.

    Raises OSError if no process can be started.
    """
    if _CLONE is None:
        raise OSError("this kind of machine is not supported")
    ctypes.set_errno(0)
    pid = int(_libc.syscall(_CLONE, 0, 0, 0, 0, 0))
    if pid < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return pid


libc_fork = _libc.fork
"""Forks without Python's hooks, which cost most of the time. For a process that has one thread."""


def fork() -> int:
    """Fork as `libc_fork`. Raises OSError if no process can be started."""
    pid = int(libc_fork())
    if pid < 0:
        raise OSError("no process can be started")
    return pid


def check_can_fork() -> None:
    """Raise OSError if this process may not start others."""
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def reap(pid: int) -> tuple[int, float]:
    """Wait for a process that ends. Returns its exit status, and CPU seconds with its children."""
    _, status, used = os.wait4(pid, _WALL)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


libc_wait = _libc.wait4
"""Waits as `reap`, with the `arguments` of a `ChildReport` after the process id. It makes no objects."""


class ChildReport:
    """The end of a child, as the C library writes it: its status, and the times that it used.

    Attributes:
        data: what to send, for `read_report`.
        arguments: arguments of `libc_wait` after the first.
    """

    def __init__(self) -> None:
        self.data = ctypes.create_string_buffer(REPORT_SIZE)
        self.arguments = ctypes.byref(self.data), 0, ctypes.byref(self.data, _TIMES_AT)


_TIMES = struct.Struct("@i4x4l")
_TIMES_AT = 8
REPORT_SIZE = _TIMES_AT + 18 * struct.calcsize("l")
"""Bytes of a report: a status, and the C library's `struct rusage`."""


def read_report(data: bytes) -> tuple[int, float]:
    """Read the data of a `ChildReport`. Returns the same as `reap`."""
    status, user, user_micros, system, system_micros = _TIMES.unpack_from(data)
    return os.waitstatus_to_exitcode(status), user + system + (user_micros + system_micros) / 1e6


def kill(pid: int) -> None:
    with contextlib.suppress(OSError, RecursionError):
        os.kill(pid, signal.SIGKILL)


def be_dumpable() -> None:
    """Let the process of the tests see this one in /proc."""
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def unfreeze(value: object) -> None:
    """Let the garbage collector see an object again, as one of the youngest generation."""
    for function in (ctypes.pythonapi.PyObject_GC_UnTrack, ctypes.pythonapi.PyObject_GC_Track):
        function.restype = None
        function(ctypes.py_object(value))


def is_alone() -> bool:
    """Whether this process has no other threads and no children, so that a fork of it is a whole copy."""
    if _thread._count() > 0:
        return False
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def start(
    argv: Sequence[str],
    fds: Sequence[int],
    environment: Mapping[str, str],
    seconds: float,
    memory_mb: int | None,
    *,
    native: bool,
) -> int:
    """Start a program with these three streams. A `native` one may use all its memory for its stack."""
    pid = fork()
    if pid:
        return pid
    try:
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in fds]
        for target, fd in enumerate(copies):
            os.dup2(fd, target)
        os.closerange(3, 256)
        limit_cpu(seconds)
        if native:
            _free_whole_stack(memory_mb)
        os.execvpe(argv[0], list(argv), environment)
    except BaseException as error:  # noqa: BLE001  this process must end here
        os.write(2, f"{argv[0]}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _free_whole_stack(memory_mb: int | None) -> None:
    """Let a stack grow without limit, and limit the address space instead.

    A limit of the stack is also the size of each thread's stack, so a large one would leave no memory for threads.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if hard == resource.RLIM_INFINITY:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = [limit for limit in (most, (memory_mb or 0) << 20) if limit > 0]
        if wanted:
            space = min(wanted) + _SPACE_BESIDE
            resource.setrlimit(resource.RLIMIT_AS, (space, space))
        resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, hard))


def end_leftovers() -> bool:
    """End processes that the program left behind. Returns whether none is left."""
    for _ in range(20):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        try:
            children = file_text(f"/proc/self/task/{os.getpid()}/children").split()
        except OSError:
            return False
        for child in map(int, children):
            try:
                if os.waitpid(child, os.WNOHANG)[0] == 0:  # the loader is not one that this call knows
                    os.kill(child, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.001)
    return False


def limit_cpu(seconds: float) -> None:
    """Limit this process and each that it starts. The watch is more exact, and ends the program before."""
    most = int(seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def limit_memory(memory_mb: int | None) -> None:
    """Lower the limit of private memory, if this is less than the sandbox allows."""
    if memory_mb is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory_mb << 20
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def free_stack(memory_mb: int | None) -> None:
    """Let the stack of this thread grow as far as memory and the address space allow.

    The kernel looks at the limit whenever a stack grows. What lies below the stack has been there since the interpreter
    began, so this looks for the room.
    """
    wanted = min(memory_mb or _MAX_STACK_MB, _MAX_STACK_MB) << 20
    end = ctypes.c_void_p.in_dll(_libc, "__libc_stack_end").value
    if not end:
        return
    mmap, munmap = _libc.mmap, _libc.munmap
    mmap.restype = ctypes.c_void_p
    mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    used = (8 << 20) if soft == resource.RLIM_INFINITY else soft
    while wanted > used:
        begin = (end - wanted - _STACK_GUARD) & ~0xFFF
        length = wanted - used
        # PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE
        address = mmap(begin, length, 0, 0x104022, -1, 0)
        free = address == begin
        if address not in (None, ctypes.c_void_p(-1).value):
            munmap(address, length)
        if free:
            break
        wanted //= 2
    if wanted > used and (hard == resource.RLIM_INFINITY or wanted <= hard):
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
