"""The children's control groups: one for each slot, which serves all children in it one after another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from toolgym.tools.sandbox.local.kernel import syscalls

OVERHEAD_MB = 8
"""MiB on top of a child's limit for the kernel's own memory of it: page tables, stacks, sockets."""

_MEMORY = {1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), 2: ("memory.max",)}
_USAGE = {1: "memory.usage_in_bytes", 2: "memory.current"}
_EVENTS = {1: "memory.oom_control", 2: "memory.events"}
_CPU_PERIOD = 100_000
_MOUNT = "/sys/fs/cgroup"

LIMITS = (
    "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.max", "memory.high", "memory.limit_in_bytes", "memory.max",
)  # fmt: skip
"""Files of a group in which programs look for the limits of their memory and processors."""


def group_folders(cgroups: ChildCgroups | None) -> list[str]:
    """Return the folders of the groups that the children of this process are in, and of all groups above these.
    `{slot}` stands for a child's slot."""
    groups = {} if cgroups is None else cgroups.paths
    folders = [f"{path}/{{slot}}" for path in groups.values()]
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        rows = []
    for _, controllers, path in rows:
        if "{" not in path and not groups.keys() & set(controllers.split(",")) and not (groups and not controllers):
            folders.append(f"{_MOUNT}/{controllers}{path}".replace("//", "/").rstrip("/"))
    above = dict.fromkeys(
        str(folder) for path in folders for folder in (PurePosixPath(path), *PurePosixPath(path).parents)
    )
    return [folder for folder in above if folder.startswith(f"{_MOUNT}/") or folder == _MOUNT]


class ChildCgroups:
    """The groups of one template process's children: with limits of processes and threads, of processors (`cores`),
    and, on top of a limit of memory, of files that a child may keep in memory. `folders` are descriptors by controller.
    """

    def __init__(
        self, version: int, folders: Mapping[str, int], *, processes: int, cores: float | None, files_mb: int
    ) -> None:
        self._version, self._folders = version, dict(folders)
        for fd in self._folders.values():
            os.set_inheritable(fd, False)
        self._extra = (files_mb + OVERHEAD_MB) << 20
        self._processes, self._cores = processes, cores
        self._limits: dict[int, int] = {}
        self._killed: dict[int, int] = {}
        self._most: dict[int, int] = {}
        self._together: dict[int, bool] = {}
        if version == 2:
            _write(self._folders["memory"], "main/cgroup.procs", "0")

    @property
    def paths(self) -> dict[str, str]:
        """Folders of the groups above those of the slots, by controller."""
        return {name: os.readlink(f"/proc/self/fd/{fd}") for name, fd in self._folders.items()}

    @property
    def layers(self) -> dict[str, Any]:
        return {"version": self._version, "controllers": sorted(self._folders)}

    def prepare(self, slot: int) -> None:
        if slot not in self._limits:
            self._make(slot)
        else:
            self._killed[slot] = self._kills(slot)
        self.allow(slot, self._processes)
        self.end_together(slot, together=True)

    def limit(self, slot: int, memory_mb: int) -> None:
        """Limit the memory of a slot's child: all its processes, with the files that they keep in memory."""
        most = (memory_mb << 20) + self._extra
        if self._limits[slot] == most:
            return
        names = _MEMORY[self._version]
        # With swap counted too, the smaller of the two limits has to be moved first.
        for name in names if most < self._limits[slot] or not self._limits[slot] else reversed(names):
            _write(self._folders["memory"], f"{slot}/{name}", str(most), may_be_missing=name != names[0])
        self._limits[slot] = most

    def allow(self, slot: int, processes: int) -> None:
        if "pids" in self._folders and self._most.get(slot) != processes:
            _write(self._folders["pids"], f"{slot}/pids.max", str(processes))
            self._most[slot] = processes

    def end_together(self, slot: int, *, together: bool) -> None:
        """Have the kernel kill all processes of a slot when its memory is used up, or only one of them: the shadow of a
        session has to be spared. Version 1 always kills one."""
        if self._version == 2 and self._together.get(slot) != together:
            _write(self._folders["memory"], f"{slot}/memory.oom.group", str(int(together)), may_be_missing=True)
            self._together[slot] = together

    def forget_kills(self, slot: int) -> None:
        """Let `overrun` report only what the kernel kills from here on."""
        self._killed[slot] = self._kills(slot)

    def enter(self, slot: int) -> None:
        """Move this process, which has one thread, into a slot's group, and with it all that it will start."""
        if self._version == 2:
            _write(self._folders["memory"], f"{slot}/cgroup.procs", "0")
            return
        for fd in self._folders.values():
            # To move a process, the kernel stops every fork and exit of the machine; to move a thread, it does not.
            _write(fd, f"{slot}/tasks", "0")

    def overrun(self, slot: int) -> bool:
        return self._kills(slot) > self._killed[slot]

    def left(self, slot: int) -> int:
        """Bytes that a slot's child may still use; cached files of the disk make room for it."""
        words = self._read(slot, "memory.stat").split()
        cached = sum(int(words[words.index(name) + 1]) for name in (b"active_file", b"inactive_file") if name in words)
        return self._limits[slot] - int(self._read(slot, _USAGE[self._version])) + cached

    def _make(self, slot: int) -> None:
        for fd in self._folders.values() if self._version == 1 else [self._folders["memory"]]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(str(slot), 0o755, dir_fd=fd)
        self._limits[slot] = 0
        if self._version == 2:
            # The kernel swaps out nothing of a child.
            _write(self._folders["memory"], f"{slot}/memory.swap.max", "0", may_be_missing=True)
        if "cpu" in self._folders and self._cores is not None:
            quota = max(1000, int(self._cores * _CPU_PERIOD))
            if self._version == 2:
                _write(self._folders["cpu"], f"{slot}/cpu.max", f"{quota} {_CPU_PERIOD}")
            else:
                _write(self._folders["cpu"], f"{slot}/cpu.cfs_period_us", str(_CPU_PERIOD))
                _write(self._folders["cpu"], f"{slot}/cpu.cfs_quota_us", str(quota))
        self._killed[slot] = self._kills(slot)

    def _kills(self, slot: int) -> int:
        words = self._read(slot, _EVENTS[self._version]).split()
        return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0

    def _read(self, slot: int, name: str) -> bytes:
        with syscalls.opened(f"{slot}/{name}", os.O_RDONLY, self._folders["memory"]) as fd:
            return os.read(fd, 16384)


def _write(folder: int, name: str, text: str, *, may_be_missing: bool = False) -> None:
    try:
        with syscalls.opened(name, os.O_WRONLY, folder) as fd:
            os.write(fd, text.encode())
    except FileNotFoundError:
        if not may_be_missing:
            raise
