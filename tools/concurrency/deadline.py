"""A deadline that holds even when the awaited code ignores cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from toolgym.tools.errors import ToolgymError

T = TypeVar("T")

CANCEL_GRACE = 2.0
"""Seconds that cancelled code gets to clean up before it is left behind. What the event loop is late does not count."""

_GRACE_PARTS = 20
"""In how many parts the grace is waited for. Each counts as its share of the seconds, and is at least one turn of the
event loop. So code gets this many turns of a loop that is busy with cancelling others."""

LOG_INTERVAL = 10.0
"""At most one line about code that was left behind is logged in so many seconds."""

_log = logging.getLogger("toolgym.tools")
_left_behind: set[asyncio.Task[Any]] = set()

_LEAST_WAIT = 0.05
"""Seconds between two looks at a clock that stands still, and the most by which a deadline passes late for it."""


class DeadlineError(ToolgymError, TimeoutError):
    """The deadline passed.

    Attributes:
        seconds: the deadline.
        stuck: the code also ignored its cancellation.
        queued: the deadline was that for queueing: the code never got its turn.
    """

    def __init__(self, seconds: float, *, stuck: bool, queued: bool = False) -> None:
        super().__init__(f"did not {'get its turn' if queued else 'finish'} within {seconds:g} seconds")
        self.seconds = seconds
        self.stuck = stuck
        self.queued = queued


class ExitError(ToolgymError, RuntimeError):
    """The code called `sys.exit`, which would have ended the event loop."""


class SelfCancelledError(ToolgymError, RuntimeError):
    """The code was cancelled from within, as by awaiting something that had been cancelled."""


class _Clock:
    """How long some code ran, and how long it queued. Clocks of deadlines inside of each other form a chain.

    The context that carries a clock follows the code into other event loops, so several threads may stop one clock.
    """

    def __init__(self, outer: _Clock | None) -> None:
        self.outer = outer
        self.overran = False
        self._started = time.monotonic()
        self._queued = 0.0
        self._queues = 0
        self._since = 0.0
        self._lock = threading.Lock()

    def queue(self) -> None:
        with self._lock:
            if not self._queues:
                self._since = time.monotonic()
            self._queues += 1

    def go_on(self) -> None:
        with self._lock:
            self._queues -= 1
            if not self._queues:
                self._queued += time.monotonic() - self._since

    def read(self) -> tuple[float, float, bool]:
        """Seconds that the code ran, seconds that it queued, and whether it queues now."""
        with self._lock:
            now = time.monotonic()
            queued = self._queued + (now - self._since if self._queues else 0.0)
            return now - self._started - queued, queued, self._queues > 0


_clock: ContextVar[_Clock | None] = ContextVar("toolgym_deadline", default=None)


@contextlib.contextmanager
def queueing() -> Iterator[None]:
    """Stop the deadlines of `with_deadline` inside the block: there the caller waits for its turn."""
    clocks = []
    clock = _clock.get()
    while clock is not None:
        clocks.append(clock)
        clock = clock.outer
    for one in clocks:
        one.queue()
    try:
        yield
    finally:
        for one in clocks:
            one.go_on()


@contextlib.contextmanager
def queue_clock() -> Iterator[Callable[[], float]]:
    """Measure how long the code of a block queues. Gives a function that returns the seconds so far."""
    clock = _Clock(_clock.get())
    token = _clock.set(clock)
    try:
        yield lambda: clock.read()[1]
    finally:
        _clock.reset(token)


def overran() -> bool:
    """Whether a deadline of `with_deadline` around the caller has passed: cancelled code was cancelled for that."""
    clock = _clock.get()
    while clock is not None and not clock.overran:
        clock = clock.outer
    return clock is not None


async def with_deadline(coroutine: Coroutine[Any, Any, T], seconds: float, *, queue: float | None = None) -> T:
    """Await a coroutine for at most `seconds`, not counting what it spends inside of `queueing`.

    `asyncio.wait_for` waits for the cancelled code to end, however long that takes; foreign code may never end. Here
    it gets `CANCEL_GRACE` seconds and is then left behind, with a line in the log (at most one in `LOG_INTERVAL`).

    Args:
        coroutine: the code.
        seconds: wall seconds that it may run.
        queue: wall seconds that it may queue. None: as long as it runs.

    Raises:
        DeadlineError: a deadline passed.
        ExitError: the code called `sys.exit`.
        SelfCancelledError: the code raised `CancelledError` though neither the caller nor the deadline cancelled it;
            passed on, it would look like the caller's own cancellation, and a waiter would never get an answer.
    """
    queue = seconds if queue is None else queue
    clock = _Clock(_clock.get())
    token = _clock.set(clock)
    task = asyncio.ensure_future(_contained(coroutine))  # takes a copy of the context
    _clock.reset(token)
    left, queue_left, queues = seconds, queue, False
    while left > 0 and queue_left > 0:
        # Queueing may begin and end at any time, so the clock is read again when the nearer deadline could have passed.
        timeout = max(_LEAST_WAIT, min(left, queue_left)) if queues else min(left, max(_LEAST_WAIT, queue_left))
        try:
            done = await _ended(task, timeout)
        except asyncio.CancelledError:
            await _stop(task)
            raise
        if done:
            if task.cancelled():
                raise SelfCancelledError("the code awaited something that had been cancelled")
            return task.result()
        ran, queued, queues = clock.read()
        left, queue_left = seconds - ran, queue - queued
    clock.overran = True
    stuck = not await _stop(task)
    overdue = queue_left <= 0 < left
    raise DeadlineError(queue if overdue else seconds, stuck=stuck, queued=overdue)


async def _ended(task: asyncio.Task[Any], seconds: float) -> bool:
    """Wait until a task has ended, for so many seconds at most: `asyncio.wait` for one task, in half of its time."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(seconds, wake)
    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        task.remove_done_callback(wake)
    return task.done()


async def _contained(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except SystemExit as error:
        raise ExitError(f"SystemExit: {error.code}") from error


async def shielded(awaitable: Awaitable[T]) -> T:
    """Await something to its end even when the caller is cancelled meanwhile; the cancellation comes after.

    For what must not be left half done, clean-up above all. It must have deadlines of its own.
    """
    task = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001  raised again below, by result()
            break
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()


async def _stop(task: asyncio.Task[Any]) -> bool:
    """Cancel a task and wait a little for it. Returns whether it ended."""
    _left_behind.add(task)  # asyncio itself refers to tasks weakly, and this wait may be cancelled too
    task.add_done_callback(_forget)
    task.cancel()
    for _ in range(_GRACE_PARTS):
        await asyncio.wait({task}, timeout=CANCEL_GRACE / _GRACE_PARTS)
        if task.done():
            return True
    _stuck_log.add(f"code that ignores cancellation: {task!r}")
    return False


class OverrunLog:
    """Logs what was left behind at its deadline: the first at once, and how many followed with the next line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._not_before = -math.inf
        self._unsaid = 0

    def add(self, what: str) -> None:
        """Log it, unless a line was logged in the last `LOG_INTERVAL` seconds."""
        with self._lock:
            now = time.monotonic()
            if now < self._not_before:
                self._unsaid += 1
                return
            more = f" (and {self._unsaid} more since the last such line)" if self._unsaid else ""
            self._not_before, self._unsaid = now + LOG_INTERVAL, 0
        _log.warning("overran its deadline and was left behind: %s%s", what, more)


_stuck_log = OverrunLog()


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # cancelled on purpose: retrieve and drop its exception, or asyncio would log it
