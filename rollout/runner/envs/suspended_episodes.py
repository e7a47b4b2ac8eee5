from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from toolgym.envs.base import BaseEnv
from toolgym.rollout.episode.episode import Episode
from toolgym.rollout.job import Job
from toolgym.rollout.runner.envs.env_pool import close_all

_log = logging.getLogger("toolgym.rollout")


class Suspended(NamedTuple):
    """An episode that stands still, and its env."""

    episode: Episode
    env: BaseEnv


class SuspendedEpisodes:
    """Owns episodes that stand still between two runs, by `Job.member`."""

    def __init__(self) -> None:
        self._episodes: dict[tuple[str, int], Suspended] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def take(self, jobs: Iterable[Job]) -> dict[tuple[str, int], Suspended]:
        """Hand over the episodes of these jobs; those that are not here are left out."""
        members = [job.member for job in jobs if job.member in self._episodes]
        return {member: self._episodes.pop(member) for member in members}

    async def give(self, episodes: dict[tuple[str, int], Suspended], jobs: Iterable[Job]) -> None:
        """Take over the episodes of these jobs, and free the others."""
        wanted = {job.member for job in jobs}
        self._episodes |= {member: suspended for member, suspended in episodes.items() if member in wanted}
        await close_all([suspended.env for member, suspended in episodes.items() if member not in wanted])

    async def close(self) -> None:
        episodes, self._episodes = self._episodes, {}
        await close_all([suspended.env for suspended in episodes.values()])

    def __del__(self) -> None:
        if self._episodes:
            message = (
                f"{len(self._episodes)} episodes that a Runner carried over were left, and what their envs and tools "
                "hold is not freed: use `async with Runner(...)`, or `await runner.close()` behind the last run"
            )
            _log.warning(message)
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
