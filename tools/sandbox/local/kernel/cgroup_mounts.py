"""Where the kernel shows control groups: what is mounted, and which group this process is in."""

from __future__ import annotations

import os
from pathlib import Path


def mounts(kind: str) -> list[tuple[str, str, Path]]:
    """Options, root and mount point of each mounted file system of that kind."""
    found = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.rstrip("\n").partition(" - ")
            root, point = left.split(" ")[3:5]
            name, _, options = right.split(" ", 2)
            if name == kind:
                found.append((options, root, Path(point)))
    return found


def own_groups() -> dict[str, str]:
    """This process's group by controller; that of version 2 has no name."""
    groups: dict[str, str] = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def below(point: Path, root: str, group: str) -> Path:
    """A group's folder in the file system; `root` is the group that is mounted at `point`.

    Raises:
        OSError: the group is not below that one.
    """
    relative = os.path.relpath(group, root)
    if relative.startswith(".."):
        raise OSError(f"the group {group} of this process is not below {root}, which is mounted at {point}")
    return point / relative if relative != "." else point
