"""How much a program keeps on a disk that it shares with the host, where no file system of its own limits it.

It counts the files in the program's folder, and those that the program deleted and still holds open. A count stops as
soon as it is over the limit, so it costs at most one `stat` per file allowed. A program can hide deleted files by
mapping them into memory and closing them, or with a process that no other may look into. So the watchdog also watches
the free space of the file system.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from toolgym.tools.sandbox.local.kernel import syscalls

MAX_DEPTH = 200
"""A folder nested deeper than this counts as over the limit, because it cannot be counted."""

RESERVE = 1 << 30
"""Bytes of the file system to leave free, whichever program fills it; half of what is free, where that is less."""


class OverdrawnError(Exception):
    """A program keeps more than its limit, or what it keeps cannot be counted."""


class Account:
    """Adds up blocks and files."""

    def __init__(self, most_bytes: int, most_files: int) -> None:
        self._most_bytes, self._most_files = most_bytes, most_files
        self.bytes = self.files = 0
        self._seen: set[tuple[int, int]] = set()

    def add(self, about: os.stat_result) -> None:
        """Count a file or folder, once however many names it has.

        Raises:
            OverdrawnError: that was too much.
        """
        if about.st_nlink != 1 and not stat.S_ISDIR(about.st_mode):
            key = about.st_dev, about.st_ino
            if key in self._seen:
                return
            self._seen.add(key)
        self.files += 1
        self.bytes += about.st_blocks * 512
        if self.bytes > self._most_bytes or self.files > self._most_files:
            raise OverdrawnError


def over_limit(
    folder: str, most_bytes: int, most_files: int, proc: int, processes: Iterable[int], *, owner: int
) -> bool:
    """Whether a program keeps more than it may.

    Args:
        folder: its working folder, which may change during the count.
        most_bytes: allowed, counted in blocks as the disk does.
        most_files: files and folders allowed.
        proc: a /proc that shows its processes.
        processes: their numbers there.
        owner: their user id, which this process takes on to look into them; 0: they have its own.
    """
    account = Account(most_bytes, most_files)
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        device = os.fstat(top).st_dev
        _count(top, account, 0)
        with syscalls.files_as(owner) if owner else contextlib.nullcontext():
            for pid in processes:
                _count_deleted(proc, pid, device, account)
    except OverdrawnError:
        return True
    finally:
        os.close(top)
    return False


def free(folder: str) -> tuple[int, int]:
    """Bytes and files that the file system of a folder has room for; 0 files where it has no such number."""
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize, about.f_favail


def _count(folder: int, account: Account, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise OverdrawnError
    try:
        entries = os.scandir(folder)
    except OSError:
        return
    inner = []
    with entries:
        for entry in entries:
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            account.add(about)
            if stat.S_ISDIR(about.st_mode):
                inner.append(entry.name)
    for name in inner:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue
        try:
            _count(fd, account, depth + 1)
        finally:
            os.close(fd)


def _count_deleted(proc: int, pid: int, device: int, account: Account) -> None:
    try:
        descriptors = os.open(f"{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return
    try:
        for name in os.listdir(descriptors):
            try:
                about = os.stat(name, dir_fd=descriptors)
            except OSError:
                continue
            if about.st_nlink == 0 and about.st_dev == device and stat.S_ISREG(about.st_mode):
                account.add(about)
    except OSError:
        return
    finally:
        os.close(descriptors)
