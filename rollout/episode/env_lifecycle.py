"""The fork and the end of an env, and the deadline of a whole episode."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, Self

from toolgym.envs.base import BaseEnv
from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.job import EpisodeKey, enter_episode
from toolgym.rollout.limits import EpisodeLimits
from toolgym.tools.concurrency.deadline import CALLBACKS, shielded, watch_own_deadline, with_deadline

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


class episode_deadline(watch_own_deadline):
    """Cancel the block with `TimeoutError` when the episode's time is over, `spent` seconds of which have passed.

    If its scorer is at work then, it has `score_grace` seconds more. `key` is the `current_episode` of the block.

    A class: as a generator, with blocks of their own for its parts, it would take 1.5 kB more in each episode.
    """

    __slots__ = ("_key", "_limits", "_spent", "_timeout", "_timer")

    def __init__(self, limits: EpisodeLimits, spent: float = 0.0, key: EpisodeKey | None = None) -> None:
        self._limits, self._spent, self._key, self._timeout = limits, spent, key, asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        self.__enter__()
        self._key = enter_episode(self._key)
        await self._timeout.__aenter__()
        seconds = self._limits.episode_timeout - self._spent
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._end_in_time, context=CALLBACKS.context)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(*error)
        finally:
            enter_episode(self._key)
            self.__exit__()

    def end(self, seconds: float = 0.0) -> None:
        """End the block in so many seconds, unless it ends earlier."""
        when = asyncio.get_running_loop().time() + seconds
        if not self._timeout.expired() and when < (self._timeout.when() or math.inf):
            self._timeout.reschedule(when)

    def _end_in_time(self) -> None:
        self.end(self._limits.score_grace if self() else 0.0)


def too_late(limits: EpisodeLimits) -> EpisodeFailedError:
    """Return the error of an episode that met its deadline."""
    text = f"the episode did not finish within {limits.episode_timeout:g} seconds"
    return EpisodeFailedError(StopReason.EPISODE_TIMEOUT, text)
