"""Linux system calls that Python does not offer, through ctypes.

Everything here raises `OSError` on failure. This module, like all that a template process loads, uses the standard
library alone: the template process may run on a Python that has nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import signal
import struct
import threading
from collections.abc import Iterator

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_VM, CLONE_PARENT = 0x100, 0x8000
_CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x00200000, 0x01000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 0x1000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 36, 38
PR_SET_SECUREBITS, SECURE_NO_ROOT = 28, 1 | 2  # and locked
CAPABILITY_VERSION = 0x20080522

SYS_CHROOT = 1 << 18

RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8913, 0x8914, 0x1, 0x40

MACHINE = platform.machine()
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(MACHINE, -1)
# The numbers of calls made after 2019 are the same on every architecture.
_CLOSE_RANGE, _OPENAT2 = 436, 437
_CLONE = {"x86_64": 56, "aarch64": 220}.get(MACHINE, -1)
_RT_SIGPROCMASK, _SIG_SETMASK, _ALL_SIGNALS = {"x86_64": 14, "aarch64": 135}.get(MACHINE, -1), 2, b"\xff" * 8

_PROT_READ, _PROT_WRITE, _PROT_EXEC, _MAP_PRIVATE, _MAP_ANONYMOUS = 1, 2, 4, 0x2, 0x20

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
syscall = libc.syscall
syscall.restype = ctypes.c_long


def check(result: int, what: str) -> int:
    """Return a call's result, or raise the `OSError` of its errno."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


_python = ctypes.PyDLL(None, use_errno=True)  # calls that keep Python's global lock
_python.fork.restype = ctypes.c_int
_clone = _python["syscall"]
_clone.restype = ctypes.c_long
_clone.argtypes = (ctypes.c_long,) * 6


NO_PROCESS = "no further process can be started here (see `ulimit -u`, and pids.max of the control group)"


def library_path() -> dict[str, str]:
    """The variable without which some interpreters do not find their own library, as this process has it."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def fork() -> int:
    """Fork without Python's hooks, for a process that has one thread.

    `os.fork` prepares every lock and registered module for the child: 0.7 ms and two hundred copied pages, for threads
    that a zygote does not have. The only other effect that matters is new random state, which children make themselves.
    """
    return check(_python.fork(), NO_PROCESS)


def fork_sibling(thread_id: int) -> int:
    """Fork a process whose parent is this one's parent. Like `fork`, without any hooks.

    Args:
        thread_id: what `thread_id_address` found.
    """
    flags = CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | signal.SIGCHLD
    # The last two, where the child's thread id goes and its thread's storage, change places between architectures.
    last = (thread_id, 0) if MACHINE == "x86_64" else (0, thread_id)
    return check(_clone(_CLONE, flags, 0, 0, *last), NO_PROCESS)


def end_processes(*pids: int) -> None:
    """Kill children and wait for them, in this order; 0 stands for none.

    The first process of a namespace comes last: it cannot end before its others have been reaped.
    """
    for pid in pids:
        if pid:
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        if pid:
            os.waitpid(pid, 0)


def thread_id_address() -> int:
    """Return where the C library keeps the id of this process's only thread; a fork of our own has to set it.

    The place is not public, so it is looked for: it lies in the thread's structure, holds the id, and holds the new id
    in a process that the library forks.

    Raises:
        OSError: it is not to be found, or the processor is unknown.
    """
    libc.pthread_self.restype = ctypes.c_void_p
    words = (ctypes.c_int * 255).from_address(libc.pthread_self())
    thread = threading.get_native_id()
    places = [place for place, word in enumerate(words) if word == thread]
    pid = os.fork()
    if pid == 0:
        places = [place for place in places if words[place] == os.getpid()]
        os._exit(places[0] if len(places) == 1 else 255)
    place = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if place not in places or _CLONE < 0:
        raise OSError(errno.ENOSYS, f"this C library's threads, on {MACHINE}, are unknown")
    return ctypes.addressof(words) + 4 * place


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` (CLONE_NEW*) names for new ones."""
    check(libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def setns(fd: int, kind: int) -> None:
    check(libc.setns(fd, kind), "setns")


def block_signals() -> bytes:
    """Block every signal, those too that the C library keeps for itself. Returns the mask before.

    Only where `MACHINE` is one that this module knows the numbers of.
    """
    before = ctypes.create_string_buffer(8)
    check(syscall(_RT_SIGPROCMASK, _SIG_SETMASK, _ALL_SIGNALS, before, ctypes.c_size_t(8)), "rt_sigprocmask")
    return before.raw


def restore_signals(mask: bytes) -> None:
    """Set the mask that `block_signals` returned."""
    check(syscall(_RT_SIGPROCMASK, _SIG_SETMASK, mask, None, ctypes.c_size_t(8)), "rt_sigprocmask")


def prctl(option: int, value: int = 0) -> None:
    """`prctl(option, value, 0, 0, 0)`."""
    check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    result = libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    check(result, f"mount {source} {target} {kind}")


def detach(target: str) -> None:
    check(libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    if _PIVOT_ROOT < 0:
        raise OSError(errno.ENOSYS, f"pivot_root on {MACHINE}")
    check(syscall(_PIVOT_ROOT, new.encode(), old.encode()), "pivot_root")


@contextlib.contextmanager
def files_as(uid: int) -> Iterator[None]:
    """In the block, be another user, and the group of that number, for files, /proc included. For root."""
    libc.setfsgid(uid)
    libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(os.geteuid())
        libc.setfsgid(os.getegid())


def close_from(first: int) -> None:
    """Close every descriptor from `first` on."""
    check(syscall(_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0), "close_range")


def open_beneath(folder: int, name: str) -> int:
    """Open a file for reading that lies truly below a folder: no links, no `..`, no other file system.

    Never blocks, not even on a FIFO.
    """
    how = struct.pack(
        "QQQ",
        os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC,
        0,
        RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
    )
    return check(syscall(_OPENAT2, folder, os.fsencode(name), how, ctypes.c_size_t(len(how))), f"openat2 {name}")


def pages(size: int) -> int:
    """Map this many bytes of fresh memory, and return their address."""
    address = libc.mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        check(-1, "mmap")
    return int(address)


def executable(code: bytes) -> int:
    """Put machine code into memory of its own, never writable and executable at once, and return its address.

    Raises:
        OSError: the system forbids it.
    """
    address = pages(len(code))
    ctypes.memmove(address, code, len(code))
    size = -(-len(code) // mmap.PAGESIZE) * mmap.PAGESIZE
    check(libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _PROT_READ | _PROT_EXEC), "mprotect")
    return address


def trim_heap() -> None:
    """Give freed heap back to the system, where the C library knows how."""
    trim = getattr(libc, "malloc_trim", None)
    if trim is not None:
        trim(0)
