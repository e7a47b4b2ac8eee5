"""How many processors there are to use, which in a container are often far fewer than the machine has."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local import hierarchies

PROCESSES_EACH = 8
"""Of the processes that a program may have, how many there are for each processor that it counts."""


def available() -> int:
    """Processors whose time this process can have: by its affinity, and by the quotas of its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, _quotas())]))


def told(limits: Limits) -> int:
    """How many processors programs count: no more than they can use, see `Limits.processes`."""
    usable = min(available(), limits.processes // PROCESSES_EACH)
    return max(1, usable if limits.cores is None else min(usable, math.ceil(limits.cores)))


def _quotas() -> Iterator[float]:
    """The limits of this process's control groups, in processors.

    Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/scheduler/sched-bwc.rst`.
    """
    for kind, controller, file in (("cgroup2", "", "cpu.max"), ("cgroup", "cpu", "cpu.cfs_quota_us")):
        for folder in _groups(kind, controller):
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # `max` is no number
                quota, *period = map(int, (folder / file).read_text().split())
                if quota > 0:
                    yield quota / (period[0] if period else int((folder / "cpu.cfs_period_us").read_text()))


def _groups(kind: str, controller: str) -> Iterator[Path]:
    """The folders of the control group that this process is in, and of those above it."""
    with contextlib.suppress(OSError, KeyError):
        own = hierarchies.own_groups()[controller]
        for options, root, point in hierarchies.mounts(kind):
            if not controller or controller in options.split(","):
                folder = hierarchies.below(point, root, own)
                yield from (one for one in (folder, *folder.parents) if one.is_relative_to(point))
