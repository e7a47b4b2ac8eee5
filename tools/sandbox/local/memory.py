"""How much memory a child and its descendants use, from a /proc that shows them."""

from __future__ import annotations

import os
import resource

PAGE = resource.getpagesize()


def own_pages() -> tuple[int, int]:
    """Pages of this process: resident, and private (data and stack)."""
    with open("/proc/self/statm") as file:
        words = file.read().split()
    return int(words[1]), int(words[5])


def used_bytes(pid: int, shared_pages: int) -> int:
    """Resident bytes of a process and all below it, each beyond the pages that it shares with the template."""
    return sum(max(0, _resident_pages(one) - shared_pages) for one in _tree(pid)) * PAGE


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children") as file:
                    found += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found


def _resident_pages(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
