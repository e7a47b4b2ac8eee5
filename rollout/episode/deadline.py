from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from toolgym.rollout.limits import EpisodeLimits
from toolgym.tools.concurrency.deadline import watch_own_deadline


class episode_deadline(AbstractAsyncContextManager[Callable[[], None]]):
    """Cancel the block with `TimeoutError` when the episode's time is over, of which `spent` seconds have passed
    before.

    If its scorer is at work then, it has `score_grace` seconds more. Gives a function that ends the block at once.
    """

    __slots__ = ("_limits", "_scores", "_spent", "_timeout", "_timer", "_watch")

    def __init__(self, limits: EpisodeLimits, spent: float = 0.0) -> None:
        self._limits, self._spent = limits, spent

    async def __aenter__(self) -> Callable[[], None]:
        self._watch = watch_own_deadline()
        self._scores = self._watch.__enter__()
        self._timeout = await asyncio.timeout(None).__aenter__()
        seconds = self._limits.episode_timeout - self._spent
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end_in_time)
        return self._end

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        finally:
            self._watch.__exit__(kind, error, trace)

    def _end(self, seconds: float = 0.0) -> None:
        when = asyncio.get_running_loop().time() + seconds
        if not self._timeout.expired() and when < (self._timeout.when() or math.inf):
            self._timeout.reschedule(when)

    def _end_in_time(self) -> None:
        self._end(self._limits.score_grace if self._scores() else 0.0)
