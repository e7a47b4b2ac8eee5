"""Waiting for descriptors and for deadlines, in one thread."""

from __future__ import annotations

import contextlib
import heapq
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """Something that can have a deadline.

    Attributes:
        deadline: a number of the deadline in force; 0: none. Setting it to 0 lifts the deadline.
    """

    deadline: int


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Who is due, in order of time; each has at most one deadline, and a new one replaces the old."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0

    def arm(self, whom: T, seconds: float) -> None:
        """Give a deadline from now."""
        self._count += 1
        whom.deadline = self._count
        heapq.heappush(self._heap, (time.monotonic() + seconds, self._count, whom))

    def due(self) -> Iterator[T]:
        """Yield and forget those whose time has come."""
        while self._heap:
            when, number, whom = self._heap[0]
            if whom.deadline == number and when > time.monotonic():
                return
            heapq.heappop(self._heap)
            if whom.deadline == number:
                whom.deadline = 0
                yield whom

    def patience(self) -> float | None:
        """Seconds until the next one is due; None where there is none. Right after `due`."""
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None


MOST_AT_ONCE = 0.02
"""Seconds that a system call may take before it is interrupted, if it can be."""


class Reactor:
    """Calls a handler for every descriptor that has something to tell.

    While it does not wait, a timer runs whose signal interrupts whatever the kernel takes long over. A program can send
    us descriptors, whether we take them or not, and whoever gives up the last reference to a file waits for its end: of
    a TCP connection, as long as its owner has said (`SO_LINGER`). A signal ends that wait.

    Whatever is forked from this process inherits the handler of SIGALRM.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[int], object]] = {}
        self._waits = self._guarded = False
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.siginterrupt(signal.SIGALRM, False)  # system calls that have done nothing yet begin anew

    def watch(self, fd: int, handler: Callable[[int], object], events: int = select.EPOLLIN) -> None:
        """Call `handler(events)` from now on."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events on a descriptor that is watched; one that is not, or is closed, is left alone."""
        with contextlib.suppress(OSError):
            self._poll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stop watching; do so before closing the descriptor."""
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(fd)

    def turn(self, patience: float | None) -> bool:
        """Wait at most this many seconds (None: for ever) and handle what came. Returns whether anything did."""
        self._waits = True
        try:
            events = self._poll.poll(-1.0 if patience is None else patience)
        except InterruptedError:
            return False
        finally:
            self._waits = False
            if not self._guarded:
                self._guarded = True
                signal.setitimer(signal.ITIMER_REAL, MOST_AT_ONCE, MOST_AT_ONCE)
        for fd, event in events:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(event)
        return bool(events)

    def _on_alarm(self, *_: object) -> None:
        if self._waits:  # nothing to guard; so an idle process is not woken for nothing
            self._guarded = False
            signal.setitimer(signal.ITIMER_REAL, 0)
