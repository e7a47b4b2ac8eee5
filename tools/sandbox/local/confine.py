"""What a forked child does to itself before any code of a stranger runs in it."""

from __future__ import annotations

import os
import resource
import socket
import struct
from dataclasses import dataclass
from pathlib import PurePosixPath

from toolgym.tools.sandbox.local import kernel, seccomp
from toolgym.tools.sandbox.local.landlock import Ruleset
from toolgym.tools.sandbox.local.script import ANY, AT_FDCWD, NEVERMIND, Script

CONTROL_FD = 3
"""Where a child finds its control socket."""

_MIB = 1 << 20
_EMPTY_PATH = 0x1000


@dataclass
class Confinement:
    """How to confine; prepared once by the template.

    Attributes:
        namespaces: whether each child gets its own mount, ipc, uts, pid and user namespaces.
        own_network: whether it also gets a network of its own with only a loopback device.
        fresh_proc: whether to mount a /proc of its own.
        landlock: rules for files, or None where the kernel has none.
        filter: the child's seccomp filter, or None where seccomp is missing.
        network: whether internet sockets are allowed at all.
        first_uid: with the `uid` level, user id of the first slot; 0 otherwise.
        disk_mb: size of the child's file system.
        inodes: files in it.
        file_mb: size of one file.
        processes: processes and threads.
        open_files: descriptors.
        data_pages: pages of private memory that the template has; children's limits come on top.
        proc_options: of its /proc; None: the usual ones.
        below_tmp: folders below /tmp that the interpreter needs.
        proc: high descriptor of a /proc in which this process is visible, for writing its user ids; -1: none is needed.
    """

    namespaces: bool
    own_network: bool
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
    below_tmp: tuple[str, ...] = ()

    def script(self, slot: int, folder: str) -> Script:
        """The calls by which a child confines itself for good, made ready before the fork.

        Whoever makes them has a control socket as `CONTROL_FD`; all else above standard error gets closed. If one
        fails, the child must end: nothing runs half confined.

        Args:
            slot: the child's number, unique among those alive.
            folder: its working folder, where it has no file system of its own.
        """
        script = Script()
        free = CONTROL_FD + 1
        kept = sorted([*(self.landlock.descriptors if self.landlock else ()), *([self.proc] if self.proc >= 0 else ())])
        for first, last in zip([free - 1, *kept], [*kept, 1 << 32], strict=True):
            if first + 1 < last:
                script.add("close_range", first + 1, last - 1, 0)
        script.add("setsid", expect=ANY)
        script.add("prctl", kernel.PR_SET_PDEATHSIG, 9, 0, 0, 0)
        writable = [folder]
        if self.namespaces:
            folder = self.home
            writable = ["/tmp", "/dev/shm"]
            self._enter_namespaces(script, free)
            if folder != "/tmp":
                script.add("mkdirat", AT_FDCWD, folder, 0o755, expect=NEVERMIND, about=folder)
        if self.first_uid:
            self._become(script, self.first_uid + slot, folder)
        script.add("chdir", folder, about=folder)
        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, self.file_mb * _MIB),
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
        ):
            value = _allowed(kind, value)
            script.add("prlimit64", 0, kind, struct.pack("QQ", value, value), 0, about=f"{kind}")
        script.add("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if self.landlock is not None:
            self.landlock.write(script, writable, free, network=self.network)
        script.add("close_range", free, (1 << 32) - 1, 0)  # only now: the rules' descriptors were among them
        most = _allowed(resource.RLIMIT_NOFILE, self.open_files)
        files = struct.pack("QQ", most, most)
        script.add("prlimit64", 0, resource.RLIMIT_NOFILE, files, 0, about="open files")
        if not self.namespaces and not self.first_uid and os.geteuid() == 0:
            # User id 0, which `execve` would favour with capabilities, loses that favour where it can be taken.
            script.add("prctl", kernel.PR_SET_SECUREBITS, kernel.SECURE_NO_ROOT, 0, 0, 0, expect=NEVERMIND)
        _keep_capabilities(script, kernel.SYS_CHROOT if self.namespaces else 0)  # `settling` drops that too
        if self.filter is not None:
            seccomp.write(script, self.filter)
        return script

    @property
    def home(self) -> str:
        """With namespaces: the working folder. /tmp, unless that has folders that a program cannot delete."""
        return "/tmp/work" if self.below_tmp else "/tmp"

    def settling(self) -> Script:
        """The calls that confine the rest of a child that is no session: only that may change its root one day."""
        script = Script()
        if self.namespaces:
            _keep_capabilities(script, 0)
        return script

    @property
    def file_system(self) -> str:
        """Options of the file system that a child writes to."""
        return f"size={self.disk_mb}m,nr_inodes={self.inodes},mode=777"

    def _enter_namespaces(self, script: Script, free: int) -> None:
        # Of control groups too, so that none sees the names of the host's.
        flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
        script.add("unshare", flags | kernel.CLONE_NEWNET if self.own_network else flags)
        safe = kernel.MS_NOSUID | kernel.MS_NODEV
        bind = kernel.MS_BIND | kernel.MS_REC
        # One file system for both, so that one size limits everything that the child writes.
        script.add("mount", "tmpfs", "/w", "tmpfs", safe, self.file_system, about="tmpfs /w")
        for name, target in (("tmp", "/tmp"), ("shm", "/dev/shm")):
            _make_folder(script, f"/w/{name}", 0o1777)  # sticky, or Ruby makes no temporary files there
            if name == "tmp":
                made = {"/tmp"}
                for path in self.below_tmp:  # a runtime that lives there must not disappear under the child's own /tmp
                    for above in [*reversed(PurePosixPath(path).parents), PurePosixPath(path)]:
                        if str(above).startswith("/tmp/") and str(above) not in made:
                            made.add(str(above))
                            _make_folder(script, f"/w{above}", 0o755)
                    script.add("mount", path, f"/w{path}", None, bind, None, about=path)
            script.add("mount", f"/w/{name}", target, None, bind, None, about=target)
        script.add("umount2", "/w", kernel.MNT_DETACH, about="/w")
        if self.fresh_proc:
            script.add("mount", "proc", "/proc", "proc", safe | kernel.MS_NOEXEC, self.proc_options, about="/proc")
        if self.own_network:
            request = struct.pack("16sH14x", b"lo", kernel.IFF_UP | kernel.IFF_RUNNING)
            script.add("socket", socket.AF_INET, socket.SOCK_DGRAM, 0, expect=free)
            script.add("ioctl", free, kernel.SIOCSIFFLAGS, request, about="lo")
            script.add("close", free)
        # A user namespace of its own makes the limit on processes count this child alone.
        script.add("unshare", kernel.CLONE_NEWUSER, about="user")
        uid, gid = os.geteuid(), os.getegid()
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
            script.add("openat", self.proc, f"self/{name}", os.O_WRONLY, 0, expect=free, about=name)
            script.add("write", free, text, len(text), expect=len(text), about=name)
            script.add("close", free)

    @staticmethod
    def _become(script: Script, uid: int, folder: str) -> None:
        script.add("fchownat", AT_FDCWD, folder, uid, uid, 0, about=folder)
        for stream in (1, 2):  # so that /dev/stdout and /dev/stderr can be opened
            script.add("fchownat", stream, "", uid, uid, _EMPTY_PATH, expect=NEVERMIND)
        script.add("setgroups", 0, None)
        script.add("setresgid", uid, uid, uid)
        script.add("setresuid", uid, uid, uid)
        script.add("prctl", kernel.PR_SET_PDEATHSIG, 9, 0, 0, 0)  # changing the user cleared it
        script.add("prctl", kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)  # likewise: so that its open files can be counted

    def limit_memory(self, memory_mb: int) -> None:
        """Limit private memory to this many MiB beyond the template's, so that Python sees a `MemoryError`."""
        most = _allowed(resource.RLIMIT_DATA, self.data_pages * resource.getpagesize() + memory_mb * _MIB)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _allowed(kind: int, value: int) -> int:
    """A limit, or the lower one that this process has itself and may not raise."""
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def limit_cpu(seconds: float | None) -> None:
    """Limit CPU time: SIGXCPU at the limit, SIGKILL a second later."""
    if seconds is not None:
        soft = max(1, int(seconds + 0.999))
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))


def _keep_capabilities(script: Script, kept: int) -> None:
    """Of capabilities, keep these bits (of the first 32); none outlives the next `execve`, nor comes back by it."""
    header = struct.pack("Ii", kernel.CAPABILITY_VERSION, 0)
    script.add("capset", header, struct.pack("6I", kept, kept, 0, 0, 0, 0))


def _make_folder(script: Script, path: str, mode: int) -> None:
    script.add("mkdirat", AT_FDCWD, path, mode, about=path)
    script.add("fchmodat", AT_FDCWD, path, mode, about=path)
