"""The processes of a sandbox, their memory, and their CPU time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import time
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")

CPU_CLOCK = 2
"""CPUCLOCK_SCHED: the kernel's number of another process's CPU clock, see clock_getcpuclockid(3)."""


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for child in children(pid):
        found += family(child)
    return found


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def cpu_seconds(pids: list[int]) -> float:
    """CPU time, user and system, of processes and all below them, those included that have ended and were reaped."""
    seconds = 0.0
    for member in {member for pid in pids for member in family(pid)}:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, words[13:15])) / TICK
            seconds += time.clock_gettime_ns(~member << 3 | CPU_CLOCK) / 1e9
    return seconds


def same_memory(one: int, other: int) -> bool:
    """Whether two processes share one memory, not a copy of it (`kcmp(2)`, KCMP_VM)."""
    number = {"x86_64": 312, "aarch64": 272}[platform.machine()]
    return one != other and ctypes.CDLL(None).syscall(number, one, other, 1, 0, 0) == 0


def proportional_mb(pids: list[int]) -> float:
    """Memory of processes and all below them, what they share divided among them.

    The first process of a sandbox's namespace runs in the memory of its oldest sibling, the zygote that forked it, and
    the helper that forks an interpreter in the memory of its parent: these count once.
    """
    total = 0
    members = {member for pid in pids for member in family(pid)}
    eldest = {child: one[0] for member in members for one in [children(member)] for child in one}
    parents = {child: member for member in members for child in children(member)}
    for member in members:
        with contextlib.suppress(OSError):
            if same_memory(member, eldest.get(member, member)) or same_memory(member, parents.get(member, member)):
                continue
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024
