"""How much memory a child and its descendants use, from a /proc that shows them.

Where the jail may mount no /proc of its own (parts of the host's are masked), the broker uses the host's: it kept a
descriptor of it, and reads each child's number there from its own `fdinfo`.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence

PAGE = resource.getpagesize()


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


def number_here(proc: int, pidfd: int) -> int:
    """The number for the broker of the process behind a handle, which has a pid namespace of its own; 0: it is gone."""
    words = _read(proc, f"self/fdinfo/{pidfd}").partition("NSpid:")[2].split()
    return int(words[-2]) if len(words) > 1 else 0


def child_handle(proc: int, parent: int, claimed: int) -> int:
    """A handle of a process's child, given the number that the process claims for it. The claim may be a lie.

    Args:
        proc: a /proc that shows both.
        parent: the process's number in that /proc.
        claimed: the child's number in the pid namespace of both, as the process says.

    Raises:
        ProcessLookupError: it has no such child.
        OSError: likewise, or there are no more descriptors.
    """
    for child in _children(proc, parent):
        # Its numbers from the namespace of that /proc down to its own; the last but one is valid in the broker's.
        words = _read(proc, f"{child}/status").partition("NSpid:")[2].partition("\n")[0].split()
        if len(words) > 1 and int(words[-1]) == claimed:
            handle = os.pidfd_open(int(words[-2]))
            # The number may have gone to another process: the handle is right only if it is of the child that was seen.
            if number(proc, handle) == child and child in _children(proc, parent):
                return handle
            os.close(handle)
    raise ProcessLookupError(f"no child {claimed}")


def tree(proc: int, pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        found += _children(proc, parent)
    return found


def _children(proc: int, parent: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.open(f"{parent}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return found
    try:
        for task in os.listdir(tasks):
            found += map(int, _read(tasks, f"{task}/children").split())
    except OSError:
        return found
    finally:
        os.close(tasks)
    return found


def used_bytes(proc: int, pids: Iterable[int], shared_pages: int) -> int:
    """Resident bytes of processes, each less the pages that it shares with the zygote."""
    return sum(max(0, _resident_pages(proc, one) - shared_pages) for one in pids) * PAGE


def own_bytes(proc: int, pids: Sequence[int], known: dict[int, tuple[list[str], int]]) -> int:
    """Bytes of processes where a page that several share counts once, as the kernel divides it between them (`Pss`).

    To add that up takes milliseconds for each process: only for those with page faults since the last time.

    Args:
        proc: a /proc that shows them.
        pids: of all of them.
        known: of each, its page faults and bytes the last time; is brought up to date.

    Raises:
        OSError: this process may not look into another's memory, or that one is gone.
    """
    last = dict(known) if set(known) <= set(pids) else {}  # where one has ended, the others' shares are larger now
    known.clear()
    for pid in pids:
        words = _read(proc, f"{pid}/stat").rpartition(")")[2].split()
        faults = [words[7], words[9]]
        known[pid] = last.get(pid, ([], 0))
        if known[pid][0] != faults:
            text = _read(proc, f"{pid}/smaps_rollup")
            known[pid] = faults, int(text.partition("\nPss:")[2].split()[0]) << 10
    return sum(size for _, size in known.values())


def _resident_pages(proc: int, pid: int) -> int:
    try:
        return int(_read(proc, f"{pid}/statm").split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _read(proc: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
            if len(part) < 4096:
                break
        return b"".join(parts).decode("ascii", "replace")
    finally:
        os.close(fd)
