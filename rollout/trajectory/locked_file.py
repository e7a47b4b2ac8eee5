"""A file that one writer has for itself, until it closes the file or its process ends."""

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
"""What file systems answer that have no locks."""

_log = logging.getLogger("toolgym.rollout")


def open_locked(path: Path) -> io.FileIO:
    """Open a file for reading and writing, unbuffered, and lock it; a new one is empty, an old one is left as it is.

    The lock is the kernel's (flock), so a process that is killed leaves none behind. What is no regular file, such as
    `/dev/null`, is not locked. Folders above are made.

    Raises:
        ConfigError: another writer has it.
        OSError: it cannot be opened.
    """
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


def clear(file: io.FileIO) -> None:
    """Drop all that is in a file.

    Raises:
        OSError: it cannot be cut.
    """
    if is_on_disk(file):
        file.truncate(0)
        file.seek(0)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[io.FileIO]:
    """Write a locked file anew: a process that is killed meanwhile leaves the old one, or the new one whole.

    Gives the new file, which takes the old one's place at the end of the block and stays open and locked; it is the
    caller's to close. Where the block raises, the old one stays.

    Raises:
        ConfigError: another writer has it.
        OSError: it cannot be written.
    """
    new = path.with_name(f"{path.name}.new")
    with open_locked(path) as old:
        if not is_on_disk(old):
            raise ConfigError(f"{str(path)!r} is no file: name one")
        file = open_locked(new)
        try:
            clear(file)
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
