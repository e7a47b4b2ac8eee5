"""A file that one writer has for itself, until it closes the file or its process ends.

The lock is the kernel's, on the file itself; `filelock` would leave a second file beside each.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from toolgym.tools.errors import ConfigError

PATIENCE = 1.0
"""Wall seconds to wait for a lock: a process that was killed a moment ago may still be ending."""

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Answers of file systems that have no locks."""

_log = logging.getLogger("toolgym.rollout")


def open_locked(path: Path) -> io.FileIO:
    """Open a file for reading and writing, unbuffered, and lock it; a new one is empty, an old one is left as it is.
    A file that is no regular one, such as `/dev/null`, is not locked. Folders above are made. Raises ConfigError if
    another writer has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.FileIO(path, "r+b", opener=_open)
    try:
        if is_on_disk(file):
            _lock(file.fileno(), path)
    except BaseException:  # an interrupt too: no caller has the file yet
        file.close()
        raise
    return file


def is_on_disk(file: io.FileIO) -> bool:
    """Whether it is a file, and not a pipe or /dev/null."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


class LineFile:
    """A file to which whole lines are appended, each at once; what a full disk refused is tried again with the next."""

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self._pending = bytearray()
        self._partial = 0  # bytes of the first pending line that are in the file

    def clear(self) -> None:
        if is_on_disk(self.file):
            self.file.truncate(0)
            self.file.seek(0)

    def write(self, line: bytes) -> None:
        """Append a line, which ends with a newline. If that fails, the rest of it comes with the next one."""
        self._pending += line
        while self._pending:
            written = self.file.write(self._pending)
            ended = self._pending.rfind(b"\n", 0, written)
            self._partial = self._partial + written if ended < 0 else written - ended - 1
            del self._pending[:written]

    def drop_pending(self) -> None:
        """Remove the lines that could not be written whole, also the part of them that is in the file."""
        self._pending.clear()
        if self._partial and is_on_disk(self.file):
            self.file.truncate(self.file.seek(0, os.SEEK_END) - self._partial)
            self.file.seek(0, os.SEEK_END)
        self._partial = 0

    def close(self) -> None:
        """Write what is left to disk and close the file, which is closed in any case. Closing twice is fine."""
        if self.file.closed:
            return
        with self.file:
            self.write(b"")
            if is_on_disk(self.file):
                os.fsync(self.file.fileno())


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[io.FileIO]:
    """Rewrite a locked file: a process that is killed in between leaves the old one, or the new one whole. Yields
    the new file, to be cleared first. It takes the old one's place at the end of the block and stays open and
    locked; the caller closes it. If the block raises, the old one stays."""
    new = path.with_name(f"{path.name}.new")
    with open_locked(path) as old:
        if not is_on_disk(old):
            raise ConfigError(f"{str(path)!r} is no file: name one")
        file = open_locked(new)
        try:
            yield file
            os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:  # whatever the block raises, half a file replaces nothing
            file.close()
            new.unlink(missing_ok=True)
            raise


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{str(path)!r} is being written by another run: wait for its end, or name another file"
                ) from None
            time.sleep(0.02)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _log.warning("%s cannot be locked (%s): see to it that no other run writes it", path, error.strerror)
            return None
