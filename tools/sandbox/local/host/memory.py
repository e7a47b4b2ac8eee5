"""How much memory there is to use: in a container often far less than the machine has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from toolgym.tools.sandbox.local.host.processors import control_groups


def available() -> int:
    """Return how many bytes this process and its children can use: the machine's, or what its control groups allow."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])


def _limits() -> Iterator[int]:
    """Yield the limits of this process's control groups, in bytes.

    Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `Documentation/admin-guide/cgroup-v1/memory.rst`.
    """
    for kind, controller, file in (("cgroup2", "", "memory.max"), ("cgroup", "memory", "memory.limit_in_bytes")):
        for folder in control_groups(kind, controller):
            with contextlib.suppress(OSError, ValueError):  # `max` is no number
                yield int((folder / file).read_text())
