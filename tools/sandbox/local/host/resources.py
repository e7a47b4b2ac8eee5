"""Memory, processors and room for files. In a container there is often far less than the machine has."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local.kernel import cgroup
from toolgym.tools.sandbox.names import OptionError

PROCESSES_EACH = 8
"""Processes that a program may have for each processor that is reported to it."""

RESERVED_INODES = 16
"""Files and folders of the sandbox itself beside a program's."""

_MIB = 1 << 20
_BLOCK = 4096


def available_memory() -> int:
    """Return the bytes that this process and its children can use.

    Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/admin-guide/cgroup-v1/memory.rst`.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for kind, controller, file in (("cgroup2", "", "memory.max"), ("cgroup", "memory", "memory.limit_in_bytes")):
        for folder in _control_groups(kind, controller):
            with contextlib.suppress(OSError, ValueError):  # `max` is no number
                limits.append(int((folder / file).read_text()))
    return min(limits)


def available_processors() -> int:
    """Return the processors that this process can use, by its affinity and the quotas of its control groups."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *map(math.ceil, _quotas())]))


def reported_processors(limits: Limits) -> int:
    """Return the processors that programs see: no more than they can use, see `Limits.processes`."""
    usable = min(available_processors(), limits.processes // PROCESSES_EACH)
    return max(1, usable if limits.cores is None else min(usable, math.ceil(limits.cores)))


def _quotas() -> Iterator[float]:
    """Yield the limits of this process's control groups, in processors.

    Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/scheduler/sched-bwc.rst`.
    """
    for kind, controller, file in (("cgroup2", "", "cpu.max"), ("cgroup", "cpu", "cpu.cfs_quota_us")):
        for folder in _control_groups(kind, controller):
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # `max` is no number
                quota, *period = map(int, (folder / file).read_text().split())
                if quota > 0:
                    yield quota / (period[0] if period else int((folder / "cpu.cfs_period_us").read_text()))


def _control_groups(kind: str, controller: str) -> Iterator[Path]:
    """Yield the folders of the control group that this process is in, and of those above it."""
    with contextlib.suppress(OSError, KeyError):
        group = cgroup.own_groups()[controller]
        for options, root, point in cgroup.mounts(kind):
            if not controller or controller in options.split(","):
                folder = cgroup.below(point, root, group)
                yield from (path for path in (folder, *folder.parents) if path.is_relative_to(point))


def check_room(limits: Limits, files: Mapping[str, bytes], **texts: str) -> None:
    """Check that files fit into a program's folder, with texts that the sandbox keeps there, by their options.

    Raises OptionError, with the file and the limit, for `Limits.file_mb`, `Limits.disk_mb` or `Limits.inodes`.
    """
    encoded = {field: text.encode("utf-8", "surrogatepass") for field, text in texts.items() if text}
    for name, data in files.items():
        _check_size(limits, data, f"the file {name[:200]!r}", "files", name)
    for field, data in encoded.items():
        _check_size(limits, data, field, field)
    size = sum(-(-len(data) // _BLOCK) * _BLOCK for data in (*files.values(), *encoded.values()))
    if size > limits.disk_mb * _MIB:
        names = ", ".join(["the files", *encoded])
        raise OptionError(f"{names} need {size} bytes together, and Limits.disk_mb is {limits.disk_mb}", "files")
    paths = {path for name in files for path in (PurePosixPath(name), *PurePosixPath(name).parents)}
    if files and len(paths) + RESERVED_INODES > limits.inodes:
        raise OptionError(
            f"{len(files)} files with their folders are {len(paths)} inodes; {RESERVED_INODES} are the sandbox's own, "
            f"and Limits.inodes is {limits.inodes}",
            "files",
        )


def _check_size(limits: Limits, data: bytes, what: str, *field: str) -> None:
    if len(data) > limits.file_mb * _MIB:
        raise OptionError(f"{what} has {len(data)} bytes, and Limits.file_mb is {limits.file_mb}", *field)
