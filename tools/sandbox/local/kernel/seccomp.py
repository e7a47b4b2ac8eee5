"""Seccomp: which system calls a process may make.

Two classic BPF filters, one on top of the other. The *outer* one is long, and is installed once in the broker and once
in the zygote: calls that neither they nor a program ever need. The *child's* is short, because every child installs it:
calls that broker and zygote need, and checks of arguments.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Sequence

from toolgym.tools.sandbox.local.kernel import syscalls
from toolgym.tools.sandbox.local.kernel.syscall_batch import SyscallBatch

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

OUTER_NEEDS = (
    "mount",
    "umount2",
    "unshare",
    "setns",
    "sethostname",
    "memfd_create",
    "chroot",
    "kcmp",
    "open_tree",
    "move_mount",
)
_OWN = {
    "prlimit64": (0,), "sched_setaffinity": (0,), "sched_setattr": (0,), "sched_setparam": (0,),
    "sched_setscheduler": (0,), "setpriority": (0, 0), "ioprio_set": (1, 0),
}  # fmt: skip
"""Calls that can change another process of the same user, and the first arguments with which they change the caller.
With PRIO_USER or PRIO_PGRP, or their like, 0 is not the caller, but all processes of its user or group."""

_SIGNALLING = ("kill", "tgkill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
TIMES = ("utime", "utimes", "futimesat", "utimensat")
ATTRIBUTES = (
    "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat",
    "file_setattr",
)  # fmt: skip
METADATA = ("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", *TIMES, *ATTRIBUTES)
"""Calls that change a file's metadata, which Landlock does not cover."""

_FORBIDDEN = (
    "_sysctl", "acct", "add_key", "adjtimex", "bpf", "cachestat", "clock_adjtime", "clock_settime", "delete_module",
    "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter",
    "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl",
    "listmount", "lookup_dcookie", "lsm_set_self_attr", "mbind", "memfd_secret", "migrate_pages", "modify_ldt",
    "mount_setattr", "move_pages", "mq_open", "msgget", "name_to_handle_at", "nfsservctl",
    "open_by_handle_at", "open_tree_attr", "perf_event_open", "personality", "pidfd_getfd", "pivot_root",
    "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "quotactl_fd",
    "reboot", "request_key", "semget", "set_mempolicy", "setdomainname", "settimeofday", "shmat", "shmctl", "shmget",
    "statmount", "swapoff", "swapon", "sysfs", "syslog", "uselib", "userfaultfd", "ustat", "vhangup", "vmsplice",
)  # fmt: skip

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_DENY, _ABSENT, _PRETEND = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x00050000
_UNSUPPORTED = 0x00050000 | errno.EOPNOTSUPP
_NUMBER_AT, _ARCH_AT, _ARG0_AT, _ARG1_AT, _ARG2_AT = 0, 4, 16, 24, 32
_NAMESPACE_FLAGS = 0x7E020080
_CLONE_THREAD = 0x00010000
_CLONE_PARENT = 0x00008000
"""Would make a child of the broker, which does not know it and never reaps it: its namespace could not end."""
_OWN_ID = 0x7FEDCBA9
"""Stands for the process id of the process that installs the filter; greater than any real one."""
_SIGNAL_OWNERS = (8, 15)
"""F_SETOWN and F_SETOWN_EX: which process gets a signal when a file is ready."""
_RLIMIT_CORE, _RLIMIT_NPROC = 4, 6
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FS_IOC_SETFLAGS, _FS_IOC_SETVERSION, _FS_IOC_FSSETXATTR = 0x40086602, 0x40087602, 0x401C5820
"""Change the file behind a descriptor, even one that was opened for reading."""
_IOCTLS = (_TIOCSTI, _TIOCLINUX, _FS_IOC_SETFLAGS, _FS_IOC_SETVERSION, _FS_IOC_FSSETXATTR)
_RESERVING = (0x40305828, 0x4030582A, 0x40305839)
"""FS_IOC_RESVSP, FS_IOC_RESVSP64 and FS_IOC_ZERO_RANGE: `fallocate` by another name."""


def supported() -> bool:
    return syscalls.MACHINE in _AUDIT_ARCH


def outer_filter(*, needs: Iterable[str] = OUTER_NEEDS) -> bytes:
    """The outer filter. `needs` are the calls of `OUTER_NEEDS` that it must allow."""
    denied = {*_FORBIDDEN, *OUTER_NEEDS} - set(needs)
    return _head() + _deny(denied) + _instruction(_RETURN, 0, 0, _ALLOW)


def child_filter(
    *,
    fork: bool,
    network: bool,
    sockets: bool,
    frozen: Iterable[str],
    own_only: bool,
    chroot: bool = False,
    truncate: bool = True,
    signals: bool = True,
    reserve: bool = True,
    processes: bool = True,
) -> bytes:
    """The short filter of a child.

    Args:
        fork: whether the program may start processes; threads it always may.
        network: whether it may make internet sockets, besides UNIX ones, which it may if `sockets` is set.
        frozen: calls that do nothing and report success, where a refusal would break harmless copying of files.
        own_only: whether a program may change limits and priorities only of itself, as process 0.
        chroot: whether a process that has the capability for it may change its root, as the fork of a session does.
        truncate: whether files may be truncated that are not open for writing. Landlock checks that since ABI 3.
        signals: whether signals may be sent to other processes. Landlock confines them since ABI 6. If not, `write`
            puts the process id in.
        reserve: whether it may reserve disk space for a file, which takes no time, so that no watchdog sees it in time.
        processes: whether it may change its limit of processes, up to the hard one.
    """
    parts = [_head(), _when("clone3", _ABSENT)]  # the C library falls back to clone, whose flags a filter can check
    if fork:
        parts.append(_when_arg("clone", _ARG0_AT, [(_ANY_BIT, _NAMESPACE_FLAGS | _CLONE_PARENT)], deny_on_match=True))
    else:
        parts.append(_when_arg("clone", _ARG0_AT, [(_ANY_BIT, _CLONE_THREAD)], deny_on_match=False))
        parts += [_when("fork", _DENY), _when("vfork", _DENY)]
    families = [_AF_UNIX, _AF_INET, _AF_INET6] if network else [_AF_UNIX]
    if sockets:
        parts.append(_when_arg("socket", _ARG0_AT, [(_EQUAL, family) for family in families], deny_on_match=False))
    else:
        parts.append(_when("socket", _DENY))
    ioctls = _IOCTLS if reserve else (*_IOCTLS, *_RESERVING)
    parts.append(_when_arg("ioctl", _ARG1_AT, [(_EQUAL, command) for command in ioctls], deny_on_match=True))
    if not reserve:
        parts.append(_when("fallocate", _UNSUPPORTED))  # the C library then writes zeros, which takes time
    parts += [_when(name, _PRETEND) for name in frozen]
    for kind, verdict in [(_RLIMIT_CORE, _PRETEND), *([] if processes else [(_RLIMIT_NPROC, _DENY)])]:
        parts.append(_keeping_limit("setrlimit", _ARG0_AT, None, kind, verdict))
        parts.append(_keeping_limit("prlimit64", _ARG1_AT, _ARG2_AT, kind, verdict))
    if not truncate:
        parts += [
            _when("truncate", _DENY),
            _when("openat2", _ABSENT),
        ]  # its flags lie in memory, where a filter cannot check them
        parts += [_writing_to_truncate("open", _ARG1_AT), _writing_to_truncate("openat", _ARG2_AT)]
    if not signals:
        for name in _SIGNALLING:
            parts.append(_when_arg(name, _ARG0_AT, [(_EQUAL, _OWN_ID), (_EQUAL, 0)], deny_on_match=False))
        parts.append(_when("pidfd_send_signal", _DENY))
        tests = [(_EQUAL, command) for command in _SIGNAL_OWNERS]
        parts.append(_when_arg("fcntl", _ARG1_AT, tests, deny_on_match=True))
    if own_only:
        parts += [_unless_own(name, arguments) for name, arguments in _OWN.items()]
    denied = [name for name in OUTER_NEEDS if not (chroot and name == "chroot")]
    parts += [_deny(denied), _instruction(_RETURN, 0, 0, _ALLOW)]
    return b"".join(parts)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def install(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    head = _Program(len(program) // 8, ctypes.addressof(buffer))
    syscalls.check(
        syscalls.libc.prctl(syscalls.PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(head), 0, 0), "seccomp filter"
    )


def write(batch: SyscallBatch, program: bytes) -> None:
    code = batch.keep(program)
    for at in range(0, len(program), 8):
        if program[at + 4 : at + 8] == struct.pack("I", _OWN_ID):
            batch.own_id(code + at + 4)
    head = struct.pack("HxxxxxxQ", len(program) // 8, code)
    batch.add("prctl", syscalls.PR_SET_SECCOMP, 2, head, 0, 0)


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value & 0xFFFFFFFF)


def _head() -> bytes:
    """Kill callers of another architecture's interface: there, the numbers mean other calls."""
    parts = [
        _instruction(_LOAD, 0, 0, _ARCH_AT),
        _instruction(_EQUAL, 1, 0, _AUDIT_ARCH[syscalls.MACHINE]),
        _instruction(_RETURN, 0, 0, _KILL),
        _instruction(_LOAD, 0, 0, _NUMBER_AT),
    ]
    if syscalls.MACHINE == "x86_64":
        parts += [_instruction(_AT_LEAST, 0, 1, _X32_BIT), _instruction(_RETURN, 0, 0, _KILL)]
    return b"".join(parts)


def _on_call(name: str, *body: bytes) -> bytes:
    """Instructions for one call, which all others jump over; none if this processor has no such call."""
    number, code = syscalls.number(name), b"".join(body)
    return b"" if number < 0 else _instruction(_EQUAL, 0, len(code) // 8, number) + code


def _when(name: str, verdict: int) -> bytes:
    return _on_call(name, _instruction(_RETURN, 0, 0, verdict))


def _deny(names: Iterable[str]) -> bytes:
    numbers = sorted({number for name in names if (number := syscalls.number(name)) >= 0})
    parts = []
    for index, number in enumerate(numbers):
        to_verdict = len(numbers) - index - 1
        past_verdict = 1 if index == len(numbers) - 1 else 0
        parts.append(_instruction(_EQUAL, to_verdict, past_verdict, number))
    return b"".join(parts) + _instruction(_RETURN, 0, 0, _DENY)


def _when_arg(name: str, offset: int, tests: list[tuple[int, int]], *, deny_on_match: bool) -> bytes:
    """For one call, decide by an argument: refuse (or, with `deny_on_match` False, allow) it if any test holds."""
    on_match, otherwise = (_DENY, _ALLOW) if deny_on_match else (_ALLOW, _DENY)
    count = len(tests)
    body = [_instruction(_LOAD, 0, 0, offset)]
    for index, (operator, value) in enumerate(tests):
        body.append(_instruction(operator, count - index, 0, value))
    return _on_call(name, *body, _instruction(_RETURN, 0, 0, otherwise), _instruction(_RETURN, 0, 0, on_match))


def _unless_own(name: str, arguments: Sequence[int]) -> bytes:
    body = b""
    for place, value in reversed([*enumerate(arguments)]):
        left = len(body) // 8 + 1  # what follows, and the allowance
        test = _instruction(_EQUAL, 0, left, value)
        body = _instruction(_LOAD, 0, 0, _ARG0_AT + 8 * place) + test + body
    return _on_call(name, body, _instruction(_RETURN, 0, 0, _ALLOW), _instruction(_RETURN, 0, 0, _DENY))


def _keeping_limit(name: str, offset: int, new_value: int | None, kind: int, verdict: int) -> bytes:
    """Do nothing, with this verdict, if a call would change the limit `kind`. `offset` is that of the argument that
    names a limit, `new_value` of the one that points to the new value; None: there always is one.

    A program that crashes with less for its core than `harden.NO_CORE` would be handed to the machine's handler of
    cores; and the hard limit of processes is higher, see `harden.MOST_FORKS`.
    """
    ask = [_instruction(_LOAD, 0, 0, offset), _instruction(_EQUAL, 0, 1 if new_value is None else 5, kind)]
    if new_value is not None:
        ask += [_instruction(_LOAD, 0, 0, new_value), _instruction(_EQUAL, 0, 2, 0)]
        ask += [_instruction(_LOAD, 0, 0, new_value + 4), _instruction(_EQUAL, 1, 0, 0)]
    return _on_call(name, *ask, _instruction(_RETURN, 0, 0, verdict), _instruction(_LOAD, 0, 0, _NUMBER_AT))


def _writing_to_truncate(name: str, offset: int) -> bytes:
    """Refuse to open a file for truncation without writing (access mode 0; or 3, which opens for neither)."""
    return _on_call(
        name,
        _instruction(_LOAD, 0, 0, offset),
        _instruction(_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        _instruction(_EQUAL, 2, 0, os.O_TRUNC),
        _instruction(_EQUAL, 1, 0, os.O_TRUNC | os.O_ACCMODE),
        _instruction(_RETURN, 0, 0, _ALLOW),
        _instruction(_RETURN, 0, 0, _DENY),
    )
