"""Hide a secret in this process from other processes of the same user."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Collection
from pathlib import Path

_PR_SET_DUMPABLE = 4
_ARGUMENTS, _ENVIRONMENT = (45, 46), (47, 48)
"""Fields of `/proc/self/stat` behind the command's name: the first and last address."""


def hide_secrets(secrets: Collection[str]) -> None:
    """Overwrite secrets in the command line and environment that `/proc` shows, and close `/proc/PID/mem`, `environ`
    and `fd` of this process, and debuggers, to other processes without the capability `CAP_SYS_PTRACE`.

    Programs that this process starts are not affected. Does nothing on other systems than Linux.
    """
    if sys.platform != "linux":
        return
    for secret in secrets:
        for name, value in os.environ.items():
            if secret in value:
                del os.environ[name]
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    for first, last in (_ARGUMENTS, _ENVIRONMENT):
        start, end = int(fields[first]), int(fields[last])
        if start and end > start:
            _overwrite(start, end - start, secrets)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _overwrite(address: int, size: int, secrets: Collection[str]) -> None:
    memory = ctypes.string_at(address, size)
    for secret in secrets:
        pattern = secret.encode()
        place = memory.find(pattern) if pattern else -1
        while place >= 0:
            ctypes.memset(address + place, ord("x"), len(pattern))
            place = memory.find(pattern, place + len(pattern))
