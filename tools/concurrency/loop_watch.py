"""`watch_loop`: how late the running event loop is, and which tool blocks it.

Each loop that is watched has a timer, which measures how late it is itself, and one thread of the process looks at the
timers. If one is overdue, the thread sees which task runs, and its place in the code. An extension in C that holds the
interpreter's lock stops that thread, too: only the lag tells.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import math
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

from toolgym.tools.concurrency.log_throttle import LogThrottle

T = TypeVar("T")

BLOCKED_AFTER = 1.0
INTERVAL = 0.05
LOG_INTERVAL = 60.0

KEPT = 4096
"""The newest lags that are kept: at one in 50 ms, those of the last three minutes and a half."""

_MOST_MISSED = 200

_log = logging.getLogger("toolgym.tools")


class Lag(NamedTuple):
    """Seconds by which timers were called late: half of them, 99 of 100, and all since the beginning were less late."""

    p50: float
    p99: float
    most: float


class LoopLag:
    """The lags of a timer that is due once every `interval` seconds. One that is late by many intervals stands for
    those that would have been due meanwhile (Gil Tene, "How NOT to measure latency")."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._lags: collections.deque[float] = collections.deque(maxlen=KEPT)
        self._most = 0.0

    def add(self, seconds: float) -> None:
        self._most = max(self._most, seconds)
        missed = min(_MOST_MISSED, int(seconds / self._interval))
        self._lags.extend(seconds - number * self._interval for number in range(missed + 1))

    def read(self) -> Lag:
        lags = sorted(self._lags)
        if not lags:
            return Lag(0.0, 0.0, 0.0)
        p50, p99 = (lags[min(len(lags) - 1, math.ceil(share * len(lags)) - 1)] for share in (0.5, 0.99))
        return Lag(p50, p99, self._most)


class LoopWatch:
    """Watches the event loop of the calling thread, which may be blocked for `bound` seconds before the log says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bound: float) -> None:
        self.loop, self.bound = loop, bound
        self.users = 0
        self._thread = threading.get_ident()
        self._lag = LoopLag(INTERVAL)
        self._due = time.monotonic() + INTERVAL
        self._timer = loop.call_later(INTERVAL, self._beat)
        # What kept the timer from being called at the last look, and since when it is known.
        self._step: tuple[tuple[float, object], float] | None = None

    def lag(self) -> Lag:
        return self._lag.read()

    def overdue(self) -> float:
        return max(0.0, time.monotonic() - self._due)

    def stop(self) -> None:
        self._timer.cancel()

    def _beat(self) -> None:
        now = time.monotonic()
        self._lag.add(max(0.0, now - self._due))
        self._due = now + INTERVAL
        self._timer = self.loop.call_later(INTERVAL, self._beat)

    def look(self) -> None:
        """From the watching thread: if one step of one task has blocked the loop for too long, log it, and tell its
        tool. A loop that is late because many tasks have something to do is not blocked."""
        due = self._due
        if time.monotonic() < due:
            self._step = None
            return
        task = asyncio.current_task(self.loop)
        frame = sys._current_frames().get(self._thread)
        # While the timer is overdue, a task gets one step at most: the next one comes after the timer.
        step = (due, task if task is not None else _handle(frame))
        if step[1] is None or self._step is None or step != self._step[0]:
            self._step = None if step[1] is None else (step, time.monotonic())
            return
        seconds = time.monotonic() - self._step[1]
        if seconds < self.bound:
            return
        call = _calls.get(task) if task is not None else None
        if due != self._due:
            return  # it goes on: what was seen may be what came after
        if call is None:
            _say(_described(task), seconds, frame, "")
        else:
            _say(f"the tool {call.name!r}", seconds, frame, call.caught())


def _handle(frame: FrameType | None) -> FrameType | None:
    """The frame in which asyncio calls what is due; None if the loop waits."""
    while frame is not None and frame.f_code is not asyncio.Handle._run.__code__:
        frame = frame.f_back
    return frame


_calls: dict[asyncio.Task[Any], tool_works[Any]] = {}
_said = LogThrottle(LOG_INTERVAL)


class tool_works(Generic[T]):
    """Say that the running task is that of a tool's call while the block runs.

    If the task blocks its event loop, `caught` is called with the tool in another thread; it returns what is done about
    it, for the log.
    """

    __slots__ = ("_caught", "_task", "_tool", "name")

    def __init__(self, name: str, caught: Callable[[T], str], tool: T) -> None:
        self.name, self._caught, self._tool = name, caught, tool

    def caught(self) -> str:
        return self._caught(self._tool)

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        _calls[task] = self

    def __exit__(self, *_: object) -> None:
        del _calls[self._task]


def _described(task: asyncio.Task[Any] | None) -> str:
    return "a callback" if task is None else f"the coroutine {getattr(task.get_coro(), '__qualname__', '?')}"


def _say(who: str, seconds: float, frame: FrameType | None, done: str) -> None:
    if _said.due(who) is None:
        return
    place = "somewhere"
    if frame is not None:
        last = traceback.extract_stack(frame)[-1]
        place = f"{last.filename}:{last.lineno} in {last.name}: {last.line or '?'}"
    _log.warning(
        "%s has blocked the event loop for %.1f seconds, at %s. All other episodes stand still meanwhile: let it await "
        "what it waits for, or make it a plain function (`def`), which runs in a thread.%s",
        who,
        seconds,
        place,
        f" {done}" if done else "",
    )


class _Watchdog:
    def __init__(self) -> None:
        self._watches: set[LoopWatch] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, watch: LoopWatch) -> None:
        with self._changed:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="toolgym-watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, watch: LoopWatch) -> None:
        with self._changed:
            self._watches.discard(watch)
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                # Copies: a garbage collection in this thread may end a block that was left behind, which removes one.
                watches = list(self._watches)
                if not watches:
                    self._thread = None
                    return
                pause = min(watch.bound for watch in watches) / 4
                began = time.monotonic()
                self._changed.wait(pause)
                watches = list(self._watches)
            if time.monotonic() - began > 2 * pause:
                continue  # this thread was not called in time either: the whole process stood still
            for watch in watches:
                watch.look()


_watchdog = _Watchdog()
_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch] = weakref.WeakKeyDictionary()


os.register_at_fork(
    after_in_child=lambda: globals().update(_watchdog=_Watchdog(), _watches=weakref.WeakKeyDictionary())
)


@contextlib.contextmanager
def watch_loop(bound: float | None = None) -> Iterator[LoopWatch]:
    """Watch the running event loop while the block runs. Blocks that run at the same time share one watch, and the
    first one's `bound`: seconds that the loop may be blocked before the log says so; None: `BLOCKED_AFTER`."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = LoopWatch(loop, BLOCKED_AFTER if bound is None else bound)
        _watchdog.add(watch)
    watch.users += 1
    try:
        yield watch
    finally:
        watch.users -= 1
        if not watch.users:
            watch.stop()
            _watchdog.remove(watch)
            del _watches[loop]
