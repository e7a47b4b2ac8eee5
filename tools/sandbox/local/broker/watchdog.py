"""Measures, at intervals, what children use of the resources that the kernel does not limit for us."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from toolgym.tools.sandbox.local.broker import usage
from toolgym.tools.sandbox.local.broker.channel import Channel, Child, Kill, KillReason
from toolgym.tools.sandbox.local.zygote.zygote import ChildSpec

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import AsleepAnswer

WATCH_EVERY = 0.05
"""Seconds between two looks at children that work on a request."""

IDLE_EVERY = 1.0
"""Seconds between two looks at sessions that wait for their next cell: their threads may still run."""

IDLE_AT_ONCE = 32
"""Waiting sessions that are looked at each time, in turn."""

GLANCE_EVERY = 0.005
"""Seconds between two looks at the free space of a disk that children share with the host. A look costs next to
nothing, and a program can write a GB in a second: when free space shrinks fast, files are counted at once."""

FORK_ROOM = 1 / 8
"""Share of a session's memory that must be left for a fork. All forks need some when they are used first."""

FAST = 1 / 8
"""Free space shrinks fast when this share of one child's allowance is gone since the last count."""

DISK_SHARE = 0.05
"""Share of a processor that counting one child's files may take: after a long count the next one comes later."""

ALARM_SHARE = 0.25
"""The same while free space shrinks fast."""

LOOKS = 2
"""How many looks in a row must find a program asleep: one that computes may well wait for a moment."""


class Watchdog:
    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self.watches = spec.proc >= 0 or spec.cgroups is not None
        self._next = self._next_thorough = self._next_idle = 0.0
        self._turn = 0
        self._looks: dict[int, int] = {}  # by request, how many in a row found its program asleep
        self._free = self._free_files = 0
        self._reserve = min(usage.RESERVE, usage.free_disk(spec.work)[0] // 2) if spec.disk else 0

    def pace(self, busy: bool) -> float:
        if self._spec.disk is None:
            return WATCH_EVERY if busy else IDLE_EVERY
        return GLANCE_EVERY if busy else WATCH_EVERY

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def look(self, busy: Collection[Child], sessions: Mapping[str, Channel]) -> Iterator[tuple[Child, Kill]]:
        """Yield the children that use too much, and why to kill each. The `sessions` are gone through only once a
        second, unless free space shrinks fast: each page that this process writes to stops being shared."""
        now = time.monotonic()
        self._next = now + self.pace(True)
        alarm, full = self._glance()
        if now < self._next_thorough and not alarm:
            return
        looked_at = list(busy)
        if now >= self._next_idle or alarm:
            self._next_idle = now + IDLE_EVERY
            idle = dict.fromkeys(channel.child for channel in sessions.values())
            looked_at += self._some([child for child in idle if child not in busy])
        thorough = now >= self._next_thorough
        if thorough:
            self._next_thorough = now + WATCH_EVERY
        for child in looked_at:
            if thorough and self._too_much_memory(child):
                yield child, Kill(KillReason.MEMORY_LIMIT)
            elif full:
                yield child, Kill(KillReason.DISK_LIMIT, "the host's file system is nearly full", final=True)
            elif self._spec.disk is not None and self._too_much_disk(child, *self._spec.disk, alarm=alarm):
                most, files = self._spec.disk
                why = f"it kept more than {most >> 20} MiB or {files} files on disk"
                yield child, Kill(KillReason.DISK_LIMIT, why)

    def _glance(self) -> tuple[bool, bool]:
        if self._spec.disk is None:
            return False, False
        (free, files), (most, most_files) = usage.free_disk(self._spec.work), self._spec.disk
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
        if self._spec.cgroups is not None:  # then the kernel limits it
            return self._spec.ran_out_of_memory(child.slot)
        began = time.monotonic()
        pid = self.number(child)
        if not pid or began < child.weighed + child.weighing / ALARM_SHARE:
            return False
        processes, most = usage.tree(self._spec.proc, pid), child.memory_mb + child.shadow_mb << 20
        over = usage.used_bytes(self._spec.proc, processes, self._spec.shared_pages) > most
        if over:
            processes = usage.without_helpers(self._spec.proc, processes)
            over = usage.used_bytes(self._spec.proc, processes, self._spec.shared_pages) > most
        if over and len(processes) > 1:  # they may share pages with each other too, as forks do
            with contextlib.suppress(OSError, IndexError, ValueError):  # not to be seen: then each counts by itself
                over = usage.own_bytes(self._spec.proc, processes, child.weights) > most
            child.weighed = time.monotonic()
            child.weighing = child.weighed - began
        else:
            child.weights.clear()
        return over

    def has_room(self, child: Child) -> bool:
        """Whether a session may be forked, as far as is known: at the limit of memory it ends with all its forks."""
        most = child.memory_mb << 20
        if self._spec.cgroups is not None:
            return self._spec.cgroups.left(child.slot) > most * FORK_ROOM
        return sum(size for _, size in child.weights.values()) < most * (1 - FORK_ROOM)

    def _too_much_disk(self, child: Child, most_bytes: int, most_files: int, *, alarm: bool) -> bool:
        began = time.monotonic()
        if began < child.counted + child.counting / (ALARM_SHARE if alarm else DISK_SHARE):
            return False
        pid = self.number(child)
        processes = usage.tree(self._spec.proc, pid) if pid else []
        first_uid = self._spec.hardening.first_uid
        owner = first_uid + child.slot if first_uid else 0
        over = usage.over_disk_limit(child.folder, most_bytes, most_files, self._spec.proc, processes, owner=owner)
        if child.disk_factor > 1:
            if not over:
                child.disk_factor = 1  # a later cell has made room
            most_bytes, most_files = most_bytes * child.disk_factor, most_files * child.disk_factor
            over = usage.over_disk_limit(child.folder, most_bytes, most_files, self._spec.proc, processes, owner=owner)
        child.counted = time.monotonic()
        child.counting = child.counted - began
        return over

    def number(self, child: Child) -> int:
        """The child's number in that /proc; 0: unknown."""
        if self._spec.same_numbers:
            return child.pid
        if self._spec.proc >= 0 and child.number == 0:
            child.number = usage.number(self._spec.proc, child.pidfd)
        return child.number

    def asleep(self, requests: Iterable[tuple[int, Channel]]) -> AsleepAnswer:
        """The requests, of the given ids and channels, whose programs sleep. A program of a session sleeps if all that
        runs in the session does; none does if no /proc shows the children."""
        began = time.process_time()
        looks: dict[int, int] = {}
        asleep: dict[Child, bool] = {}
        for number, channel in requests:
            child = channel.child
            if child not in asleep:
                place = 0 if self._spec.proc < 0 or not child.pid or child.dead else self.number(child)
                asleep[child] = place > 0 and usage.asleep(self._spec.proc, place)
            if asleep[child]:
                looks[number] = self._looks.get(number, 0) + 1
        self._looks = looks
        asleep_ids = [number for number, count in looks.items() if count >= LOOKS]
        return {"asleep": asleep_ids, "seconds": time.process_time() - began}
