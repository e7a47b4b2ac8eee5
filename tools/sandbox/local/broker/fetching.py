"""Reading files out of a child's folder, which a program may have filled with traps."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from toolgym.tools.sandbox.local.kernel import syscalls

MAX_TOTAL = 256 * 1024 * 1024
"""Bytes of all files together that one run fetches. How large one may be is a limit of the program that wrote it."""

READ_SIZE = 4 * 1024 * 1024
"""Bytes of one read."""

MAX_REASONS = 100
"""Files that are left out with a reason."""


class Fetch:
    """Files that are being read; those that are absent, too large, not plain files or behind a link are left out.

    All are opened at once, so that later changes of the folder do not matter, and read in steps.

    Args:
        folder: a handle of the folder; -1: there is none.
        home: the program's working folder, relative to the first.
        names: relative to the working folder, or absolute below /tmp, which then is that folder.

    Attributes:
        found: names and sizes, in bytes, of those that have been read, in order.
        left_out: why a file that exists is left out, a phrase each.
    """

    def __init__(self, folder: int, home: str, names: Sequence[str]) -> None:
        self.found: list[tuple[str, int]] = []
        self.left_out: list[str] = []
        self._open: list[tuple[str, int, int]] = []
        self._room = MAX_TOTAL
        for name in dict.fromkeys(names) if folder >= 0 else ():
            try:
                inside = name.removeprefix("/tmp/")
                fd = syscalls.open_beneath(folder, inside if inside != name else os.path.join(home, name))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                linked = error.errno in (errno.ELOOP, errno.EXDEV)
                self._leave_out(name, "is a link, or behind one" if linked else os.strerror(error.errno or 0))
                continue
            about = os.fstat(fd)
            if why := self._why_not(about):
                self._leave_out(name, why)
                os.close(fd)
                continue
            self._room -= about.st_size
            self._open.append((name, fd, about.st_size))
        self._open.reverse()
        self._size = 0

    def _why_not(self, about: os.stat_result) -> str:
        """What keeps a file from being fetched; empty: nothing."""
        if not stat.S_ISREG(about.st_mode):
            return "is not a plain file"
        if about.st_size > self._room:
            return f"has {about.st_size} bytes, and all files together may have {MAX_TOTAL}"
        return ""

    def _leave_out(self, name: str, why: str) -> None:
        if len(self.left_out) < MAX_REASONS:
            self.left_out.append(f"{name[:200]!r} {why}")

    def read(self) -> bytes:
        """The next bytes of the files; empty: there are no more, and all files are closed."""
        while self._open:
            name, fd, size = self._open[-1]
            data = os.read(fd, min(READ_SIZE, size - self._size)) if size > self._size else b""
            self._size += len(data)
            if data:
                return data
            os.close(fd)
            self._open.pop()
            self.found.append((name, self._size))
            self._size = 0
        return b""
