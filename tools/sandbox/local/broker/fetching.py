"""Reading files out of a child's folder, which a program may have filled with traps."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from toolgym.tools.sandbox.local.kernel import syscalls

MAX_FETCH = 32 * 1024 * 1024
"""Bytes of one file that is fetched."""

MAX_FETCH_TOTAL = 256 * 1024 * 1024
"""Bytes of all files together that one run fetches."""

READ_SIZE = 4 * 1024 * 1024
"""Bytes of one read."""


class Fetch:
    """Files that are being read; those that are absent, too large, not plain files or behind a link are left out.

    All are opened at once, so that later changes of the folder do not matter, and read in steps.

    Args:
        folder: a handle of the folder; -1: there is none.
        home: the program's working folder, relative to the first.
        names: relative to the working folder, or absolute below /tmp, which then is that folder.

    Attributes:
        found: names and sizes, in bytes, of those that have been read, in order.
    """

    def __init__(self, folder: int, home: str, names: Sequence[str]) -> None:
        self.found: list[tuple[str, int]] = []
        self._open: list[tuple[str, int, int]] = []
        together = 0
        for name in dict.fromkeys(names) if folder >= 0 else ():
            try:
                inside = name.removeprefix("/tmp/")
                fd = syscalls.open_beneath(folder, inside if inside != name else os.path.join(home, name))
            except OSError:
                continue
            about = os.fstat(fd)
            fits = about.st_size <= min(MAX_FETCH, MAX_FETCH_TOTAL - together)
            if not stat.S_ISREG(about.st_mode) or not fits:
                os.close(fd)
                continue
            together += about.st_size
            self._open.append((name, fd, about.st_size))
        self._open.reverse()
        self._size = 0

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
