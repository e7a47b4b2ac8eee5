"""Control groups (versions 1 and 2): the host finds where it may make them, and makes one per template process.

It gets the group `toolgym-<pid>-<start>-<namespace>-<number>`, below the group of this process (version 1, and the root
group of version 2) or beside it (elsewhere a group with processes may have no limited ones below). If the process that
made it was killed before it removed it, the next one that starts knows it by its name and does.

Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolgym.tools.sandbox.local.kernel.folders import PATTERN, is_gone, owner_tag

CONTROLLERS = ("memory", "pids", "cpu")
_NAME = re.compile(rf"toolgym-{PATTERN}-\d+")
REMOVE_TIMEOUT = 5.0

_numbers = itertools.count(1)


@dataclass(frozen=True)
class CgroupParent:
    """Folders in which groups may be made, by controller; with version 2 it is always the same one."""

    version: int
    folders: Mapping[str, Path]


@functools.cache
def find() -> tuple[CgroupParent | None, str]:
    """Folders where this process may make groups that limit memory, or why nowhere. Removes stale groups there."""
    reasons = []
    for look in (_version_2, _version_1):
        try:
            parent = look()
            for folder in set(parent.folders.values()):
                _sweep(folder)
            return parent, ""
        except OSError as error:
            reasons.append(str(error))
    return None, "; ".join(reasons)


class ControlGroup:
    """The control group of one template process, in which the user and group `owner` may make others."""

    def __init__(self, parent: CgroupParent, owner: int | None) -> None:
        self._version = parent.version
        name = f"toolgym-{owner_tag(os.getpid())}-{next(_numbers)}"
        self._by_controller = {controller: folder / name for controller, folder in parent.folders.items()}
        self._folders = list(dict.fromkeys(self._by_controller.values()))
        self._opened: list[int] = []
        try:
            for folder in self._folders:
                folder.mkdir()
            if self._version == 2:
                controllers = " ".join(f"+{controller}" for controller in self._by_controller)
                (self._folders[0] / "cgroup.subtree_control").write_text(controllers)
                (self._folders[0] / "main").mkdir()
            if owner is not None:
                for folder in self._folders:
                    os.chown(folder, owner, owner)
                    if self._version == 2:
                        os.chown(folder / "cgroup.procs", owner, owner)
        except OSError:
            self._try_to_remove()
            raise

    def open(self) -> dict[str, object]:
        """Arguments for `ChildCgroups`, with a descriptor for each controller; `close` them once inherited."""
        fds = {name: os.open(path, os.O_RDONLY | os.O_DIRECTORY) for name, path in self._by_controller.items()}
        self._opened = list(fds.values())
        return {"version": self._version, "folders": fds}

    @property
    def descriptors(self) -> list[int]:
        return self._opened

    def close(self) -> None:
        for fd in self._opened:
            os.close(fd)
        self._opened = []

    def removal(self) -> Iterator[float]:
        """Kill what is left in the group and remove it. Yields the seconds to wait before the next try. It never
        blocks, and gives up after `REMOVE_TIMEOUT`; then the next process that starts a sandbox tries again."""
        self.close()
        deadline = time.monotonic() + REMOVE_TIMEOUT
        while not self._try_to_remove() and time.monotonic() < deadline:
            yield 0.005

    def _try_to_remove(self) -> bool:
        return not [folder for folder in self._folders if not _remove(folder)]


def _remove(folder: Path) -> bool:
    """Remove a group and those below it, and kill the processes in them. Returns whether the group is gone."""
    groups = [Path(path) for path, _, _ in os.walk(folder, topdown=False)]
    try:
        for group in groups:
            group.rmdir()
        return True
    except FileNotFoundError:
        return not folder.exists()
    except OSError:
        for group in groups:
            with contextlib.suppress(OSError, ValueError):
                for pid in (group / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
        return False


def _sweep(folder: Path) -> None:
    """Remove groups whose makers are gone, in this folder and in those beside it, which may be of other jobs."""
    for entry in [*folder.glob("toolgym-*"), *folder.parent.glob("*/toolgym-*")]:
        match = _NAME.fullmatch(entry.name)
        if match and is_gone(match):
            _remove(entry)


def mounts(kind: str) -> list[tuple[str, str, Path]]:
    mounted = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.rstrip("\n").partition(" - ")
            root, point = left.split(" ")[3:5]
            name, _, options = right.split(" ", 2)
            if name == kind:
                mounted.append((options, root, Path(point)))
    return mounted


def own_groups() -> dict[str, str]:
    """This process's group by controller; that of version 2 has no name."""
    groups: dict[str, str] = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def below(point: Path, root: str, group: str) -> Path:
    """A group's folder in the file system; `root` is the group that is mounted at `point`."""
    relative = os.path.relpath(group, root)
    if relative.startswith(".."):
        raise OSError(f"the group {group} of this process is not below {root}, which is mounted at {point}")
    return point / relative if relative != "." else point


def _version_1() -> CgroupParent:
    mounted = mounts("cgroup")
    groups = own_groups()
    folders: dict[str, Path] = {}
    for controller in CONTROLLERS:
        for options, root, point in mounted:
            if controller in options.split(",") and controller in groups:
                folders[controller] = below(point, root, groups[controller])
    if "memory" not in folders:
        raise OSError("there is no version 1 memory controller")
    usable = {}
    for controller, folder in folders.items():
        try:
            with _trial(folder) as group:
                _move_something_into(group)
            usable[controller] = folder
        except OSError as error:
            if controller == "memory":
                raise OSError(f"version 1: {error}") from error
    return CgroupParent(1, usable)


def _version_2() -> CgroupParent:
    mounted = mounts("cgroup2")
    group = own_groups().get("")
    if not mounted or group is None:
        raise OSError("there is no version 2 hierarchy")
    _, root, point = mounted[0]
    home = below(point, root, group)
    reasons = []
    is_root = not (home / "cgroup.type").exists()  # of all groups: only it may have both processes and limited groups
    for folder in [home] if is_root else [home.parent] if home != point else []:
        try:
            return CgroupParent(2, dict.fromkeys(_controllers(folder), folder))
        except OSError as error:
            reasons.append(str(error))
    why = "; ".join(reasons) or f"{home} has processes of its own, and none may be made beside it"
    raise OSError(f"version 2: {why}")


def _controllers(folder: Path) -> list[str]:
    """The controllers of groups that are made in a folder; memory is among them."""
    there = (folder / "cgroup.controllers").read_text().split()
    if "memory" not in there:
        raise OSError(f"{folder} has no memory controller")
    passed_on = (folder / "cgroup.subtree_control").read_text().split()
    for name in CONTROLLERS:
        if name in there and name not in passed_on:
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{name}")
    with _trial(folder) as group:
        usable = (group / "cgroup.controllers").read_text().split()
        if "memory" not in usable:
            raise OSError(f"{folder} passes no memory controller on")
        _move_something_into(group)
    return [name for name in CONTROLLERS if name in usable]


@contextlib.contextmanager
def _trial(folder: Path) -> Iterator[Path]:
    group = folder / f"toolgym-{owner_tag(os.getpid())}-0"
    group.mkdir()
    try:
        yield group
    finally:
        deadline = time.monotonic() + 1
        while not _remove(group) and time.monotonic() < deadline:
            time.sleep(0.002)


def _move_something_into(group: Path) -> None:
    """Try whether a process of ours can be put into a group. Not with this one, which must stay where it is."""
    with subprocess.Popen(["/bin/sh", "-c", "read nothing"], stdin=subprocess.PIPE) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        process.kill()
