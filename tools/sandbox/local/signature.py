"""Names that tell whose something is: a process's signature, for what outlives a process that was killed."""

from __future__ import annotations

import os
import re
from pathlib import Path

PATTERN = r"(?P<pid>\d+)-(?P<start>\d+)-(?P<namespace>\d+)"
"""What a signature looks like."""


def signature(pid: int) -> str:
    """Tells a process from every other one that had or will have its number."""
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = "0"
    return f"{pid}-{start}-{_pid_namespace()}"


def is_gone(match: re.Match[str]) -> bool:
    """Whether the process of a signature has ended. Of other pid namespaces nothing is known: False.

    Args:
        match: of a pattern that contains `PATTERN`.
    """
    if match["namespace"] != str(_pid_namespace()):
        return False
    return signature(int(match["pid"])) != f"{match['pid']}-{match['start']}-{match['namespace']}"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
