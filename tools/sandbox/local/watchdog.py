"""Looks, every now and then, at what children use of the things that the kernel does not limit for us."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from toolgym.tools.sandbox.local import disk, memory
from toolgym.tools.sandbox.local.lane import Child, Lane
from toolgym.tools.sandbox.local.leaves import Leaves

WATCH_EVERY = 0.05
"""Seconds between two looks at whatever runs."""

IDLE_EVERY = 1.0
"""Seconds between two looks at sessions that wait for their next cell: a thread of theirs may go on."""

IDLE_AT_ONCE = 32
"""How many of them are looked at each time, in turn."""

GLANCE_EVERY = 0.005
"""Seconds between two looks at the free space of a disk that children share with the host. That takes no time, and a
program can write a GB in a second: when space goes fast, files are counted at once."""

FAST = 1 / 8
"""Of what one child may keep, how much has to be gone since the last count for that."""

DISK_SHARE = 0.05
"""Of a processor, how much counting one child's files may take: after a long count the next one comes later."""

ALARM_SHARE = 0.25
"""The same while space goes fast."""


@dataclass(frozen=True)
class Eyes:
    """What a watchdog sees with.

    Attributes:
        proc: descriptor of a /proc that shows the children; -1: none does.
        same_numbers: whether processes have the numbers there by which this process knows them.
        shared_pages: resident pages of this process, which every child shares.
        leaves: control groups, where the kernel limits memory; None: it is watched here.
        first_uid: user id of the first slot, where each has its own; 0: all have this process's.
        disk: where children write to the host's disk: bytes and files that each may keep there; None: they do not.
        work: folder that theirs are in.
    """

    proc: int
    same_numbers: bool
    shared_pages: int
    leaves: Leaves | None = None
    first_uid: int = 0
    disk: tuple[int, int] | None = None
    work: str = ""


class Watchdog:
    """Finds the children that use too much."""

    def __init__(self, eyes: Eyes) -> None:
        self._eyes = eyes
        self._next = self._next_thorough = self._next_idle = 0.0
        self._turn = 0
        self._free = self._free_files = 0
        self._reserve = min(disk.RESERVE, disk.free(eyes.work)[0] // 2) if eyes.disk else 0

    @property
    def watches(self) -> bool:
        """Whether there is anything to look at."""
        return self._eyes.proc >= 0 or self._eyes.leaves is not None

    def pace(self, busy: bool) -> float:
        """Seconds between two looks, when something runs and when all sessions wait."""
        if self._eyes.disk is None:
            return WATCH_EVERY if busy else IDLE_EVERY
        return GLANCE_EVERY if busy else WATCH_EVERY

    def is_due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next

    def look(self, busy: Collection[Child], sessions: Mapping[str, Lane]) -> Iterator[tuple[Child, str, str]]:
        """Yield the children that use too much, with the status that they get and why.

        Args:
            busy: those that work for somebody now.
            sessions: all sessions. They are gone through once a second only, unless space goes fast: whatever this
                process touches is a page that children forked before no longer share with those forked after.
        """
        now = time.monotonic()
        self._next = now + self.pace(True)
        alarm, full = self._glance()
        if now < self._next_thorough and not alarm:
            return
        looked_at = list(busy)
        if now >= self._next_idle or alarm:
            self._next_idle = now + IDLE_EVERY
            idle = dict.fromkeys(lane.child for lane in sessions.values())
            looked_at += self._some([child for child in idle if child not in busy])
        thorough = now >= self._next_thorough
        if thorough:
            self._next_thorough = now + WATCH_EVERY
        for child in looked_at:
            if thorough and self._too_much_memory(child):
                yield child, "memory_limit", ""
            elif full:
                yield child, "disk_limit", "the host's file system is nearly full"
            elif self._eyes.disk is not None and self._too_much_disk(child, *self._eyes.disk, alarm=alarm):
                most, files = self._eyes.disk
                yield child, "disk_limit", f"it kept more than {most >> 20} MiB or {files} files on disk"

    def _glance(self) -> tuple[bool, bool]:
        """Whether space goes fast, and whether it is nearly gone."""
        if self._eyes.disk is None:
            return False, False
        (free, files), (most, most_files) = disk.free(self._eyes.work), self._eyes.disk
        alarm = free < self._free - most * FAST or files < self._free_files - most_files * FAST
        if alarm or time.monotonic() >= self._next_thorough:
            self._free, self._free_files = free, files
        self._free, self._free_files = max(free, self._free), max(files, self._free_files)
        return alarm, free < self._reserve

    def _some(self, idle: list[Child]) -> list[Child]:
        start = self._turn % len(idle) if idle else 0
        self._turn = start + IDLE_AT_ONCE
        return (idle + idle)[start : start + min(IDLE_AT_ONCE, len(idle))]

    def _too_much_memory(self, child: Child) -> bool:
        if self._eyes.leaves is not None:
            return self._eyes.leaves.overrun(child.slot)
        pid = self._number(child)
        return pid > 0 and memory.used_bytes(self._eyes.proc, pid, self._eyes.shared_pages) > child.memory_mb << 20

    def _too_much_disk(self, child: Child, most_bytes: int, most_files: int, *, alarm: bool) -> bool:
        began = time.monotonic()
        if began < child.counted + child.counting / (ALARM_SHARE if alarm else DISK_SHARE):
            return False
        pid = self._number(child)
        processes = memory.tree(self._eyes.proc, pid) if pid else []
        owner = self._eyes.first_uid + child.slot if self._eyes.first_uid else 0
        over = disk.over_limit(child.folder, most_bytes, most_files, self._eyes.proc, processes, owner=owner)
        child.counted = time.monotonic()
        child.counting = child.counted - began
        return over

    def _number(self, child: Child) -> int:
        """The child as /proc counts; 0: unknown."""
        if self._eyes.same_numbers:
            return child.pid
        if self._eyes.proc >= 0 and child.number == 0:
            child.number = memory.number(self._eyes.proc, child.pidfd)
        return child.number
