from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from toolgym.rollout.limits import EpisodeLimits
from toolgym.tools.concurrency.deadline import watch_own_deadline


@asynccontextmanager
async def episode_deadline(limits: EpisodeLimits, spent: float = 0.0) -> AsyncIterator[Callable[[], None]]:
    """Cancel the block with `TimeoutError` when the episode's time is over, `spent` seconds of which have passed.

    If its scorer is at work then, it has `score_grace` seconds more. Gives a function that ends the block at once.
    """
    loop = asyncio.get_running_loop()
    with watch_own_deadline() as scores:
        async with asyncio.timeout(None) as timeout:

            def end(seconds: float = 0.0) -> None:
                when = loop.time() + seconds
                if not timeout.expired() and when < (timeout.when() or math.inf):
                    timeout.reschedule(when)

            def end_in_time() -> None:
                end(limits.score_grace if scores() else 0.0)

            timer = loop.call_later(limits.episode_timeout - spent, end_in_time)
            try:
                yield end
            finally:
                timer.cancel()
