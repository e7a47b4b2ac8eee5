"""Folders that programs work in if they have no file system of their own; their names tell who made them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

PATTERN = r"(?P<pid>\d+)-(?P<start>\d+)-(?P<namespace>\d+)"
_PREFIX = "toolgym-sandbox-"
_NAME = re.compile(rf"{_PREFIX}{PATTERN}-.+")

REMOVE_TIMEOUT = 60.0


def make() -> str:
    """Make a folder for all programs of a sandbox, which other users may pass through. The caller removes it."""
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{owner_tag(os.getpid())}-")
    os.chmod(folder, 0o711)
    return folder


@functools.cache
def sweep() -> None:
    """Remove this user's folders whose makers were killed before they could, once per process."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and is_gone(match):
                about = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                    remove(entry.path)


def remove(folder: str) -> None:
    """Remove a folder, even a tree too deep for Python, or folders without permissions. Never raises."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # an empty folder: that takes no free descriptor
        return
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            for command in (["chmod", "-R", "u+rwx", folder], ["rm", "-rf", folder]):
                subprocess.run(command, capture_output=True, check=False, timeout=REMOVE_TIMEOUT)


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
