"""A deadline that holds even when the awaited code ignores cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Self, TypeVar

from toolgym.tools.concurrency.eager_task import begin
from toolgym.tools.concurrency.log_throttle import LogThrottle
from toolgym.tools.errors import ToolgymError

T = TypeVar("T")

CANCEL_GRACE = 2.0
"""Seconds that cancelled code gets to clean up before it is left behind. Delays of the event loop do not count."""

_GRACE_PARTS = 20
"""The grace is waited for in so many parts. Each counts as its share of the seconds, and is at least one turn of the
event loop. So code gets this many turns of a loop that is busy with cancelling others."""

LOG_INTERVAL = 10.0

_log = logging.getLogger("toolgym.tools")
_left_behind: set[asyncio.Task[Any]] = set()

_UNINTERRUPTED = 0.001
"""Seconds that a call may take, before it has waited for anything, until the calls inside of it let others go on."""

_LEAST_WAIT = 0.05
"""Seconds between two looks at a clock that stands still, and the most by which a deadline passes late for it."""


class DeadlineError(ToolgymError, TimeoutError):
    """The deadline passed; that for queueing, if `queued`. The code also ignored its cancellation, if `stuck`."""

    def __init__(self, seconds: float, *, stuck: bool, queued: bool = False) -> None:
        super().__init__(f"did not {'get its turn' if queued else 'finish'} within {seconds:g} seconds")
        self.seconds = seconds
        self.stuck = stuck
        self.queued = queued


class SelfCancelledError(ToolgymError, RuntimeError):
    """The code was cancelled from within, as by awaiting something that had been cancelled. Passed on, it would look
    like the caller's own cancellation, and a waiter would never get an answer."""


class _Clock:
    """Times that some code ran and queued. Clocks of deadlines inside of each other form a chain. The context that
    carries a clock follows the code into other event loops, so several threads may stop one clock."""

    __slots__ = ("_exempt", "_queued", "_queues", "_ran", "_since", "began", "outer", "overran")
    # One for all, as each takes 0.1 kB. Re-entrant: a garbage collection inside of it may end a block of `queueing`.
    _lock = threading.RLock()

    def __init__(self, outer: _Clock | None) -> None:
        self.outer = outer
        self.began: float | None = None  # while the code takes its first step
        self.overran = False
        self._ran = self._queued = 0.0
        self._queues = self._exempt = 0
        self._since = time.monotonic()

    def queue(self, count: int) -> None:
        with self._lock:
            self._settle()
            self._queues += count

    def exempt(self, count: int) -> None:
        with self._lock:
            self._settle()
            self._exempt += count

    def read(self) -> tuple[float, float, bool]:
        """Seconds that the code ran, seconds that it queued, and whether the clock stands still now."""
        with self._lock:
            self._settle()
            return self._ran, self._queued, self._queues > 0 or self._exempt > 0

    @property
    def exempted(self) -> bool:
        return self._exempt > 0

    def _settle(self) -> None:
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        if self._exempt:
            return
        if self._queues:
            self._queued += seconds
        else:
            self._ran += seconds


_clock: ContextVar[_Clock | None] = ContextVar("toolgym_deadline", default=None)


def queueing() -> AbstractContextManager[None]:
    """Stop the deadlines of `with_deadline` inside the block: there the caller waits for its turn."""
    return _stopped_clocks(_Clock.queue)


def own_deadline() -> AbstractContextManager[None]:
    """Stop the deadlines of `with_deadline` around the block, which has a deadline of its own inside."""
    return _stopped_clocks(_Clock.exempt)


@contextlib.contextmanager
def _stopped_clocks(change: Callable[[_Clock, int], None]) -> Iterator[None]:
    clocks = _clocks()
    for clock in clocks:
        change(clock, 1)
    try:
        yield
    finally:
        for clock in clocks:
            change(clock, -1)


class watch_own_deadline:
    """A block; called, it says whether the code of the block is inside of `own_deadline` now. A class, as
    `set_contextvar` is."""

    __slots__ = ("_around", "_token")

    def __enter__(self) -> Self:
        self._around = _Clock(_clock.get())
        self._token = _clock.set(self._around)
        return self

    def __call__(self) -> bool:
        return self._around.exempted

    def __exit__(self, *_: object) -> None:
        _clock.reset(self._token)


def _clocks() -> list[_Clock]:
    clocks, clock = [], _clock.get()
    while clock is not None:
        clocks.append(clock)
        clock = clock.outer
    return clocks


@contextlib.contextmanager
def queue_clock() -> Iterator[Callable[[], float]]:
    """Give a function that returns the seconds that the code of the block has queued so far."""
    clock = _Clock(_clock.get())
    token = _clock.set(clock)
    try:
        yield lambda: clock.read()[1]
    finally:
        _clock.reset(token)


@contextlib.contextmanager
def run_clock() -> Iterator[Callable[[], float]]:
    """Give a function that returns the seconds that the code of the block has run so far, without those that it
    queued."""
    clock = _Clock(_clock.get())
    token = _clock.set(clock)
    try:
        yield lambda: clock.read()[0]
    finally:
        _clock.reset(token)


def overran() -> bool:
    """Whether a deadline of `with_deadline` around the caller has passed: cancelled code was cancelled for that."""
    return any(clock.overran for clock in _clocks())


async def with_deadline(
    coroutine: Coroutine[Any, Any, T], seconds: float, *, queue: float | None = None, name: str = ""
) -> T:
    """Await a coroutine for at most `seconds`, not counting what it spends inside of `queueing` or `own_deadline`; the
    latter for at most `queue` seconds, by default as many.

    `asyncio.wait_for` waits for the cancelled code to end, however long that takes; foreign code may never end. Here it
    gets `CANCEL_GRACE` seconds and is then left behind, with a line in the log that has its `name`.

    Raises `DeadlineError`; and `ExitError` or `SelfCancelledError` for code that would have ended more than itself.
    """
    queue = seconds if queue is None else queue
    outer = _clock.get()
    clock = _Clock(outer)
    clock.began = time.monotonic()
    context = copy_context()
    context.run(_clock.set, clock)
    try:
        first, task = begin(coroutine, context)
    finally:
        clock.began = None
    if first.ended:
        # Others have their turn at each call, however quick it was. Inside of a call that has not waited for anything
        # yet, which does the same at its end, that would only make it wait.
        if outer is None or outer.began is None or time.monotonic() - outer.began > _UNINTERRUPTED:
            await asyncio.sleep(0)
        return _outcome(first.result)
    loop = asyncio.get_running_loop()
    left, queue_left, stopped = seconds, queue, False
    while left > 0 and queue_left > 0:
        # Queueing may begin and end at any time, so the clock is read again when the nearer deadline could have passed.
        timeout = max(_LEAST_WAIT, min(left, queue_left)) if stopped else min(left, max(_LEAST_WAIT, queue_left))
        # As `asyncio.wait` for one task, in half of its time, and here, as a coroutine of its own takes 0.5 kB.
        waiter = _Waiter(loop=loop)
        wake = waiter.wake
        timer = loop.call_later(timeout, wake, context=CALLBACKS.context)
        task.add_done_callback(wake, context=CALLBACKS.context)
        try:
            await waiter
        except asyncio.CancelledError:
            await _stop(task, name)
            raise
        finally:
            timer.cancel()
            task.remove_done_callback(wake)
        if task.done():
            return _outcome(task.result)
        ran, queued, stopped = clock.read()
        left, queue_left = seconds - ran, queue - queued
    clock.overran = True
    stuck = not await _stop(task, name)
    overdue = queue_left <= 0 < left
    raise DeadlineError(queue if overdue else seconds, stuck=stuck, queued=overdue)


def _outcome(result: Callable[[], T]) -> T:
    try:
        return result()
    except asyncio.CancelledError as error:
        raise SelfCancelledError("the code awaited something that had been cancelled") from error


def wake_up(waiter: asyncio.Future[None], *_: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Callbacks(threading.local):
    """The `context` of this thread's callbacks that end at once and read none. Else each one that waits has a copy."""

    def __init__(self) -> None:
        self.context = Context()


CALLBACKS = _Callbacks()


class _Waiter(asyncio.Future[None]):
    __slots__ = ()

    def wake(self, *_: object) -> None:
        wake_up(self)


async def shielded(awaitable: Awaitable[T]) -> T:
    """Await something to its end even if the caller is cancelled; the cancellation comes after. For clean-up above all,
    which must have deadlines of its own."""
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


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines that run at the same time; the first error ends the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0]  # noqa: B904  with its own cause, and those of the others as its context
    return [_outcome(task.result) for task in tasks]


async def _stop(task: asyncio.Task[Any], name: str) -> bool:
    """Returns whether the cancelled task ended."""
    _left_behind.add(task)  # asyncio itself refers to tasks weakly, and this wait may be cancelled too
    task.add_done_callback(_forget)
    task.cancel()
    for _ in range(_GRACE_PARTS):
        await asyncio.wait({task}, timeout=CANCEL_GRACE / _GRACE_PARTS)
        if task.done():
            return True
    log_overrun(name, f"{name or 'code'}, which ignores cancellation: {task!r}")
    return False


def log_overrun(name: str, text: str) -> None:
    skipped = _overruns.due(name)
    if skipped is not None:
        more = f" (and {skipped} more since the last such line)" if skipped else ""
        _log.warning("overran its deadline and was left behind: %s%s", text, more)


_overruns = LogThrottle(LOG_INTERVAL)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # cancelled on purpose: retrieve and drop its exception, or asyncio would log it
