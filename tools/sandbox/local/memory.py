"""How much memory a child and its descendants use, from a /proc that shows them.

Where the jail may mount no /proc of its own (parts of the host's are masked), the host's serves: a descriptor of it was
kept, and each child's number there stands in the template's own `fdinfo`.
"""

from __future__ import annotations

import os
import resource

PAGE = resource.getpagesize()


def own_pages(proc: int) -> tuple[int, int]:
    """Pages of this process: resident, and private (data and stack)."""
    words = _read(proc, "self/statm").split()
    return int(words[1]), int(words[5])


def number(proc: int, pidfd: int) -> int:
    """The process behind a handle, as a /proc counts; 0: it is not seen there, or gone."""
    try:
        text = _read(proc, f"self/fdinfo/{pidfd}")
    except OSError:
        return 0
    return max(0, int(text.partition("Pid:")[2].split()[0]))


def child_handle(proc: int, parent: int, told: int) -> int:
    """A handle of a child of a process that tells its number in its own pid namespace. It may be lying.

    Args:
        proc: a /proc that shows both.
        parent: the process, as that /proc counts.
        told: what it says.

    Raises:
        ProcessLookupError: it has no such child.
        OSError: likewise, or there are no more descriptors.
    """
    for child in _children(proc, parent):
        # From the namespace of that /proc down to its own: ours, in which it gets a handle, is the last but one.
        words = _read(proc, f"{child}/status").partition("NSpid:")[2].partition("\n")[0].split()
        if len(words) > 1 and int(words[-1]) == told:
            handle = os.pidfd_open(int(words[-2]))
            # Its number was its own only if it is, even now, what that number means, and the child that was seen.
            if number(proc, handle) == child and child in _children(proc, parent):
                return handle
            os.close(handle)
    raise ProcessLookupError(f"no child {told}")


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


def used_bytes(proc: int, pid: int, shared_pages: int) -> int:
    """Resident bytes of a process and all below it, each beyond the pages that it shares with the template."""
    return sum(max(0, _resident_pages(proc, one) - shared_pages) for one in tree(proc, pid)) * PAGE


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
