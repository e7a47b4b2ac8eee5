from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from toolgym.envs.base import BaseEnv
from toolgym.envs.registry import make, spec
from toolgym.envs.tasks.combined.mixture import Mixture, Weights, checked_weights
from toolgym.envs.tasks.row_fields import ENV_COLUMN
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.rollout.episode.env_lifecycle import close_env
from toolgym.rollout.runner.envs.role_plan import RolePlan
from toolgym.rollout.runner.scheduling.scheduler import Stragglers
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest

if TYPE_CHECKING:
    from toolgym.rollout.job import Job
    from toolgym.rollout.trajectory.trajectory import Trajectory


class JobEpisode(Protocol):
    """Plays one job with an env, as `Episode` does; `run` returns None only if it was asked to stand still, and several
    trajectories only for an env with roles."""

    @property
    def job(self) -> Job: ...

    @property
    def env(self) -> BaseEnv: ...

    async def run(self, *, between_turns: Any = None) -> Trajectory | Sequence[Trajectory] | None: ...

    def cut(self) -> None: ...

    def suspend(self) -> None: ...


MakeEpisode = Callable[..., JobEpisode]
"""Takes what `Episode` takes."""


def end_as(episode: JobEpisode, how: Stragglers) -> None:
    """Ask an episode to end as the stragglers of its run do."""
    if how is Stragglers.CARRY:
        episode.suspend()
    else:
        episode.cut()


@dataclass(frozen=True)
class EnvFactory:
    """Makes the envs of a run, one for each episode in flight.

    Attributes:
        env_id: the env's name in trajectories: its id, or a name of your choice.
        make: makes one env.
        kwargs: the arguments of `toolgym.make(env_id, ...)` for such an env; None if only `make` can make it.
        episodes: opens, for one run with an engine, tokenizer and config, what plays its episodes; None: `Episode`, or
            `RolesEpisode` for an env with roles.
        members: the envs of a mixture by name, of which each task names its own, see `mixture`; else empty.
        weights: how often tasks of each member are drawn, see `Mixture`.
        roles: the players of an env's roles by name; a role that is left out is played, and trained, as the run says.
    """

    env_id: str
    make: Callable[[], BaseEnv]
    kwargs: Mapping[str, Any] | None = None
    episodes: Callable[..., AbstractAsyncContextManager[MakeEpisode]] | None = None
    members: Mapping[str, EnvFactory] = field(default_factory=dict)
    weights: Weights | None = None
    roles: Mapping[str, RolePlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.roles and self.members:
            raise ConfigError(f"roles are those of one env, and {self.env_id} are several: give them to the member")
        if not isinstance(self.roles, Mapping) or not all(isinstance(plan, RolePlan) for plan in self.roles.values()):
            raise ConfigError(f"roles must map names to RolePlans, got {self.roles!r}")
        if not isinstance(self.env_id, str) or not callable(self.make):
            raise ConfigError(
                f"an EnvFactory needs a name and a function that makes an env, got {self.env_id!r} and {self.make!r}"
            )

    @classmethod
    def of(
        cls,
        env: str | Callable[[], BaseEnv] | EnvFactory,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        roles: Mapping[str, RolePlan] | None = None,
    ) -> EnvFactory:
        """The factory for an env id with its arguments, for a function that makes envs, or that factory itself; with
        other `roles`, if they are given. Several ids, such as `A-v0,B-v0` or with weights `A-v0=2,B-v0=1`, give a
        `mixture`.

        Raises:
            UnknownNameError: no env has that id; names the nearest one.
            ConfigError: `env` is none of these, or `env_kwargs` were given with another than an id.
        """
        if roles is not None:
            return replace(cls.of(env, env_kwargs), roles=roles)
        if isinstance(env, str):
            if not isinstance(env_kwargs, Mapping | None):
                raise ConfigError(f"env_kwargs must map names to arguments, got {env_kwargs!r}")
            if "," in env:
                return mixture(read_weights(env), env_kwargs=env_kwargs)
            spec(env)
            kwargs = dict(env_kwargs or {})
            return cls(env, lambda: _make(env, kwargs), kwargs)
        if env_kwargs:
            raise ConfigError("env_kwargs go with an env id; a function that makes envs knows its own")
        if isinstance(env, EnvFactory):
            return env
        if isinstance(env, BaseEnv):
            raise ConfigError(
                f"expected an env id or a function that makes an env, got the env {env!r}: episodes that run at the "
                "same time need an env each"
            )
        if not callable(env):
            raise ConfigError(f"expected an env id or a function that makes an env, got {env!r}")
        return cls(getattr(env, "__name__", type(env).__name__), env)

    def __call__(self) -> BaseEnv:
        env: Any = self.make()
        if not isinstance(env, BaseEnv):
            if inspect.iscoroutine(env):
                env.close()
            raise ConfigError(f"{self.env_id} must make a toolgym BaseEnv, it gave {env!r}")
        return env

    @property
    def each(self) -> Sequence[EnvFactory]:
        """The members of a mixture; else the factory itself."""
        return tuple(self.members.values()) or (self,)

    def member(self, task: Task) -> EnvFactory:
        """The member of a mixture that plays a task; else the factory itself. Raises `ConfigError` if the task names
        none."""
        if not self.members:
            return self
        name = str(task.row.get(ENV_COLUMN) or task.extra_info.get(ENV_COLUMN))
        if name not in self.members:
            raise ConfigError(
                f"task {task.id!r} must name an env of the mixture in extra_info.{ENV_COLUMN}, one of "
                f"{', '.join(self.members)}, got {name!r}. Those that a run draws by itself, and those of "
                "`await mixture(...).tasks()`, do"
            )
        return self.members[name]

    def changed(self, change: Callable[[BaseEnv, str], None]) -> EnvFactory:
        """A factory of the same envs, which applies `change` to each env that it makes and its factory's name."""
        if self.members:
            return replace(self, members={name: member.changed(change) for name, member in self.members.items()})

        def make_changed() -> BaseEnv:
            env = self()
            change(env, self.env_id)
            return env

        return replace(self, make=make_changed)

    def planned(self, change: Callable[[RolePlan], RolePlan]) -> EnvFactory:
        """A factory of the same envs, whose roles have the plans that `change` makes of theirs."""
        members = {name: member.planned(change) for name, member in self.members.items()}
        return replace(self, members=members, roles={role: change(plan) for role, plan in self.roles.items()})

    async def tasks(self) -> TaskSource:
        """Return the envs' own source of tasks, of a mixture a `Mixture`. Raises `ConfigError` if they have none."""
        if self.members:
            sources = {name: await member.tasks() for name, member in self.members.items()}
            return Mixture(sources, weights=self.weights, of_envs=True)
        env = self()
        try:
            source = getattr(env, "tasks", None)
        finally:
            await close_env(env)
        if not isinstance(source, TaskSource):
            raise ConfigError(f"env {self.env_id!r} has no tasks of its own: give some (tasks=..., or --task-file)")
        return source


def mixture(
    envs: Mapping[str, float] | Sequence[str | Callable[[], BaseEnv] | EnvFactory],
    *,
    weights: Weights | None = None,
    env_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
) -> EnvFactory:
    """Return an env that is several: each task is played in the one that it names, and so is its whole group.

    It stands wherever an env does that gets a task to play: runners, `rollout`, `run_episode`, the trainer adapters.
    The trajectories have the names of the members.

    Args:
        envs: env ids, functions that make an env, or `EnvFactory`s; or a mapping from ids to weights.
        weights: how often tasks of each are drawn, by name, see `Mixture`; None: those of `envs`, or the same for all.
        env_kwargs: for `toolgym.make`, by the member's id.

    Raises:
        UnknownNameError: no env has an id, or arguments are for none of the members; names the nearest one.
        ConfigError: there are no envs, or two with one name, or weights are given twice.
    """
    if isinstance(envs, str) or not isinstance(envs, Sequence | Mapping) or not envs:
        raise ConfigError(f"a mixture takes several envs in a list, or a mapping from env ids to weights, got {envs!r}")
    if isinstance(envs, Mapping):
        if weights is not None:
            raise ConfigError(f"weights are given twice: {dict(envs)!r} and {weights!r}")
        weights = envs
    kwargs = dict(env_kwargs or {})
    factories = [EnvFactory.of(env, kwargs.pop(env, None) if isinstance(env, str) else None) for env in envs]
    members = {factory.env_id: factory for factory in factories}
    names = ",".join(members)
    if len(members) < len(factories) or any(factory.members for factory in factories):
        raise ConfigError(f"each env of a mixture needs a name of its own, and none is a mixture itself, got {names}")
    if isinstance(weights, Mapping):
        checked_weights(weights, members)
    for name in kwargs:
        raise UnknownNameError(f"env_kwargs for {name!r}{nearest(name, members) or ','} which is none of {names}")

    def make_none() -> BaseEnv:
        raise ConfigError(f"{names} is a mixture, whose env depends on the task: EnvFactory.member(task)() makes it")

    arguments = {name: factory.kwargs for name, factory in members.items()}
    known = None if None in arguments.values() else arguments
    return EnvFactory(names, make_none, known, members=members, weights=weights)


def read_weights(text: str) -> Mapping[str, float]:
    """Read weights such as `A-v0=2,B-v0`, in which one that is left out is 1. Raises `ConfigError` if it cannot."""
    parts = [part.strip().partition("=") for part in text.split(",")]
    try:
        weights = {name.strip(): float(weight) if equals else 1.0 for name, equals, weight in parts}
    except ValueError as error:
        raise ConfigError(f"expected envs with weights such as 'A-v0=2,B-v0=1', got {text!r}: {error}") from None
    if len(weights) < len(parts) or "" in weights:
        raise ConfigError(f"expected envs such as 'A-v0,B-v0', each once, got {text!r}")
    return weights


def _make(env_id: str, kwargs: Mapping[str, Any]) -> BaseEnv:
    try:
        return make(env_id, **kwargs)
    except TypeError as error:
        raise ConfigError(f"env {env_id!r} cannot be made with {', '.join(kwargs) or 'no'} options: {error}") from error
