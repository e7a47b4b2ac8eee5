"""`EnvPool`: the envs of one run, and who closes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from toolgym.envs.base import BaseEnv
from toolgym.tools.concurrency.deadline import shielded, with_deadline

CLOSE_TIMEOUT = 30.0
"""Seconds that an env gets to close."""

_log = logging.getLogger("toolgym.rollout")


class EnvPool:
    """Owns the envs of one run. An env that is given back is used again; closing the pool closes every env.

    Args:
        make: makes one env.
    """

    def __init__(self, make: Callable[[], BaseEnv]) -> None:
        self._make = make
        self._idle: list[BaseEnv] = []
        self._open: list[BaseEnv] = []

    def take(self) -> BaseEnv:
        """An idle env, or a new one. Raises what `make` raises."""
        if self._idle:
            return self._idle.pop()
        env = self._make()
        self._open.append(env)
        return env

    def give_back(self, env: BaseEnv) -> None:
        """Keep an env for the next episode."""
        self._idle.append(env)

    async def discard(self, env: BaseEnv) -> None:
        """Close an env that no further episode may use."""
        await close_env(env)
        self._open = [one for one in self._open if one is not env]

    async def close(self) -> None:
        """Close every env, those in use included."""
        envs, self._open, self._idle = self._open, [], []
        await shielded(_close_all(envs))


async def close_env(env: BaseEnv) -> None:
    """Close an env, even when the caller is cancelled meanwhile. A failure is logged: the run's results are whole."""
    try:
        await shielded(with_deadline(env.close(), CLOSE_TIMEOUT))
    except Exception as error:  # noqa: BLE001  the trajectories are worth more
        _log.warning("closing an env failed: %s: %s", type(error).__name__, error)


async def _close_all(envs: list[BaseEnv]) -> None:
    async with asyncio.TaskGroup() as group:
        for env in envs:
            group.create_task(close_env(env))
