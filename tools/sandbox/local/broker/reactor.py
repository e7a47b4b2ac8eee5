"""Waits for descriptors, for deadlines and for room in sockets, in one thread."""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar


class Timed(Protocol):
    """Something with at most one deadline: `deadline` is the number of that; 0: there is none, or it was lifted."""

    deadline: int


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Deadlines in order of time. Each owner has at most one, and a new one replaces the old."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0

    def arm(self, owner: T, seconds: float) -> None:
        self._count += 1
        owner.deadline = self._count
        heapq.heappush(self._heap, (time.monotonic() + seconds, self._count, owner))

    def due(self) -> Iterator[T]:
        while self._heap:
            when, number, owner = self._heap[0]
            if owner.deadline == number and when > time.monotonic():
                return
            heapq.heappop(self._heap)
            if owner.deadline == number:
                owner.deadline = 0
                yield owner

    def patience(self) -> float | None:
        """Seconds until the next deadline; None: there is none. To be called right after `due`."""
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None


INTERRUPT_AFTER = 0.02
"""Seconds that a system call may take before a signal interrupts it, if it can be interrupted."""


class Reactor:
    """Calls a handler for every descriptor that is ready.

    While it does not wait, a timer runs whose signal interrupts slow system calls. A program can send this process
    descriptors, whether they are accepted or not, and the process that drops the last reference to a file waits until
    it is closed: for a TCP connection, as long as the program has set (`SO_LINGER`). A signal ends that wait. Forked
    processes inherit the handler.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], object]] = {}
        self._waits = self._guarded = False
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.siginterrupt(signal.SIGALRM, False)  # system calls that have done nothing yet begin again

    def watch(self, fd: int, handler: Callable[[], object], events: int = select.EPOLLIN) -> None:
        """Call the handler for these events, and when the other end is gone."""
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def await_room(self, fd: int, writer: Callable[[], object] | None) -> None:
        """Call the writer too whenever a watched descriptor has room; None: no more."""
        if writer is None:
            self._writers.pop(fd, None)
        elif fd in self._handlers:
            self._writers[fd] = writer
        with contextlib.suppress(OSError, ValueError):
            self._poll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if writer else 0))

    def unwatch(self, fd: int) -> None:
        """Stop watching; do so before closing the descriptor."""
        self._writers.pop(fd, None)
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(fd)

    def turn(self, patience: float | None) -> bool:
        """Wait at most this many seconds (None: for ever) and handle the events. Returns whether there were any."""
        self._waits = True
        try:
            events = self._poll.poll(-1.0 if patience is None else patience)
        except InterruptedError:
            return False
        finally:
            self._waits = False
            if not self._guarded:
                self._guarded = True
                signal.setitimer(signal.ITIMER_REAL, INTERRUPT_AFTER, INTERRUPT_AFTER)
        for fd, event in events:
            writer = self._writers.get(fd)
            if writer is not None and event & select.EPOLLOUT:
                event &= ~select.EPOLLOUT
                writer()
            handler = self._handlers.get(fd)
            if handler is not None and event:
                handler()
        return bool(events)

    def _on_alarm(self, *_: object) -> None:
        if self._waits:  # nothing to interrupt: an idle process is not woken for nothing
            self._guarded = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class SendBuffer:
    """Bytes for a socket that has no room for them now, and the descriptors that go with them."""

    def __init__(self, end: socket.socket, reactor: Reactor) -> None:
        self._socket, self._reactor = end, reactor
        self._parts: deque[tuple[bytearray, list[int]]] = deque()
        self._is_blocked = False

    def __len__(self) -> int:
        return sum(len(data) for data, _ in self._parts)

    def add(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Add bytes, and descriptors that arrive with the first of them, and are closed here then."""
        if descriptors or not self._parts:
            self._parts.append((bytearray(), [*descriptors]))
        self._parts[-1][0].extend(data)

    def flush(self, again: Callable[[], object]) -> bool:
        """Send what the socket takes now, and have `again` called when it takes more. False: the other end is gone."""
        while self._parts:
            data, descriptors = self._parts[0]
            try:
                sent = socket.send_fds(self._socket, [data], descriptors) if descriptors else self._socket.send(data)
            except BlockingIOError:
                break
            except OSError:
                self.clear()
                return False
            while descriptors:
                os.close(descriptors.pop())
            del data[:sent]
            if not data:
                self._parts.popleft()
        if self._is_blocked != bool(self._parts):
            self._is_blocked = not self._is_blocked
            self._reactor.await_room(self._socket.fileno(), again if self._is_blocked else None)
        return True

    def clear(self) -> None:
        for _, descriptors in self._parts:
            for fd in descriptors:
                os.close(fd)
        self._parts.clear()
