"""The isolation levels, and those that this machine offers, found by trying."""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolgym.tools.errors import ConfigError, SandboxUnavailableError, nearest
from toolgym.tools.sandbox.local.host.template_process import FOLDER, JUST_THIS_FOLDER
from toolgym.tools.sandbox.local.kernel import cgroup, landlock, seccomp, users


class Level(enum.StrEnum):
    """Strength of the isolation, strongest first."""

    NAMESPACES = "namespaces"
    """Private root, processes, network, IPC, host name and users, with Landlock, seccomp and limits on top. Works as
    root and as an ordinary user where user namespaces are allowed."""
    UID = "uid"
    """For root in a container without user namespaces: a user id per execution, Landlock, seccomp and limits."""
    LANDLOCK = "landlock"
    """For an ordinary user without user namespaces: Landlock, seccomp and limits. No processes, no sockets."""


@dataclass(frozen=True)
class Isolation:
    """Protection of the host from a program.

    `landlock` is the ABI in use; 0: none. With `fresh_proc` a program sees a /proc with only its own processes.
    `cgroup` is `v1` or `v2`; with None, memory is checked every 50 ms instead of limited by the kernel. `missing` has
    a sentence for each thing that the machine does not offer.
    """

    level: Level
    landlock: int
    seccomp: bool
    fresh_proc: bool
    network: str
    cgroup: str | None = None
    controllers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


_ENTER = f"""{JUST_THIS_FOLDER}
import os
from toolgym.tools.sandbox.local.kernel import jail
if pid := jail.enter(jail.SYSTEM_PATHS, network=False).pid:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
"""


@functools.cache
def user_namespaces() -> bool:
    """Try each step of a template: some containers allow new namespaces and mounts, but no change of the root."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _ENTER, FOLDER], capture_output=True, timeout=30, check=False, cwd="/"
    )
    return done.returncode == 0


@functools.cache
def may_change_user() -> bool:
    """Try to become another user, as root with its usual capabilities can."""
    if os.geteuid() != 0 or users.pool() is None:
        return False
    code = "import os; os.setgroups([]); os.setresgid(65533, 65533, 65533); os.setresuid(65533, 65533, 65533)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, timeout=30, check=False)
    return done.returncode == 0


def offered() -> list[Level]:
    """Return the levels of this machine, strongest first."""
    if sys.platform != "linux" or not seccomp.supported():
        return []
    levels = []
    if user_namespaces():
        levels.append(Level.NAMESPACES)
    if landlock.abi():
        if may_change_user():
            levels.append(Level.UID)
        levels.append(Level.LANDLOCK)
    return levels


def probe() -> dict[str, object]:
    """Return the machine's offers, for `toolgym doctor` and bug reports."""
    return {
        "platform": sys.platform,
        "root": os.geteuid() == 0,
        "user_namespaces": sys.platform == "linux" and user_namespaces(),
        "landlock_abi": landlock.abi() if sys.platform == "linux" else 0,
        "seccomp": seccomp.supported(),
        "cgroup": _groups(),
        "levels": [level.value for level in offered()],
    }


def _groups() -> str:
    """Return version and controllers of the possible control groups, or the reason against them."""
    if sys.platform != "linux":
        return "not on this system"
    parent, why = cgroup.find()
    return f"v{parent.version}: {', '.join(parent.folders)}" if parent is not None else f"none ({why})"


def missing(level: Level, layers: Mapping[str, Any], network: str) -> Iterator[str]:
    """Yield a sentence for each thing that a template process, by its report `layers`, cannot do."""
    if not layers["landlock"]:
        yield "the kernel has no Landlock"
    if level is Level.NAMESPACES and not layers["fresh_proc"]:
        yield "parts of /proc are masked here, so programs get none, and forks share mapped files, folders and memory"
    if level is Level.NAMESPACES and layers["landlock"] < landlock.SCOPED_SINCE:
        yield "this kernel's Landlock does not keep signals inside; forks of one session could kill each other"
    if network == "host" and layers["landlock"] < landlock.SCOPED_SINCE:
        yield "this kernel's Landlock does not keep abstract sockets inside, so programs reach those of the host"
    if level is Level.NAMESPACES and not layers["own_users"]:
        yield "outside of their namespaces programs are one user, and share its quotas of pipes and sent descriptors"
    if level is Level.LANDLOCK:
        yield "programs are one user, and share its quotas of pipes, sent descriptors, pending signals and inotify"
    if _cores_are_handled():
        yield "core dumps are limited to 0, so the machine's handler gets crashed programs; allow 1 byte (`ulimit -Hc`)"
    if level is Level.NAMESPACES and not layers["terminals"]:
        yield "no file system of terminals can be mounted here, so programs of a session have none (`pty`)"
    if level is Level.UID:
        yield "programs of a session have no terminals (`pty`): those of the host are shared by all its users"
    if level is Level.LANDLOCK:
        yield "sessions cannot start programs"
    if layers["cgroup"] is None:
        why = cgroup.find()[1]
        if layers["watched"]:
            yield f"no control groups, so memory is watched and not limited by the kernel ({why})"
        else:
            yield f"no control groups and no /proc, so the memory of all processes together is not limited ({why})"
    if level is Level.LANDLOCK and os.geteuid() == 0:
        yield "programs run as root, without capabilities; run as another user, or at a stronger level"
    if level is not Level.NAMESPACES and os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOEXEC:
        yield f"{tempfile.gettempdir()} is mounted noexec, so what compilers make does not run; name another in TMPDIR"
    if level is not Level.NAMESPACES:
        yield "no file system of its own, so disk space and inodes are watched and not limited by the kernel"


def _cores_are_handled() -> bool:
    """Return whether a crash runs the machine's handler of cores: it does if 1 byte is not allowed."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/core_pattern") as file:
        return file.read(1) in "|@" and resource.getrlimit(resource.RLIMIT_CORE)[1] == 0
    return False


def choose(require: str | None, level: str | None) -> Level:
    """Return the level to use, the strongest unless `level` names it. Raises ConfigError, SandboxUnavailableError."""
    for name in (require, level):
        if name is not None and name not in list(Level):
            known = ", ".join(Level)
            raise ConfigError(f"no isolation level {name!r}{nearest(name, list(Level)) or '.'} Known: {known}.")
    levels = offered()
    if level is not None:
        if Level(level) not in levels:
            raise SandboxUnavailableError(
                f"this machine cannot give the isolation level {str(level)!r}; it offers: {_names(levels)}"
            )
        return Level(level)
    if not levels:
        raise SandboxUnavailableError(
            "this machine offers no isolation that the sandbox knows (it needs Linux with user namespaces or Landlock, "
            "on x86-64 or arm64); run code on a remote sandbox, or on ProcessSandbox, which isolates nothing"
        )
    order = list(Level)
    if require is not None and order.index(levels[0]) > order.index(Level(require)):
        raise SandboxUnavailableError(
            f"isolation level {str(require)!r} was required, and this machine offers: {_names(levels)}"
        )
    return levels[0]


def _names(levels: list[Level]) -> str:
    return ", ".join(levels) or "none"
