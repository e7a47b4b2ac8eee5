"""The private root of a template process and all its children: made once, read-only, nearly empty.

/            tmpfs, read-only
/usr /lib …  the system's runtime, bound read-only
(runtime)    the Python of the template process, bound read-only at its own path
/etc         a handful of files made up here
/dev         null, zero, full, random, urandom, tty; each child mounts its own pts here
/proc        of the new pid namespace
/tmp         each child mounts its own here
(folders)    empty; each child mounts its own here
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolgym.tools.sandbox.local.kernel import syscalls, users
from toolgym.tools.sandbox.local.kernel.users import SANDBOX_UID

SYSTEM_PATHS = (
    "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/etc/alternatives", "/etc/fonts",
    "/etc/ld.so.cache", "/etc/localtime", "/etc/ssl/certs", *glob.glob("/etc/java-*-openjdk"), "/etc/mono", "/etc/R",
    *glob.glob("/etc/php/*/cli"), *glob.glob("/etc/php/*/mods-available"), "/etc/ldc2.conf", "/etc/racket",
    "/opt/go",
)  # fmt: skip
"""The parts of the system that programs need, if they exist. None is secret: the rest of /etc stays outside."""

MACHINE_FACTS = tuple(
    f"/proc/{name}" for name in ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version")
)
"""Files of the host's /proc that name no process, for children without a /proc of their own."""

DEVICES = ("null", "zero", "full", "random", "urandom")

_ETC = {
    "passwd": "root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_OWN_FOLDERS = ("/dev/shm", "/dev/pts", "/tmp", "/w/new", "/proc", "/etc")

IMAGE_BELOW, IMAGE_ROOT, IMAGE_UPPER = "/image/below", "/image/root", "/image/upper"
"""An image's files, read-only; where each child mounts a file system on top of them, its later root; and what that
keeps of the child's changes, covered by an empty folder: the broker copies it for a fork."""

HOST_PYTHON = "/.toolgym"
"""Where a child with an image finds the rest of this root, and so its interpreter's modules."""

_READ_ONLY = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV

_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/run", "/tmp")
"""Folders to build the new root on. Any will do: the mount hides it only from this process."""


@dataclass(frozen=True)
class Jailed:
    """The outcome of `enter`, in the calling process (in which `pid` is the jailed one's) and in the jailed one (0).

    Attributes:
        fresh_proc: whether /proc shows the jail's processes (some containers forbid mounting one).
        pid_namespace: descriptor of the jail's pid namespace, in the jailed process.
        host_proc: likewise of the host's /proc. Processes write their own user ids through it; it is closed before any
            user code runs.
    """

    pid: int
    fresh_proc: bool
    pid_namespace: int
    host_proc: int


def enter(
    read_only: Iterable[str],
    *,
    network: bool,
    folders: Iterable[str] = (),
    hidden: Iterable[str] = (),
    first_uid: int = 0,
    image: str = "",
) -> Jailed:
    """Fork a process into new namespaces with a private root; for a process with one thread.

    Returns in both processes; the jailed one is pid 1 of its namespace and has all capabilities in it, and only there.

    Args:
        read_only: files and folders to bind, and nothing else; see `SYSTEM_PATHS`.
        folders: absolute names of further folders that children mount something on; see `part_of_world`.
        hidden: folders below those of `read_only` that are empty inside.
        first_uid: first of `users.SPAN` user ids outside that are `users.FIRST_INSIDE` and following in the jail, where
            root starts it; 0: the jail knows only one user.
        image: folder with the files of an image, for `IMAGE_BELOW`; empty: there is none.
    """
    early, late = {path: path for path in outermost(read_only)}, {image: IMAGE_BELOW} if image else {}
    binds = early | late
    folders = [*folders, *([IMAGE_BELOW, IMAGE_ROOT, IMAGE_UPPER] if image else ())]
    root = _mount_point(binds)
    flags = (
        syscalls.CLONE_NEWUSER
        | syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWUTS
    )
    if not network:
        flags |= syscalls.CLONE_NEWNET
    is_root = becomes_another()
    built = is_root and _may_mount()
    handles: dict[str, int] = {}
    if built:
        # Bound while root can still traverse every folder; afterwards only what is bound exists.
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        _build(root, _opened(early), folders, hidden)
    if is_root:
        handles = _enter_as_another(flags, late if built else binds, first_uid)
    else:
        uid, gid = os.geteuid(), os.getegid()
        syscalls.unshare(flags)
        _write_ids("self", f"0 {uid} 1", f"0 {gid} 1")
        handles = _opened(binds)
    ready, done = os.pipe()
    pid = os.fork()
    if pid:
        for fd in (done, *handles.values()):
            os.close(fd)
        proc_kind = os.read(ready, 1)
        os.close(ready)
        return Jailed(pid, proc_kind == b"p", -1, -1)
    os.close(ready)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)  # while there is a /proc for sure
    host_proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.libc.sethostname(b"sandbox", 7)
    if not built:
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        _build(root, handles, folders, hidden)
    else:
        # Mounts that came along are locked in a new user namespace; a root to pivot to must not be.
        syscalls.mount(root, root, None, syscalls.MS_BIND | syscalls.MS_REC)
        _bind_all(handles, root)  # an image's, which children take away
    fresh_proc = _change_root(root)
    os.write(done, b"p" if fresh_proc else b"-")
    os.close(done)
    return Jailed(0, fresh_proc, pid_namespace, host_proc)


def _change_root(root: str) -> bool:
    try:
        syscalls.mount("proc", f"{root}/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        fresh_proc = True
    except PermissionError:  # parts of the host's /proc are masked, so the kernel shows no fresh one
        fresh_proc = False
    os.chdir(root)
    syscalls.pivot_root(".", ".")  # the old root now lies on top of the new one
    syscalls.detach(".")
    os.chdir("/")
    _remount("/", _READ_ONLY)
    return fresh_proc


def becomes_another() -> bool:
    """Whether a template process that this one starts becomes `SANDBOX_UID`: root's does, if that user exists."""
    return os.geteuid() == 0 and users.known(SANDBOX_UID)


def _mount_point(paths: Iterable[str]) -> str:
    for folder in _MOUNT_POINTS:
        if os.path.isdir(folder) and not any(f"{path}/".startswith(f"{folder}/") for path in paths):
            return folder
    raise OSError(f"none of {', '.join(_MOUNT_POINTS)} is a folder that the runtime does not need")


def _may_mount() -> bool:
    """Enter a mount namespace of its own as root. False: root lacks the capability, as in some containers."""
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS)
    except PermissionError:
        return False
    return True


def _enter_as_another(flags: int, binds: Mapping[str, str], first_uid: int) -> dict[str, int]:
    """Enter new namespaces as root, and become `SANDBOX_UID` in them. Returns handles of the paths. In between, this
    process still owns root's folders, but the map of ids is already the other user's, written by a helper that stays
    outside."""
    ids = f"0 {SANDBOX_UID} 1"
    if first_uid:
        ids += f"\n{users.FIRST_INSIDE} {first_uid} {users.SPAN}"
    os.setgroups([])
    os.setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    entered, enter_now = os.pipe()
    outer = os.getpid()
    helper = os.fork()
    if not helper:
        try:
            os.close(enter_now)
            if os.read(entered, 1):
                _write_ids(str(outer), ids, ids)
                os._exit(0)
        finally:
            os._exit(1)
    os.close(entered)
    try:
        syscalls.unshare(flags)
        os.write(enter_now, b"+")
    finally:
        os.close(enter_now)
        _, status = os.waitpid(helper, 0)
    if status:
        raise PermissionError(errno.EPERM, "root may not become another user here")
    handles = _opened(binds)
    os.setresuid(0, 0, 0)  # of the new namespace: `SANDBOX_UID` outside
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # or /proc/self would belong to root
    return handles


def _write_ids(process: str, uids: str, gids: str) -> None:
    """Write the maps of user and group ids of a process's new user namespace; see user_namespaces(7)."""
    for name, text in (("setgroups", "deny"), ("uid_map", uids), ("gid_map", gids)):
        with open(f"/proc/{process}/{name}", "w") as file:
            file.write(text)


def _opened(binds: Mapping[str, str]) -> dict[str, int]:
    """Handles of paths, in the mount namespace of this process, by their names inside."""
    return {inside: os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC) for path, inside in binds.items()}


def _build(root: str, handles: Mapping[str, int], folders: Iterable[str], hidden: Iterable[str]) -> None:
    """Mount a new tmpfs and fill it. `handles` are of the paths to bind, and get closed; `folders` stay empty."""
    syscalls.mount("tmpfs", root, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=2m,mode=755")
    os.umask(0o022)
    _bind_all(handles, root)
    for folder in hidden:
        if os.path.isdir(root + folder):
            syscalls.mount("tmpfs", root + folder, "tmpfs", _READ_ONLY, "size=4k,mode=755")
    for folder in (*_OWN_FOLDERS, *folders):
        os.makedirs(f"{root}{folder}", exist_ok=True)
    for name in (*DEVICES, "tty"):
        target = f"{root}/dev/{name}"
        with open(target, "w"):
            pass
        syscalls.mount(f"/dev/{name}", target, None, syscalls.MS_BIND)
    os.symlink("pts/ptmx", f"{root}/dev/ptmx")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")
    for name, text in _ETC.items():
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)


def part_of_world(folder: str, read_only: Iterable[str]) -> str | None:
    """The part of the world inside that a further folder would hide, or lie in. None: there is none."""
    for path in (*outermost(read_only), *_OWN_FOLDERS):
        part = f"/{path.split('/')[1]}" if path in _OWN_FOLDERS else path
        if f"{folder}/".startswith(f"{part}/") or f"{part}/".startswith(f"{folder}/"):
            return part
    return None


def outermost(paths: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted({os.path.abspath(path) for path in paths if os.path.lexists(path)}):
        if not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept


def _bind_all(handles: Mapping[str, int], root: str) -> None:
    for path, handle in handles.items():
        _bind(handle, root + path)
        os.close(handle)


def _bind(handle: int, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    kind = os.fstat(handle).st_mode
    if stat.S_ISLNK(kind):
        os.symlink(os.readlink("", dir_fd=handle), target)
        return
    if stat.S_ISDIR(kind):
        os.makedirs(target, exist_ok=True)
    else:
        with open(target, "a"):
            pass
    syscalls.mount(f"/proc/self/fd/{handle}", target, None, syscalls.MS_BIND | syscalls.MS_REC)
    _remount(target, _READ_ONLY)


def _remount(target: str, flags: int) -> None:
    """Change the flags of a mount; flags that its owner locked are kept."""
    status = os.statvfs(target).f_flag
    for option, flag in (
        (os.ST_NOEXEC, syscalls.MS_NOEXEC),
        (os.ST_NODEV, syscalls.MS_NODEV),
        (os.ST_NOSUID, syscalls.MS_NOSUID),
        (os.ST_NOATIME, 1024),
        (os.ST_NODIRATIME, 2048),
        (os.ST_RELATIME, 1 << 21),
    ):
        if status & option:
            flags |= flag
    syscalls.mount("none", target, None, syscalls.MS_BIND | syscalls.MS_REMOUNT | flags)
