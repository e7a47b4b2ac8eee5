"""One job of an env with roles: an ordinary episode for each role, side by side at one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from toolgym.envs.base import BaseEnv
from toolgym.envs.roles.base import RolesEnv
from toolgym.envs.roles.seat import Seat, seats
from toolgym.rollout.engines.base import Engine
from toolgym.rollout.episode.config import EpisodeConfig
from toolgym.rollout.episode.env_lifecycle import close_env
from toolgym.rollout.episode.episode import Episode
from toolgym.rollout.episode.observer import EpisodeObserver
from toolgym.rollout.episode.record import never_played
from toolgym.rollout.job import Job
from toolgym.rollout.runner.envs.role_plan import RolePlan, plan_of, roles_label, trained_roles
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.concurrency.deadline import together
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from toolgym.rollout.runner.config import RunConfig


async def checked_roles(
    env: BaseEnv, plans: Mapping[str, RolePlan], config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, ...]:
    """Return the trained roles of an env; none of one without roles. Raises `ConfigError` if a run with this config
    cannot play them, and `EngineError` if an engine of theirs has not started."""
    if not isinstance(env, RolesEnv):
        if plans:
            raise ConfigError(f"roles go with a RolesEnv, and there are some for {env!r}")
        return ()
    roles = trained_roles(env, plans)
    if config.branching is not None:
        raise ConfigError("episodes with several roles cannot branch: leave out RunConfig.branching")
    for plan in plans.values():
        if plan.engine is not None:
            _ = plan.engine.vocab_size  # raises if it has not started
            await plan.engine.check_tokenizer(plan.tokenizer_in_use(tokenizer))
    return roles


def lost_job(
    job: Job,
    roles: Sequence[str],
    config: EpisodeConfig,
    env_id: str,
    error: Exception,
    observers: Sequence[EpisodeObserver],
) -> list[Trajectory]:
    """Return the trajectories of a job whose env could not be made: one for each role, one if there are no roles."""
    lost = []
    for part in [job.for_role(role) for role in roles] or [job]:
        trajectory = never_played(part, config, env_id, error, roles_label(roles))
        for observer in observers:
            observer.ended(part, trajectory)
        lost.append(trajectory)
    return lost


class RolesEpisode:
    """Plays one job of an env with roles, as `Episode` does with one policy; all arguments but `plans` are its.

    A role that fails fails the others, whose errors name it; a role that a limit ends leaves them to
    `RolesEnv.forfeit`. It cannot stand still: then it is cut.
    """

    def __init__(
        self,
        job: Job,
        config: EpisodeConfig,
        env: RolesEnv,
        engine: Engine,
        renderer_factory: Any,
        *,
        plans: Mapping[str, RolePlan],
        observers: Sequence[Any] = (),
        **options: Any,
    ) -> None:
        self.job, self.env = job, env
        self._trained = trained_roles(env, plans)
        self._table, self._seats = seats(env, config.limits.env_timeout)
        self._episodes: dict[str, Episode] = {}
        self._table.waiting = lambda role: self._episodes[role].waits_for_role()
        for seat in self._seats:
            plan = plan_of(seat.role, plans)
            self._episodes[seat.role] = Episode(
                job.for_role(seat.role),
                plan.config(config),
                seat,
                plan.engine or engine,
                partial(renderer_factory, plan=plan),
                observers=observers if plan.train else (),
                **options,
            )

    async def run(self, *, between_turns: Any = None) -> tuple[Trajectory, ...]:
        """Play to the end of all roles. Returns the trajectories of the trained ones, in the order of the roles."""
        try:
            played = await together(self._play(seat) for seat in self._seats)
        finally:
            for seat in self._seats:
                await close_env(seat)
        return tuple(trajectory for trajectory in played if trajectory.role in self._trained)

    async def _play(self, seat: Seat) -> Trajectory:
        trajectory = await self._episodes[seat.role].run()
        assert trajectory is not None  # nothing suspends it
        failure = None if trajectory.error is None else trajectory.error.message
        self._table.leave(seat.role, trajectory.stop_reason, failure)
        return trajectory

    def cut(self) -> None:
        for episode in self._episodes.values():
            episode.cut()

    suspend = cut
