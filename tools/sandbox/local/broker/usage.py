"""Children's use of memory, processors and disk, read from a /proc that shows them and from their folders.

If the jail may mount no /proc of its own, the broker uses the host's: it kept a descriptor of it, and reads each
child's number there from its own `fdinfo`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from toolgym.tools.sandbox.local.kernel import syscalls

PAGE = resource.getpagesize()
_FOLDER = os.O_RDONLY | os.O_DIRECTORY

MAX_DEPTH = 200
"""A folder nested deeper than this counts as over the limit: it cannot be counted."""

RESERVE = 1 << 30
"""Bytes of the file system to leave free, whichever program fills it; half of what is free, if that is less."""

_AWAKE = "RD"
"""States of threads that run or wait for a processor, and of those that wait for a disk. Source: `proc_pid_stat(5)`."""

_FLAGS = 6
"""The index of a process's flags in `stat_words`."""

_EXITING = 0x4
"""PF_EXITING, of the kernel's <linux/sched.h>."""

LIST_READS = 3
"""Times that a process's list of children is searched for one of them: the kernel may skip one while another ends."""

_KILL_BIT = 1 << (signal.SIGKILL - 1)


def own_pages(proc: int) -> tuple[int, int]:
    """Pages of this process: resident, and private (data and stack)."""
    words = _read(proc, "self/statm").split()
    return int(words[1]), int(words[5])


def number(proc: int, pidfd: int) -> int:
    """The number in a /proc of the process behind a handle; 0: it is gone, or not visible there."""
    try:
        text = _read(proc, f"self/fdinfo/{pidfd}")
    except OSError:
        return 0
    return max(0, int(text.partition("Pid:")[2].split()[0]))


class Numbers(NamedTuple):
    """Numbers of an interpreter and of its helper in a /proc, and `here`, in the broker's pid namespace.

    A number is 0 if there is no such process.
    """

    interpreter: int = 0
    interpreter_here: int = 0
    helper: int = 0
    helper_here: int = 0


def numbers(proc: int, pidfd: int, last: Numbers, *, helped: bool) -> Numbers:
    """Return the numbers of the interpreter behind a handle, and of its helper if it is `helped`.

    `last` is the previous answer, which saves the search for the helper as long as that lives.
    """
    try:
        about = _read(proc, f"self/fdinfo/{pidfd}")
    except OSError:
        return Numbers()
    interpreter = max(0, int(about.partition("Pid:")[2].split()[0]))
    if interpreter == 0:
        return Numbers()
    inside = about.partition("NSpid:")[2].split()
    here = int(inside[-2]) if len(inside) > 1 else 0  # there is one number where it has no pid namespace of its own
    if not helped:
        return Numbers(interpreter, here)
    if (interpreter, here) == last[:2] and last.helper_here and syscalls.share_memory(last.helper_here, here):
        return last
    child = helper(proc, interpreter)
    return Numbers(interpreter, here, child, _numbers(proc, child)[0] if child else 0)


def child_handle(proc: int, parents: Iterable[int], claimed: int) -> int:
    """Open a handle of a child by its number in its own pid namespace, which a program claims and may have made up.

    `parents` are numbers in `proc` of the processes whose child it can be; 0 is left out.
    Raises `ProcessLookupError` if there is no such child.
    """
    for above in [*filter(None, parents)] * LIST_READS:
        for child in reversed(children(proc, above)):  # it is nearly always the last one
            here, inside = _numbers(proc, child)
            if here and inside == claimed:
                handle = os.pidfd_open(here)
                # The number may have gone to another process: the handle must be of the child that was seen.
                if number(proc, handle) == child and int(stat_words(proc, child)[1]) == above:
                    return handle
                os.close(handle)
    raise ProcessLookupError(f"no child {claimed}")


def helper(proc: int, interpreter: int) -> int:
    """The number in `proc` of an interpreter's helper, which is its first child and has its memory; 0: it has none."""
    first = children(proc, interpreter)[:1]
    return first[0] if first and _shares(proc, first[0], interpreter) else 0


def without_helpers(proc: int, pids: Iterable[int]) -> list[int]:
    """Leave out processes that have no memory of their own: that of their parent is theirs too."""
    alone = []
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):  # it is gone
            if not _shares(proc, pid, int(stat_words(proc, pid)[1])):
                alone.append(pid)
    return alone


def _shares(proc: int, pid: int, parent: int) -> bool:
    here, above = _numbers(proc, pid)[0], _numbers(proc, parent)[0] if parent else 0
    return bool(here and above) and syscalls.share_memory(here, above)


def _numbers(proc: int, pid: int) -> tuple[int, int]:
    """The numbers of a process in the broker's pid namespace and in its own; 0: it is gone."""
    try:
        # From the namespace of that /proc down to its own; the last but one is valid in the broker's.
        words = _read(proc, f"{pid}/status").partition("NSpid:")[2].partition("\n")[0].split()
    except OSError:
        return 0, 0
    return (int(words[-2]), int(words[-1])) if len(words) > 1 else (0, 0)


def tree(proc: int, pid: int) -> list[int]:
    pids = [pid]
    for parent in pids:
        pids += children(proc, parent)
    return pids


def children(proc: int, parent: int) -> list[int]:
    children: list[int] = []
    # If it is gone, or has ended, it has none.
    with contextlib.suppress(OSError), syscalls.opened(f"{parent}/task", _FOLDER, proc) as tasks:
        for task in os.listdir(tasks):
            children += map(int, _read(tasks, f"{task}/children").split())
    return children


def status(proc: int, pid: int) -> dict[str, str]:
    """The fields of a process's `status`. Raises `OSError` if it is gone."""
    rows = (line.partition(":") for line in _read(proc, f"{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in rows}


def stat_words(proc: int, pid: int) -> list[str]:
    """The fields of a process's `stat` from its state on. Raises `OSError` if it is gone."""
    return _read(proc, f"{pid}/stat").rpartition(")")[2].split()


def is_ending(proc: int, pidfd: int) -> bool:
    """Whether a process is gone, is exiting, or has a SIGKILL that it has not noticed yet."""
    try:
        pid = number(proc, pidfd)
        about, flags = status(proc, pid), int(stat_words(proc, pid)[_FLAGS])
        pending = int(about["SigPnd"], 16) | int(about["ShdPnd"], 16)
    except (OSError, KeyError, IndexError, ValueError):
        return True
    return bool(flags & _EXITING or pending & _KILL_BIT)


def owner(proc: int, pid: int) -> int:
    """The user id of a process; -1: it is gone."""
    try:
        return os.stat(str(pid), dir_fd=proc).st_uid
    except OSError:
        return -1


def world(proc: int, pid: int) -> int:
    """The device of a process's /tmp, which differs between a session and its forks; 0: unknown."""
    try:
        return os.stat(f"{pid}/root/tmp", dir_fd=proc).st_dev
    except OSError:
        return 0


def used_bytes(proc: int, pids: Iterable[int], shared_pages: int) -> int:
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):  # it is gone
            pages += max(0, int(_read(proc, f"{pid}/statm").split()[1]) - shared_pages)
    return pages * PAGE


def own_bytes(proc: int, pids: Sequence[int], known: dict[int, tuple[list[str], int]]) -> int:
    """Bytes of processes, of which a page that several share counts once, as the kernel divides it (`Pss`). That takes
    milliseconds for each process: it is read only for those with page faults since the last time, which `known` keeps.
    One that has ended does not count. Raises `OSError` if this process may not look into another's memory."""
    last = dict(known) if set(known) <= set(pids) else {}  # if one has ended, the others' shares are larger now
    known.clear()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = stat_words(proc, pid)
            faults = [words[7], words[9]]
            size = last.get(pid, ([], 0))
            if size[0] != faults:
                text = _read(proc, f"{pid}/smaps_rollup")
                size = faults, int(text.partition("\nPss:")[2].split()[0]) << 10
            known[pid] = size
    return sum(size for _, size in known.values())


def _read(proc: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        parts = []
        while part := os.read(fd, 65536):  # a long list comes in pieces, each of which may be shorter than a page
            parts.append(part)
        return b"".join(parts).decode("ascii", "replace")
    finally:
        os.close(fd)


def asleep(proc: int, pid: int) -> bool:
    """Whether no thread of a process and of those below it runs, waits for a processor, or waits for a disk."""
    pending = [pid]
    try:
        for process in pending:
            if _awake(proc, f"{process}/stat"):  # its first thread: if a program computes, it is nearly always that
                return False
            with syscalls.opened(f"{process}/task", _FOLDER, proc) as tasks:
                for task in os.listdir(tasks):
                    if _awake(tasks, f"{task}/stat"):
                        return False
                    pending += map(int, _read(tasks, f"{task}/children").split())
    except OSError:  # one ended a moment ago
        return False
    return True


def _awake(folder: int, name: str) -> bool:
    return _read(folder, name).rpartition(")")[2][1:2] in _AWAKE


class OverdrawnError(Exception):
    """A program keeps more than its limit, or what it keeps cannot be counted."""


class Account:
    def __init__(self, most_bytes: int, most_files: int) -> None:
        self._most_bytes, self._most_files = most_bytes, most_files
        self.bytes = self.files = 0
        self._seen: set[tuple[int, int]] = set()

    def add(self, about: os.stat_result) -> None:
        if about.st_nlink != 1 and not stat.S_ISDIR(about.st_mode):
            key = about.st_dev, about.st_ino
            if key in self._seen:
                return
            self._seen.add(key)
        self.files += 1
        self.bytes += about.st_blocks * 512
        if self.bytes > self._most_bytes or self.files > self._most_files:
            raise OverdrawnError


def over_disk_limit(
    folder: str, most_bytes: int, most_files: int, proc: int, processes: Iterable[int], *, owner: int
) -> bool:
    """Whether a program keeps more than it may on a disk that it shares with the host: in its folder, or deleted and
    open. That costs at most one `stat` per file allowed. It can hide deleted files, by mapping them into memory and
    closing them, so the watchdog also watches the free space. `owner` is a user id to take on to look into its
    processes.
    """
    account = Account(most_bytes, most_files)
    try:
        with syscalls.opened(folder, _FOLDER | os.O_NOFOLLOW) as top:
            device = os.fstat(top).st_dev
            _count(top, account, 0)
            with syscalls.files_as(owner) if owner else contextlib.nullcontext():
                for pid in processes:
                    _count_deleted(proc, pid, device, account)
    except OverdrawnError:
        return True
    except OSError:  # the folder is gone
        return False
    return False


def free_disk(folder: str) -> tuple[int, int]:
    """Bytes and files that the file system of a folder has room for; 0 files if it has no such number."""
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
        with contextlib.suppress(OSError), syscalls.opened(name, _FOLDER | os.O_NOFOLLOW, folder) as fd:
            _count(fd, account, depth + 1)


def _count_deleted(proc: int, pid: int, device: int, account: Account) -> None:
    with contextlib.suppress(OSError), syscalls.opened(f"{pid}/fd", _FOLDER, proc) as descriptors:
        for name in os.listdir(descriptors):
            try:
                about = os.stat(name, dir_fd=descriptors)
            except OSError:
                continue
            if about.st_nlink == 0 and about.st_dev == device and stat.S_ISREG(about.st_mode):
                account.add(about)
