"""The blocking functions of one foreign env: the threads that run them, and the random generators that they use."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.tools.concurrency.blocking import DaemonThread, contained
from toolgym.tools.concurrency.execution_pool import tool_pool
from toolgym.tools.errors import EpisodeError, error_text, on_one_line

T = TypeVar("T")

_log = logging.getLogger("toolgym.envs")


class EnvThreads:
    """Runs the blocking functions of one env, one at a time: in the threads of `tool_pool`, or in one of its own.

    A thread cannot be stopped. One that its caller gave up, as at a deadline, runs on; a result that it makes is undone
    when it ends, and a `close` that came meanwhile happens then, so that an env is never closed while it steps.
    """

    def __init__(self, name: str, *, own_thread: bool = False) -> None:
        self.name = name
        self._own = DaemonThread("toolgym-env") if own_thread else None
        self._lock = threading.Lock()
        self._running = 0
        self._late: Callable[[], Any] | None = None

    @property
    def own(self) -> bool:
        return self._own is not None

    async def run(
        self, function: Callable[..., T], /, *args: Any, undo: Callable[[T], Any] | None = None, **kwargs: Any
    ) -> T:
        """Run a function. `undo` is called with its result if the caller does not wait for it any more.

        Raises:
            EpisodeError: a function that overran its deadline still runs.
        """
        if self._running:
            raise EpisodeError(f"a function of {self.name} that overran its deadline still runs")
        call = _Call(functools.partial(function, *args, **kwargs), undo)
        try:
            work = functools.partial(self._do, call)
            if self._own is None:
                return await tool_pool().run(work, name=self.name)
            context = contextvars.copy_context()
            return await asyncio.wrap_future(self._own.submit(context.run, contained, work, (), {}))
        except asyncio.CancelledError:
            call.give_up()
            raise

    async def close(self, close: Callable[[], Any]) -> None:
        """Call the env's `close`: now, or when the function that still runs has ended."""
        with self._lock:
            if self._running:
                self._late = close
                _log.warning("%s is closed when its function that overran its deadline ends", self.name)
                return
        await self.run(close)

    def end(self) -> None:
        if self._own is not None:
            self._own.shutdown(wait=False)

    def _do(self, call: _Call) -> Any:
        with self._lock:
            self._running += 1
        try:
            return call()
        finally:
            with self._lock:
                self._running -= 1
                late, self._late = (self._late, None) if not self._running else (None, self._late)
            if late is not None:
                _quietly(late, f"closing {self.name}")


class _Call:
    """One function, whose result is undone if its caller went away."""

    def __init__(self, function: Callable[[], Any], undo: Callable[[Any], Any] | None) -> None:
        self._function, self._undo = function, undo
        self._lock = threading.Lock()
        self._given_up = False
        self._made: list[Any] = []

    def __call__(self) -> Any:
        value = self._function()
        if self._undo is not None:
            with self._lock:
                if not self._given_up:
                    self._made.append(value)
                    return value
            _quietly(functools.partial(self._undo, value), "undoing what came too late")
        return value

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            values, self._made = self._made, []
        for value in values:  # they were made, but its caller never got it
            assert self._undo is not None
            thread = DaemonThread("toolgym-env")
            thread.submit(_quietly, functools.partial(self._undo, value), "undoing what came too late")
            thread.shutdown(wait=False)


def _quietly(function: Callable[[], Any], what: str) -> None:
    try:
        function()
    except Exception as error:  # noqa: BLE001  nothing waits for it
        _log.warning("%s failed: %s", what, on_one_line(error_text(error)))


RANDOM_TIMEOUT = 60.0
"""Wall seconds to wait for the function of another env."""

_lock = threading.Lock()


class OwnRandom:
    """Gives one env the global generators of `random` and NumPy as if no other code drew from them.

    Some projects seed and draw from the global generators, so episodes at the same time would disturb each other, and
    the training program around them. Here each env has states of its own, which are in place while one of its functions
    runs; these run one after another in the process.
    """

    def __init__(self, timeout: float = RANDOM_TIMEOUT) -> None:
        self._timeout = timeout
        self._state: tuple[Any, Any] | None = None

    def run(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        if not _lock.acquire(timeout=self._timeout):
            raise EpisodeFailedError(
                StopReason.ENV_TIMEOUT,
                f"another env holds the global random generators for more than {self._timeout:g} seconds",
            )
        try:
            before = random.getstate(), np.random.get_state()
            if self._state is None:
                random.seed()
                np.random.seed()
            else:
                random.setstate(self._state[0])
                np.random.set_state(self._state[1])
            try:
                return function(*args, **kwargs)
            finally:
                self._state = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])
        finally:
            _lock.release()
