"""The fork and the end of an env, and the deadline of a whole episode."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from toolgym.envs.base import BaseEnv
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.limits import EpisodeLimits
from toolgym.tools.concurrency.deadline import shielded, watch_own_deadline, with_deadline

CLOSE_TIMEOUT = 30.0

_log = logging.getLogger("toolgym.rollout")


async def fork_env(env: BaseEnv, seconds: float) -> BaseEnv:
    """Return a fork of an env, which the caller closes. One that comes too late, or is not waited for, is closed.
    Raises `DeadlineError` if it took longer, and what `BaseEnv.fork` raises."""
    twins: list[BaseEnv] = []
    waited_for = True

    async def fork() -> None:
        twin = await env.fork()
        if waited_for:
            twins.append(twin)
        else:
            await close_env(twin)

    try:
        await with_deadline(fork(), seconds)
    except BaseException:  # cancelled too: a twin that came at the same time has no other owner
        waited_for = False
        for twin in twins:
            await close_env(twin)
        raise
    return twins[0]


async def close_env(env: BaseEnv) -> None:
    """Close an env, even when the caller is cancelled meanwhile. A failure is logged: the run's results are whole."""
    await shielded(close_env_once(env))


async def close_env_once(env: BaseEnv) -> None:
    """As `close_env`, for a caller that is not cancelled."""
    try:
        await with_deadline(env.close(), CLOSE_TIMEOUT)
    except Exception as error:  # noqa: BLE001  the trajectories are worth more
        _log.warning("closing an env failed: %s: %s", type(error).__name__, error)


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


def too_late(limits: EpisodeLimits) -> EpisodeFailedError:
    """Return the error of an episode that met its deadline."""
    text = f"the episode did not finish within {limits.episode_timeout:g} seconds"
    return EpisodeFailedError(StopReason.EPISODE_TIMEOUT, text)
