"""Owner tags in names of folders and cgroups, to recognise what a killed process left."""

from __future__ import annotations

import os
import re
from pathlib import Path

PATTERN = r"(?P<pid>\d+)-(?P<start>\d+)-(?P<namespace>\d+)"
"""What an owner tag looks like."""


def owner_tag(pid: int) -> str:
    """The tag of a process, different for every process that had or will have its number."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = "0"
    return f"{pid}-{start}-{_pid_namespace()}"


def is_gone(match: re.Match[str]) -> bool:
    """Whether the process of a tag has ended; False for processes of other pid namespaces, which are not visible.

    Args:
        match: of a pattern that contains `PATTERN`.
    """
    if match["namespace"] != str(_pid_namespace()):
        return False
    return owner_tag(int(match["pid"])) != f"{match['pid']}-{match['start']}-{match['namespace']}"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
