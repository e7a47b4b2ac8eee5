"""What a forked child does to itself before any code of a stranger runs in it."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
from dataclasses import dataclass

from toolgym.tools.sandbox.local import kernel, seccomp
from toolgym.tools.sandbox.local.landlock import Ruleset

CONTROL_FD = 3
"""Where a child finds its control socket."""

_MIB = 1 << 20


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
        proc: descriptor of a /proc in which this process is visible, for writing its user ids; -1: none is needed.
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

    def apply(self, slot: int, folder: str, control: int) -> str:
        """Confine this process for good. Any failure raises: nothing runs half confined.

        Args:
            slot: the child's number, unique among those alive.
            folder: its working folder, where it has no file system of its own.
            control: the control socket; moved to `CONTROL_FD`, and everything above is closed.

        Returns:
            The working folder.
        """
        os.setsid()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
        writable = [folder]
        if self.namespaces:
            folder = self.home
            writable = self._enter_namespaces()
            os.makedirs(folder, exist_ok=True)
        if self.first_uid:
            self._become(self.first_uid + slot, folder)
        os.chdir(folder)
        self._limit()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if self.landlock is not None:
            self.landlock.apply(writable, network=self.network)
        if control != CONTROL_FD:
            os.dup2(control, CONTROL_FD)
        kernel.close_from(CONTROL_FD + 1)  # only now: the rules' descriptors were among them
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.open_files, self.open_files))
        kernel.drop_capabilities(but=kernel.SYS_CHROOT if self.namespaces else 0)  # `settle` drops that too
        if self.filter is not None:
            seccomp.install(self.filter)
        return folder

    @property
    def home(self) -> str:
        """With namespaces: the working folder. /tmp, unless that has folders that a program cannot delete."""
        return "/tmp/work" if self.below_tmp else "/tmp"

    def settle(self, *, session: bool) -> None:
        """Confine the rest, now that it is known what this process becomes: only a session changes its root one day."""
        if self.namespaces and not session:
            kernel.drop_capabilities()

    @property
    def file_system(self) -> str:
        """Options of the file system that a child writes to."""
        return f"size={self.disk_mb}m,nr_inodes={self.inodes},mode=777"

    def _enter_namespaces(self) -> list[str]:
        # Of control groups too, so that none sees the names of the host's.
        flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
        kernel.unshare(flags | kernel.CLONE_NEWNET if self.own_network else flags)
        safe = kernel.MS_NOSUID | kernel.MS_NODEV
        # One file system for both, so that one size limits everything that the child writes.
        kernel.mount("tmpfs", "/w", "tmpfs", safe, self.file_system)
        for name, target in (("tmp", "/tmp"), ("shm", "/dev/shm")):
            os.mkdir(f"/w/{name}")
            os.chmod(f"/w/{name}", 0o777)
            if name == "tmp":
                for path in self.below_tmp:  # a runtime that lives there must not disappear under the child's own /tmp
                    os.makedirs(f"/w{path}")
                    kernel.mount(path, f"/w{path}", None, kernel.MS_BIND | kernel.MS_REC)
            kernel.mount(f"/w/{name}", target, None, kernel.MS_BIND | kernel.MS_REC)
        kernel.detach("/w")
        if self.fresh_proc:
            kernel.mount("proc", "/proc", "proc", safe | kernel.MS_NOEXEC, self.proc_options)
        if self.own_network:
            _raise_loopback()
        uid, gid = os.geteuid(), os.getegid()
        # A user namespace of its own makes the limit on processes count this child alone.
        kernel.unshare(kernel.CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
            fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=self.proc)
            os.write(fd, text.encode())
            os.close(fd)
        return ["/tmp", "/dev/shm"]

    @staticmethod
    def _become(uid: int, folder: str) -> None:
        os.chown(folder, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)  # changing the user cleared it
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # likewise: so that its open files can be counted

    def _limit(self) -> None:
        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, self.file_mb * _MIB),
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
        ):
            resource.setrlimit(kind, (value, value))

    def limit_memory(self, memory_mb: int) -> None:
        """Limit private memory to this many MiB beyond the template's, so that Python sees a `MemoryError`."""
        most = self.data_pages * resource.getpagesize() + memory_mb * _MIB
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def limit_cpu(seconds: float | None) -> None:
    """Limit CPU time: SIGXCPU at the limit, SIGKILL a second later."""
    if seconds is not None:
        soft = max(1, int(seconds + 0.999))
        resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = kernel.IFF_UP | kernel.IFF_RUNNING
        fcntl.ioctl(any_socket, kernel.SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))
