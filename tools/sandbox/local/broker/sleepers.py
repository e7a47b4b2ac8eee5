"""Which programs sleep: they wait for a clock, a lock or a pipe, and need no processor."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolgym.tools.sandbox.local.broker.channel import Channel
from toolgym.tools.sandbox.local.broker.watchdog import Watchdog

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.protocol.messages import AsleepAnswer

LOOKS = 2
"""How many looks in a row must find a program asleep: one that computes may well wait for a moment."""

_AWAKE = b"RD"
"""States of threads that run or wait for a processor, and of those that wait for a disk. Source: `proc_pid_stat(5)`."""


class Sleepers:
    """Remembers which programs were found asleep.

    Args:
        proc: descriptor of a /proc that shows the children; -1: none does, and no program counts as asleep.
        watchdog: knows the children's numbers there.
    """

    def __init__(self, proc: int, watchdog: Watchdog) -> None:
        self._proc, self._watchdog = proc, watchdog
        self._looks: dict[int, int] = {}

    def look(self, requests: Iterable[tuple[int, Channel]]) -> AsleepAnswer:
        """Look at the programs behind some requests, and say which sleep.

        Args:
            requests: the id of each, and the channel to its child. A program of a session sleeps where all that runs in
                the session does.
        """
        began = time.process_time()
        looks: dict[int, int] = {}
        asleep: dict[Channel, bool] = {}
        for number, channel in requests:
            if channel not in asleep:
                asleep[channel] = self._asleep(channel)
            if asleep[channel]:
                looks[number] = self._looks.get(number, 0) + 1
        self._looks = looks
        found = [number for number, count in looks.items() if count >= LOOKS]
        return {"asleep": found, "seconds": time.process_time() - began}

    def _asleep(self, channel: Channel) -> bool:
        if self._proc < 0 or not channel.child.pid or channel.child.dead:
            return False
        number = self._watchdog.number(channel.child)
        return number > 0 and asleep(self._proc, number)


def asleep(proc: int, pid: int) -> bool:
    """Whether no thread of a process and of those below it runs, waits for a processor, or waits for a disk.

    Args:
        proc: descriptor of a /proc that shows them.
        pid: the process's number there.
    """
    pending = [pid]
    try:
        for one in pending:
            if _awake(proc, f"{one}/stat"):  # of the first thread alone: where a program computes, nearly always that
                return False
            tasks = os.open(f"{one}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
            try:
                for task in os.listdir(tasks):
                    if _awake(tasks, f"{task}/stat"):
                        return False
                    pending += map(int, _read(tasks, f"{task}/children").split())
            finally:
                os.close(tasks)
    except OSError:  # one ended a moment ago
        return False
    return True


def _awake(folder: int, name: str) -> bool:
    return _read(folder, name).rpartition(b")")[2][1:2] in _AWAKE


def _read(folder: int, name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)
