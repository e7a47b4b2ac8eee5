"""The limits of a test, and the watch that ends a program which meets one.

Limits are counted in seconds that the program computed or slept. A program that waits for a processor, because the
machine is busy, loses nothing. Where /proc is hidden (isolation level `uid`), only its own CPU time can be seen.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LOOK_EVERY = 0.1
"""Seconds between two looks at a program that computes."""
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class LimitError(BaseException):
    """The program met a limit. Tests cannot catch it by `except Exception`. `args[0]` is the status of the verdict."""


class SliceOverError(BaseException):
    """The time slice of the run is over, while the program is still at work on a test that is not the run's first."""


class TestLimits:
    """The limits of one test.

    Attributes:
        seconds: seconds that the program may compute, with all its children.
        idle: seconds that it may sleep.
        wall: seconds after which it is ended in any case.
        output_bytes: bytes of standard output that are kept, and that a file of its output may have.
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.seconds, self.idle, self.wall = float(task["seconds"]), float(task["idle"]), float(task["wall"])
        self.output_bytes = int(task["output_bytes"])


class LimitWatch:
    """Raises LimitError once a process, with what it started, has used up its limits.

    Args:
        pid: the process to watch.
        limits: its limits.
        with_tests: whether the CPU time of this process counts too, as it does while tests compute with the values of
            a program.
        alone: whether only the process itself is watched, from now on, without its children.
        left: seconds of the run's time slice, after which SliceOverError is raised.
    """

    def __init__(
        self, pid: int, limits: TestLimits, *, with_tests: bool = False, alone: bool = False, left: float | None = None
    ) -> None:
        self._pid, self._limits, self._alone = pid, limits, alone
        self._began = self._looked = time.monotonic()
        self._own = time.process_time() if with_tests else None
        self._base = cpu_clock(pid) if alone else 0.0
        self._asleep, self._left = False, left
        self.cpu = self.idle = 0.0

    def look(self) -> None:
        now = time.monotonic()
        tree = _tree(self._pid, alone=self._alone)
        if tree is None:
            self.glance()
        else:
            progress = tree[0] - self._base - self.cpu
            self.cpu = max(self.cpu, tree[0] - self._base)
            if tree[1] and self._asleep and progress < _TICK / 2:
                self.idle += now - self._looked
            self._asleep = tree[1]
        self._looked = now
        tests_cpu = time.process_time() - self._own if self._own is not None else 0.0
        if self.cpu + tests_cpu > self._limits.seconds:
            raise LimitError("timeout", f"it used more than {self._limits.seconds:g} s of CPU time")
        if self.idle > self._limits.idle:
            raise LimitError("timeout", f"it slept for more than {self._limits.idle:g} s")
        if now - self._began > self._limits.wall:
            raise LimitError("timeout", f"it ran for more than {self._limits.wall:g} s")
        if self._left is not None and self.used > self._left:
            raise SliceOverError

    def glance(self) -> None:
        """Note the CPU time of the process itself, which may have ended."""
        self.cpu = max(self.cpu, cpu_clock(self._pid) - self._base)

    def wait(
        self, fd: int, ended: int | None = None, check: Callable[[], None] | None = None, *, for_writing: bool = False
    ) -> int:
        """Wait until a descriptor can be read, or written to, and return it.

        If another one, `ended`, can be read before, return that one. `check` is called now and then.
        """
        poll = select.poll()
        poll.register(fd, select.POLLOUT if for_writing else select.POLLIN)
        if ended is not None:
            poll.register(ended, select.POLLIN)
        while not (ready := poll.poll(LOOK_EVERY * 1000)):
            self.look()
            if check is not None:
                check()
        return fd if any(number == fd for number, _ in ready) else ready[0][0]

    @property
    def used(self) -> float:
        """Seconds that it computed or slept."""
        return self.cpu + self.idle


def cpu_clock(pid: int) -> float:
    """Return the CPU seconds of a process without its children, also of one that ended and was not waited for."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _tree(pid: int, *, alone: bool) -> tuple[float, bool] | None:
    """Return the CPU seconds of a process and all below it, and whether all sleep; None if /proc does not show it."""
    pending, seconds, asleep = [pid], cpu_clock(pid), True
    for process in pending:
        try:
            words = file_text(f"/proc/{process}/stat").rpartition(")")[2].split()
            # Of the process itself the clock is more exact. The next two fields are those of children that ended.
            fields = words[11:15] if process != pid else words[13:15] if not alone else []
            for thread in os.listdir(f"/proc/{process}/task"):
                if not alone:
                    pending += map(int, file_text(f"/proc/{process}/task/{thread}/children").split())
                state = file_text(f"/proc/{process}/task/{thread}/stat").rpartition(")")[2].split()[0]
                asleep = asleep and state in ("S", "T")
        except OSError:
            if process == pid:
                return None
            continue
        seconds += sum(map(int, fields)) * _TICK
    return seconds, asleep


def file_text(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def await_end(pid: int, watch: LimitWatch, check: Callable[[], None]) -> None:
    """Wait until a process has ended, and check it now and then. Raises what `LimitWatch.look` and `check` raise."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        watch.wait(fd, check=check)
    finally:
        os.close(fd)


def prepare_alarm() -> None:
    """Prepare `alarm`."""

    def over(*_: object) -> None:
        raise LimitError("timeout", "the tests computed for too long with its values")

    signal.signal(signal.SIGPROF, over)


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise LimitError in this process if it computes for longer than that, and a little more, by itself."""
    signal.setitimer(signal.ITIMER_PROF, seconds + LOOK_EVERY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
