"""Owner tags in names of folders and cgroups, to recognise what a killed process left."""

from __future__ import annotations

import os
import re
from pathlib import Path

PATTERN = r"(?P<pid>\d+)-(?P<start>\d+)-(?P<namespace>\d+)"


def owner_tag(pid: int) -> str:
    """The tag of a process, different for every process that had or will have its number."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = "0"
    return f"{pid}-{start}-{_pid_namespace()}"


def is_gone(match: re.Match[str]) -> bool:
    """Whether the process of a tag (`PATTERN`) has ended; False in other pid namespaces, where it cannot be seen."""
    if match["namespace"] != str(_pid_namespace()):
        return False
    return owner_tag(int(match["pid"])) != f"{match['pid']}-{match['start']}-{match['namespace']}"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
