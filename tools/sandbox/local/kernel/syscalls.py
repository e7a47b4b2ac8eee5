"""Linux system calls that Python does not offer, through ctypes. All raise `OSError` on failure.

Like all that a template process loads, this needs only the standard library: its Python may have nothing else.
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
PR_SET_NAME, PR_GET_NAME = 15, 16
CAPABILITY_VERSION = 0x20080522

SYS_CHROOT = 1 << 18

RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8

SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40

_KCMP_VM = 1

_SIG_SETMASK, _ALL_SIGNALS = 2, b"\xff" * 8

MACHINE = platform.machine()
MACHINES = ("x86_64", "aarch64")

NUMBERS = {
    "_sysctl": (156, -1), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280),
    "cachestat": (451, 451), "capset": (126, 91), "chdir": (80, 49), "chmod": (90, -1), "chown": (92, -1),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220),
    "clone3": (435, 435), "close": (3, 57), "close_range": (436, 436), "delete_module": (176, 106), "dup3": (292, 24),
    "fallocate": (285, 47), "fanotify_init": (300, 262), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "fchown": (93, 55), "fchownat": (260, 54), "fcntl": (72, 25), "file_setattr": (469, 469),
    "finit_module": (313, 273), "fork": (57, -1), "fremovexattr": (199, 16), "fsconfig": (431, 431),
    "fsetxattr": (190, 7), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "futex": (202, 98),
    "futimesat": (261, -1), "getdents64": (217, 61), "init_module": (175, 105), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, -1),
    "iopl": (172, -1), "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "kill": (62, 129), "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446), "lchown": (94, -1),
    "listmount": (458, 458), "lookup_dcookie": (212, 18), "lremovexattr": (198, 15), "lsetxattr": (189, 6),
    "lsm_set_self_attr": (460, 460), "mbind": (237, 235), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "mkdirat": (258, 34), "modify_ldt": (154, -1), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180),
    "mseal": (462, 462), "msgget": (68, 186), "name_to_handle_at": (303, 264), "nfsservctl": (180, 42), "open": (2, -1),
    "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467), "openat": (257, 56),
    "openat2": (437, 437), "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prctl": (157, 167), "prlimit64": (302, 261),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "removexattr": (197, 14), "removexattrat": (466, 466), "request_key": (249, 218),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigqueueinfo": (129, 138),
    "rt_sigtimedwait": (128, 137), "rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "semget": (64, 190),
    "set_mempolicy": (238, 237), "set_tid_address": (218, 96), "setdomainname": (171, 162), "setgroups": (116, 159),
    "sethostname": (170, 161), "setns": (308, 268), "setpriority": (141, 140), "setresgid": (119, 149),
    "setresuid": (117, 147), "setrlimit": (160, 164), "setsid": (112, 157), "settimeofday": (164, 170),
    "setxattr": (188, 5), "setxattrat": (463, 463), "shmat": (30, 196), "shmctl": (31, 195), "shmget": (29, 194),
    "socket": (41, 198), "statmount": (457, 457), "statx": (332, 291), "swapoff": (168, 225), "swapon": (167, 224),
    "sysfs": (139, -1), "syslog": (103, 116), "tgkill": (234, 131), "tkill": (200, 130), "truncate": (76, 45),
    "umount2": (166, 39), "unshare": (272, 97), "uselib": (134, -1), "userfaultfd": (323, 282), "ustat": (136, -1),
    "utime": (132, -1), "utimensat": (280, 88), "utimes": (235, -1), "vfork": (58, -1), "vhangup": (153, 58),
    "vmsplice": (278, 75), "write": (1, 64),
}  # fmt: skip
"""Numbers by `MACHINES`; -1: there is no such call. Source: the kernel's `unistd_64.h` and `asm-generic/unistd.h`."""


def number(name: str) -> int:
    """The number of a system call on this processor; -1: there is none, or it is not known."""
    return NUMBERS[name][MACHINES.index(MACHINE)] if MACHINE in MACHINES else -1


_CLONE, _RT_SIGPROCMASK = number("clone"), number("rt_sigprocmask")

_PROT_READ, _PROT_WRITE, _PROT_EXEC, _MAP_PRIVATE, _MAP_ANONYMOUS = 1, 2, 4, 0x2, 0x20

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
syscall = libc.syscall
syscall.restype = ctypes.c_long


def check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


_python = ctypes.PyDLL(None, use_errno=True)  # calls that keep Python's global lock
_python.fork.restype = ctypes.c_int
quick_syscall = _python["syscall"]
quick_syscall.restype = ctypes.c_long
quick_syscall.argtypes = (ctypes.c_long,) * 7


NO_PROCESS = "no further process can be started here (see `ulimit -u`, and pids.max of the control group)"


def library_path() -> dict[str, str]:
    """The variable without which some interpreters do not find their own library, as this process has it."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def fork() -> int:
    """Fork without Python's hooks, for a process that has one thread. `os.fork` prepares every lock and registered
    module for threads that a zygote does not have: 0.7 ms and two hundred copied pages."""
    return check(_python.fork(), NO_PROCESS)


def fork_sibling(thread_id: int) -> int:
    """Fork a process whose parent is this one's parent, without hooks. `thread_id` is from `thread_id_address`."""
    return _clone(CLONE_PARENT | signal.SIGCHLD, thread_id)


def fork_unseen(thread_id: int) -> int:
    """Fork a child without hooks that `wait` does not see, unless it is asked for such children (`__WCLONE`)."""
    return _clone(0, thread_id)


def _clone(flags: int, thread_id: int) -> int:
    flags |= _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID
    # The last two, where the child's thread id goes and its thread's storage, change places between architectures.
    last = (thread_id, 0) if MACHINE == "x86_64" else (0, thread_id)
    return check(quick_syscall(_CLONE, flags, 0, 0, *last, 0), NO_PROCESS)


def end_processes(*pids: int) -> None:
    """Kill children and wait for them, in this order; 0 stands for none. The first process of a namespace comes last:
    it cannot end before its others have been reaped."""
    for pid in pids:
        if pid:
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        if pid:
            os.waitpid(pid, 0)


def thread_id_address() -> int:
    """The place where the C library keeps the id of this process's only thread; a fork of our own has to set it. It is
    not public, but holds the id, and the new one in a process that the library forks."""
    libc.pthread_self.restype = ctypes.c_void_p
    words = (ctypes.c_int * 255).from_address(libc.pthread_self())
    thread = threading.get_native_id()
    places = [place for place, word in enumerate(words) if word == thread]
    pid = os.fork()
    if pid == 0:
        places = [place for place in places if words[place] == os.getpid()]
        os._exit(places[0] if len(places) == 1 else 255)
    place = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if place not in places or MACHINE not in MACHINES:
        raise OSError(errno.ENOSYS, f"this C library's threads, on {MACHINE}, are unknown")
    return ctypes.addressof(words) + 4 * place


def unshare(flags: int) -> None:
    check(libc.unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def setns(fd: int, kind: int) -> None:
    check(libc.setns(fd, kind), "setns")


def block_signals() -> bytes:
    """Block every signal, those too that the C library keeps for itself. Returns the mask before."""
    before = ctypes.create_string_buffer(8)
    check(syscall(_RT_SIGPROCMASK, _SIG_SETMASK, _ALL_SIGNALS, before, ctypes.c_size_t(8)), "rt_sigprocmask")
    return before.raw


def restore_signals(mask: bytes) -> None:
    check(syscall(_RT_SIGPROCMASK, _SIG_SETMASK, mask, None, ctypes.c_size_t(8)), "rt_sigprocmask")


def prctl(option: int, value: int = 0) -> None:
    check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    result = libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    check(result, f"mount {source} {target} {kind}")


def detach(target: str) -> None:
    check(libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def copy_mount(folder: str) -> int:
    """Return a descriptor of a copy of what is mounted at a folder, for another namespace."""
    flags = ctypes.c_uint(1 | os.O_CLOEXEC)  # OPEN_TREE_CLONE
    return check(syscall(number("open_tree"), -100, folder.encode(), flags), f"open_tree {folder}")


def attach_mount(fd: int, folder: str) -> None:
    """Mount what `copy_mount` returned at a folder of this namespace."""
    empty_path = ctypes.c_uint(4)  # MOVE_MOUNT_F_EMPTY_PATH
    check(syscall(number("move_mount"), fd, b"", -100, folder.encode(), empty_path), f"move_mount {folder}")


def pivot_root(new: str, old: str) -> None:
    check(syscall(number("pivot_root"), new.encode(), old.encode()), "pivot_root")


@contextlib.contextmanager
def files_as(uid: int) -> Iterator[None]:
    libc.setfsgid(uid)
    libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(os.geteuid())
        libc.setfsgid(os.getegid())


@contextlib.contextmanager
def opened(name: str, flags: int, folder: int | None = None) -> Iterator[int]:
    """A descriptor of a file, relative to that of a folder, until the end of the block."""
    fd = os.open(name, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def close_from(first: int) -> None:
    check(syscall(number("close_range"), ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), 0), "close_range")


def open_beneath(folder: int, name: str) -> int:
    """Open a file for reading that lies truly below a folder: no links, no `..`, no other file system. Never blocks."""
    how = struct.pack(
        "QQQ",
        os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC,
        0,
        RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
    )
    return check(
        syscall(number("openat2"), folder, os.fsencode(name), how, ctypes.c_size_t(len(how))), f"openat2 {name}"
    )


def pages(size: int) -> int:
    address = libc.mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        check(-1, "mmap")
    return int(address)


def executable(code: bytes) -> int:
    """Put machine code into memory of its own, never writable and executable at once, and return its address."""
    address = pages(len(code))
    ctypes.memmove(address, code, len(code))
    size = -(-len(code) // mmap.PAGESIZE) * mmap.PAGESIZE
    check(libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _PROT_READ | _PROT_EXEC), "mprotect")
    return address


def share_memory(pid: int, other: int) -> bool:
    """Whether two processes have the same memory, as threads have. False if this one may not look into both."""
    return int(syscall(number("kcmp"), pid, other, _KCMP_VM, 0, 0)) == 0


def seal(address: int, size: int) -> None:
    """Keep pages as they are until this process ends: see mseal(2), since Linux 6.10."""
    check(syscall(number("mseal"), ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_ulong(0)), "mseal")


def trim_heap() -> None:
    trim = getattr(libc, "malloc_trim", None)
    if trim is not None:
        trim(0)
