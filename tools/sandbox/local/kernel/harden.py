"""Hardening of a forked child, before any user code runs in it."""

from __future__ import annotations

import functools
import os
import resource
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from toolgym.tools.sandbox.local.kernel import jail, seccomp, syscalls
from toolgym.tools.sandbox.local.kernel.child_cgroups import LIMITS
from toolgym.tools.sandbox.local.kernel.landlock import Ruleset
from toolgym.tools.sandbox.local.kernel.syscall_batch import ANY, AT_FDCWD, IGNORE_ERRORS, SyscallBatch

TERMINALS = "newinstance,ptmxmode=666,mode=620,max=64"


def overlay(folder: str) -> str:
    """The options of a file system on top of an image, which keeps changes in `folder`."""
    return f"lowerdir={jail.IMAGE_BELOW},upperdir={folder}/upper,workdir={folder}/scratch,userxattr"


_PROC_FLAGS = syscalls.MS_NOEXEC | syscalls.MS_RDONLY
"""Of a child's /proc. Landlock lets a fork and a child with an image write to all of their root, and a program that
could write to /proc/self/mem could change the sealed page of a helper, see `sibling_fork`."""

INSIDE_IMAGE = (("/dev", "/dev"), ("/proc", "/proc"), ("/tmp", "/tmp"), ("/", jail.HOST_PYTHON))
"""Parts of a child's world, and where they are mounted in the root that it has with an image."""

CONTROL_FD = 3

NO_CORE = 1
"""Bytes of a core dump. The kernel runs a handler that cores are piped to for every limit but this one, 0 included; and
no core that goes to a file is so small. See core(5), and `vfs_coredump` in the kernel's `fs/coredump.c`."""

STACK = 8 << 20
"""Bytes of stack of a program and of each of its threads, whatever the shell of the host allows. It is Linux's usual
value: threads are given as much address space at once."""

PENDING_SIGNALS = 1024
"""Signals that are queued, and timers. The kernel counts them for each user, and in each user namespace."""

MOST_FORKS = 4096
"""Forks of a session, checkpoints included, that can be live at once. Their interpreters and the
helpers of these do not count as its processes: the broker raises the limit for each. Only the broker can, if there are
system-call filters."""

USER_LIMITS = {"max_inotify_instances": 8, "max_inotify_watches": 4096}
"""Quotas of a child where the kernel has them for each user: of the user of its namespace only."""

OWN_PROC = tuple(
    f"/proc/self/{name}"
    for name in (
        "auxv", "cgroup", "cmdline", "comm", "environ", "fd", "io", "limits", "maps", "smaps", "smaps_rollup", "stat",
        "statm", "status", "task",
    )
)  # fmt: skip
"""What a child without a /proc of its own may read there about itself. Libraries such as duckdb and psutil need it.
`net` would show the connections of the host, so these are files and not the folder. A child's own children have
nothing of it: the kernel ties these rules to the files of one process."""

_FREE = CONTROL_FD + 1
"""The lowest descriptor that is free, when all others are closed."""

_MIB = 1 << 20
_UNLIMITED = (1 << 64) - 1
_EMPTY_PATH = 0x1000


@dataclass
class Hardening:
    """Hardening of all children; prepared once by the broker.

    Attributes:
        namespaces: whether each child gets its own mount, ipc, uts, pid and user namespaces.
        own_network: whether it also gets a network of its own, with a loopback device that is up if `loopback` is set.
        network: whether internet sockets are allowed at all.
        first_uid: user id of the first slot, as this process names it; 0: children run as this process's user.
        disk_mb: size of the child's file system, with `inodes` files, each of at most `file_mb`.
        data_pages: pages of private memory that the zygote has; children's limits come on top.
        below_tmp: folders below /tmp that the interpreter needs.
        folders: further folders that a child can write to, which its root has already.
        image: whether a child gets a file system on top of an image's, as its later root.
        groups: folders of the control groups of a child without a /proc of its own; see `group_folders`.
        proc: high descriptor of a /proc that shows this process, for writing its user ids; -1: none is needed.
    """

    namespaces: bool
    own_network: bool
    loopback: bool
    fresh_proc: bool
    landlock: Ruleset | None
    filter: bytes | None
    network: bool
    first_uid: int
    disk_mb: int
    inodes: int
    file_mb: int
    processes: int
    open_files: int
    data_pages: int
    proc: int
    proc_options: str | None = None
    terminals: bool = False
    below_tmp: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    image: bool = False
    groups: tuple[str, ...] = ()

    def batches(self, slot: int, folder: str) -> list[SyscallBatch]:
        """The calls that harden a child for good, prepared before the fork; to be made in this order. The process that
        makes them has its control socket as `CONTROL_FD`; they close all else above standard error. If one fails, the
        child must end: nothing may run in a child that is hardened in part."""
        if not self.namespaces:
            batch = SyscallBatch()
            self._close_others(batch)
            if self.first_uid:
                batch.add("setgroups", 0, None)  # in namespaces, the template process has none
                self._change_user(batch, self.first_uid + slot, [folder])
            groups = [group.replace("{slot}", str(slot)) for group in self.groups]
            limits = [f"{group}/{name}" for group in groups for name in LIMITS]
            self._confine(batch, folder, [folder], [*OWN_PROC, *limits])
            return [batch]
        # All but the one in the middle are the same for all children.
        entering, confining = self._shared
        becoming = SyscallBatch()
        if self.first_uid:
            self._change_user(
                becoming, self.first_uid + slot, sorted({self.home, *self._writable, *self.above_runtime})
            )
        self._enter_user_namespace(becoming, self.first_uid + slot if self.first_uid else 0)
        return [entering, becoming, confining]

    @functools.cached_property
    def _shared(self) -> tuple[SyscallBatch, SyscallBatch]:
        entering, confining = SyscallBatch(), SyscallBatch()
        self._close_others(entering)
        self._enter_namespaces(entering)
        if self.home != "/tmp":
            entering.add("mkdirat", AT_FDCWD, self.home, 0o755, expect=IGNORE_ERRORS, about=self.home)
        self._confine(confining, self.home, self._writable)
        return entering, confining

    def _close_others(self, batch: SyscallBatch) -> None:
        kept = sorted([*(self.landlock.descriptors if self.landlock else ()), *([self.proc] if self.proc >= 0 else ())])
        for first, last in zip([CONTROL_FD, *kept], [*kept, 1 << 32], strict=True):
            if first + 1 < last:
                batch.add("close_range", first + 1, last - 1, 0)
        batch.add("setsid", expect=ANY)
        batch.add("prctl", syscalls.PR_SET_PDEATHSIG, 9, 0, 0, 0)

    def _confine(self, batch: SyscallBatch, folder: str, writable: Sequence[str], itself: Iterable[str] = ()) -> None:
        """Set the limits, and give up what is left of this process's rights. `itself` are files about it."""
        batch.add("chdir", folder, about=folder)
        for kind, value in (
            (resource.RLIMIT_CORE, NO_CORE),
            (resource.RLIMIT_STACK, STACK),
            (resource.RLIMIT_FSIZE, self.file_mb * _MIB),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_SIGPENDING, PENDING_SIGNALS),
            (resource.RLIMIT_MSGQUEUE, 0),
        ):
            value = _allowed(kind, value)
            # A program that needs more stack may raise its own limit: memory is limited in other ways.
            most = resource.getrlimit(kind)[1] & _UNLIMITED if kind == resource.RLIMIT_STACK else value
            batch.add("prlimit64", 0, kind, struct.pack("QQ", value, most), 0, about=f"{kind}")
        may_grow = 2 * MOST_FORKS + 1 if self.namespaces and self.filter is not None else 0
        processes = [_allowed(resource.RLIMIT_NPROC, self.processes + more) for more in (0, may_grow)]
        batch.add("prlimit64", 0, resource.RLIMIT_NPROC, struct.pack("QQ", *processes), 0, about="processes")
        batch.add("prctl", syscalls.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if self.landlock is not None:
            terminals = ["/dev/pts"] if self.terminals else []
            itself = [path for path in itself if os.path.exists(path)]
            self.landlock.write(batch, writable, terminals, _FREE, network=self.network, itself=itself)
        batch.add("close_range", _FREE, (1 << 32) - 1, 0)  # only now, for the rules' descriptors were among them
        most = _allowed(resource.RLIMIT_NOFILE, self.open_files)
        files = struct.pack("QQ", most, most)
        batch.add("prlimit64", 0, resource.RLIMIT_NOFILE, files, 0, about="open files")
        if not self.namespaces and not self.first_uid and os.geteuid() == 0:
            # `execve` gives user id 0 all capabilities. Where the kernel allows it, stop that.
            batch.add("prctl", syscalls.PR_SET_SECUREBITS, syscalls.SECURE_NO_ROOT, 0, 0, 0, expect=IGNORE_ERRORS)
        # `drop_capabilities` drops that one too
        _keep_capabilities(batch, syscalls.SYS_CHROOT if self.namespaces else 0)
        if self.filter is not None:
            seccomp.write(batch, self.filter)

    @property
    def home(self) -> str:
        """With namespaces: the working folder. /tmp, unless that has folders that a program cannot delete."""
        return "/tmp/work" if self.below_tmp else "/tmp"

    def drop_capabilities(self) -> SyscallBatch:
        """The calls that drop a run's last capability: only a session may have to change its root one day."""
        batch = SyscallBatch()
        if self.namespaces:
            _keep_capabilities(batch, 0)
        return batch

    @property
    def mounts(self) -> list[tuple[str, str]]:
        """Names in the file system that a child writes to, and where each is mounted in its world."""
        return [("tmp", "/tmp"), ("shm", "/dev/shm"), *((f"{at}", path) for at, path in enumerate(self.folders))]

    @property
    def _writable(self) -> list[str]:
        return [*(target for _, target in self.mounts), *([jail.IMAGE_ROOT] if self.image else ())]

    @property
    def above_runtime(self) -> list[str]:
        """The folders between /tmp and the runtime below it. They are the child's, as its other folders: a fork gives
        its own the same times and permissions, which takes their owner."""
        parents = {str(above) for path in self.below_tmp for above in PurePosixPath(path).parents}
        return sorted(path for path in parents if path.startswith("/tmp/"))

    @property
    def file_system(self) -> str:
        return f"size={self.disk_mb}m,nr_inodes={self.inodes},mode=777"

    def _enter_namespaces(self, batch: SyscallBatch) -> None:
        # A namespace of control groups too, so that no child sees the names of the host's.
        flags = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWCGROUP
        batch.add("unshare", flags | syscalls.CLONE_NEWNET if self.own_network else flags)
        safe = syscalls.MS_NOSUID | syscalls.MS_NODEV
        bind = syscalls.MS_BIND | syscalls.MS_REC
        # One file system for all, so that one size limits everything that the child writes.
        batch.add("mount", "tmpfs", "/w", "tmpfs", safe, self.file_system, about="tmpfs /w")
        for name, target in self.mounts:
            _make_folder(batch, f"/w/{name}", 0o1777)  # sticky, or Ruby makes no temporary files there
            if name == "tmp":
                for path in sorted({*self.above_runtime, *self.below_tmp}):
                    _make_folder(batch, f"/w{path}", 0o755)
                for path in self.below_tmp:  # the child's own /tmp must not hide a runtime below /tmp
                    batch.add("mount", path, f"/w{path}", None, bind, None, about=path)
            batch.add("mount", f"/w/{name}", target, None, bind, None, about=target)
        if self.image:
            for name in ("upper", "scratch", "empty"):
                _make_folder(batch, f"/w/{name}", 0o755)
            batch.add("mount", "overlay", jail.IMAGE_ROOT, "overlay", safe, overlay("/w"), about=jail.IMAGE_ROOT)
            batch.add("umount2", jail.IMAGE_BELOW, syscalls.MNT_DETACH, about=jail.IMAGE_BELOW)
            for name in ("upper", "empty"):
                batch.add("mount", f"/w/{name}", jail.IMAGE_UPPER, None, syscalls.MS_BIND, None, about=name)
        batch.add("umount2", "/w", syscalls.MNT_DETACH, about="/w")
        if self.terminals:
            options = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
            batch.add("mount", "devpts", "/dev/pts", "devpts", options, TERMINALS, about="/dev/pts")
        if self.fresh_proc:
            batch.add("mount", "proc", "/proc", "proc", safe | _PROC_FLAGS, self.proc_options, about="/proc")
        if self.image:
            for source, target in INSIDE_IMAGE:
                batch.add("mount", source, jail.IMAGE_ROOT + target, None, bind, None, about=jail.IMAGE_ROOT + target)
        if self.loopback:
            request = struct.pack("16sH14x", b"lo", syscalls.IFF_UP | syscalls.IFF_RUNNING)
            batch.add("socket", socket.AF_INET, socket.SOCK_DGRAM, 0, expect=_FREE)
            batch.add("ioctl", _FREE, syscalls.SIOCSIFFLAGS, request, about="lo")
            batch.add("close", _FREE)

    def _enter_user_namespace(self, batch: SyscallBatch, uid: int) -> None:
        """Enter one, which makes the limit on processes count only this child; `uid` is user and group outside."""
        batch.add("unshare", syscalls.CLONE_NEWUSER, about="user")
        ids = (uid, uid) if uid else (os.geteuid(), os.getegid())
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {ids[0]} 1"), ("gid_map", f"1000 {ids[1]} 1")):
            batch.add("openat", self.proc, f"self/{name}", os.O_WRONLY, 0, expect=_FREE, about=name)
            batch.add("write", _FREE, text, len(text), expect=len(text), about=name)
            batch.add("close", _FREE)
        for name, most in USER_LIMITS.items():  # of that namespace; some containers mount /proc/sys read-only
            batch.add("openat", self.proc, f"sys/user/{name}", os.O_WRONLY, 0, expect=IGNORE_ERRORS)
            batch.add("write", _FREE, str(most), len(str(most)), expect=IGNORE_ERRORS)
            batch.add("close", _FREE, expect=IGNORE_ERRORS)

    @staticmethod
    def _change_user(batch: SyscallBatch, uid: int, folders: Iterable[str]) -> None:
        for folder in folders:
            batch.add("fchownat", AT_FDCWD, folder, uid, uid, 0, about=folder)
        for stream in (1, 2):  # so that it can open /dev/stdout and /dev/stderr
            batch.add("fchownat", stream, "", uid, uid, _EMPTY_PATH, expect=IGNORE_ERRORS)
        batch.add("setresgid", uid, uid, uid)
        batch.add("setresuid", uid, uid, uid)
        batch.add("prctl", syscalls.PR_SET_PDEATHSIG, 9, 0, 0, 0)  # the change of user has cleared it
        batch.add("prctl", syscalls.PR_SET_DUMPABLE, 1, 0, 0, 0)  # likewise; its open files must be countable

    def limit_memory(self, memory_mb: int) -> None:
        """Limit private memory to this many MiB beyond the zygote's, so that Python raises a `MemoryError`."""
        most = _allowed(resource.RLIMIT_DATA, self.data_pages * resource.getpagesize() + memory_mb * _MIB)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _allowed(kind: int, value: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def limit_cpu(seconds: float | None) -> None:
    if seconds is not None:
        soft = max(1, int(seconds + 0.999))
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))


def _keep_capabilities(batch: SyscallBatch, kept: int) -> None:
    """Keep only these capabilities (bits of the first 32); the next `execve` drops them, and brings none back."""
    header = struct.pack("Ii", syscalls.CAPABILITY_VERSION, 0)
    batch.add("capset", header, struct.pack("6I", kept, kept, 0, 0, 0, 0))


def _make_folder(batch: SyscallBatch, path: str, mode: int) -> None:
    batch.add("mkdirat", AT_FDCWD, path, mode, about=path)
    batch.add("fchmodat", AT_FDCWD, path, mode, about=path)
