"""How many processors there are to use: in a container often far fewer than the machine has."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local.kernel import cgroup_mounts

PROCESSES_EACH = 8
"""Processes that a program may have for each processor that is reported to it."""


def available() -> int:
    """Return how many processors this process can use, by its affinity and the quotas of its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, _quotas())]))


def reported(limits: Limits) -> int:
    """Return how many processors programs see: no more than they can use, see `Limits.processes`."""
    usable = min(available(), limits.processes // PROCESSES_EACH)
    return max(1, usable if limits.cores is None else min(usable, math.ceil(limits.cores)))


def _quotas() -> Iterator[float]:
    """Yield the limits of this process's control groups, in processors.

    Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/scheduler/sched-bwc.rst`.
    """
    for kind, controller, file in (("cgroup2", "", "cpu.max"), ("cgroup", "cpu", "cpu.cfs_quota_us")):
        for folder in control_groups(kind, controller):
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # `max` is no number
                quota, *period = map(int, (folder / file).read_text().split())
                if quota > 0:
                    yield quota / (period[0] if period else int((folder / "cpu.cfs_period_us").read_text()))


def control_groups(kind: str, controller: str) -> Iterator[Path]:
    """Yield the folders of the control group that this process is in, and of those above it."""
    with contextlib.suppress(OSError, KeyError):
        own = cgroup_mounts.own_groups()[controller]
        for options, root, point in cgroup_mounts.mounts(kind):
            if not controller or controller in options.split(","):
                folder = cgroup_mounts.below(point, root, own)
                yield from (one for one in (folder, *folder.parents) if one.is_relative_to(point))
