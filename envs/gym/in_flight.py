"""`InFlight`: calls of single envs on an event loop's thread, taken back in the order in which they finish."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from toolgym.tools.concurrency.event_loop_thread import SLICE, EventLoopThread, LoopTimeoutError
from toolgym.tools.errors import EpisodeError

T = TypeVar("T")


class InFlight(Generic[T]):
    """The calls of a vector env's single envs that have begun and were not taken back, at most one per env."""

    def __init__(self, bridge: EventLoopThread) -> None:
        self._bridge = bridge
        self._landed: queue.SimpleQueue[tuple[int, Future[T]]] = queue.SimpleQueue()
        self._results: dict[int, T] = {}
        self._errors: dict[int, BaseException] = {}
        self._out: set[int] = set()

    @property
    def indices(self) -> list[int]:
        return sorted(self._out)

    def begin(self, index: int, call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Begin an env's call, and return at once. Raises `EpisodeError` if the event loop is closed."""
        future, landed = self._bridge.submit(call()), self._landed
        self._out.add(index)
        future.add_done_callback(lambda done: landed.put((index, done)))

    def take(self, count: int, timeout: float | None) -> tuple[dict[int, T], dict[int, BaseException]]:
        """Take back the first `count` calls that finished, which must be out, waiting at most `timeout` seconds.

        Returns the results by env, in the order in which they finished; or, if a call has raised, only the errors.
        Results that are there, also after a `LoopTimeoutError`, wait for the next time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            while not self._landed.empty():
                self._land(*self._landed.get_nowait())
            if self._errors:
                errors, self._errors = self._errors, {}
                self._out -= errors.keys()
                return {}, errors
            if len(self._results) >= count:
                taken = {index: self._results.pop(index) for index in list(self._results)[:count]}
                self._out -= taken.keys()
                return taken, {}
            left = SLICE if deadline is None else min(SLICE, deadline - time.monotonic())
            if left <= 0:
                raise LoopTimeoutError(
                    f"{len(self._results)} of {count} envs were ready within {timeout:g} seconds; they can be received "
                    "with another call"
                )
            try:  # in slices, as in `EventLoopThread`: an interrupt must get through
                self._land(*self._landed.get(timeout=left))
            except queue.Empty:
                continue

    def _land(self, index: int, future: Future[T]) -> None:
        try:
            error = future.exception()
        except CancelledError:
            error = EpisodeError("the call was cancelled: the envs were closed before it finished")
        if error is None:
            self._results[index] = future.result()
        else:
            self._errors[index] = error


async def gather(calls: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> list[T | BaseException]:
    """Run calls at the same time; what they return or raise, in their order."""
    return await asyncio.gather(*(call() for call in calls), return_exceptions=True)
