"""Reading files out of a child's folder, which a program may have filled with traps."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Sequence

from toolgym.tools.sandbox.local import kernel

MAX_FETCH = 32 * 1024 * 1024
"""Bytes of one file that is fetched."""


def fetch(folder: int, home: str, names: Sequence[str]) -> dict[str, str]:
    """Read files in base64; those that are absent, too large, not plain files or behind a link are left out.

    Args:
        folder: a handle that the child gave before any foreign code ran; -1: it gave none.
        home: the program's working folder, relative to that one.
        names: relative to the working folder, or absolute below /tmp, which then is that folder.
    """
    found: dict[str, str] = {}
    if folder < 0:
        return found
    for name in names:
        try:
            inside = name.removeprefix("/tmp/")
            fd = kernel.open_beneath(folder, inside if inside != name else os.path.join(home, name))
        except OSError:
            continue
        try:
            about = os.fstat(fd)
            if stat.S_ISREG(about.st_mode) and about.st_size <= MAX_FETCH:
                found[name] = base64.b64encode(_read_whole(fd, about.st_size)).decode()
        finally:
            os.close(fd)
    return found


def _read_whole(fd: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.read(fd, size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
