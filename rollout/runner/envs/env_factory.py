from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from toolgym.envs.base import BaseEnv
from toolgym.envs.registry import make, spec
from toolgym.envs.tasks.sources import TaskSource
from toolgym.rollout.episode.env_lifecycle import close_env
from toolgym.tools.errors import ConfigError

if TYPE_CHECKING:
    from toolgym.rollout.job import Job
    from toolgym.rollout.trajectory.trajectory import Trajectory


class JobEpisode(Protocol):
    """Plays one job with an env, as `Episode` does; `run` returns None only if it was asked to stand still."""

    @property
    def job(self) -> Job: ...

    @property
    def env(self) -> BaseEnv: ...

    async def run(self, *, between_turns: Any = None) -> Trajectory | None: ...

    def cut(self) -> None: ...

    def suspend(self) -> None: ...


MakeEpisode = Callable[..., JobEpisode]
"""Takes what `Episode` takes."""


@dataclass(frozen=True)
class EnvFactory:
    """Makes the envs of a run, one for each episode in flight.

    Attributes:
        env_id: the env's name in trajectories: its id, or a name of your choice.
        make: makes one env.
        kwargs: the arguments of `toolgym.make(env_id, ...)` for such an env; None if only `make` can make it.
        episodes: opens, for one run with an engine, tokenizer and config, what plays its episodes; None: `Episode`.
    """

    env_id: str
    make: Callable[[], BaseEnv]
    kwargs: Mapping[str, Any] | None = None
    episodes: Callable[..., AbstractAsyncContextManager[MakeEpisode]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.env_id, str) or not callable(self.make):
            raise ConfigError(
                f"an EnvFactory needs a name and a function that makes an env, got {self.env_id!r} and {self.make!r}"
            )

    @classmethod
    def of(
        cls, env: str | Callable[[], BaseEnv] | EnvFactory, env_kwargs: Mapping[str, Any] | None = None
    ) -> EnvFactory:
        """The factory for an env id with its arguments, for a function that makes envs, or that factory itself.

        Raises:
            UnknownNameError: no env has that id; names the nearest one.
            ConfigError: `env` is none of these, or `env_kwargs` were given with another than an id.
        """
        if isinstance(env, str):
            if not isinstance(env_kwargs, Mapping | None):
                raise ConfigError(f"env_kwargs must map names to arguments, got {env_kwargs!r}")
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

    def changed(self, change: Callable[[BaseEnv], None]) -> EnvFactory:
        """A factory of the same envs, which applies `change` to each env that it makes."""

        def make_changed() -> BaseEnv:
            env = self()
            change(env)
            return env

        return replace(self, make=make_changed)

    async def tasks(self) -> TaskSource:
        """Return the envs' own source of tasks. Raises `ConfigError` if they have none."""
        env = self()
        try:
            source = getattr(env, "tasks", None)
        finally:
            await close_env(env)
        if not isinstance(source, TaskSource):
            raise ConfigError(f"env {self.env_id!r} has no tasks of its own: give some (tasks=..., or --task-file)")
        return source


def _make(env_id: str, kwargs: Mapping[str, Any]) -> BaseEnv:
    try:
        return make(env_id, **kwargs)
    except TypeError as error:
        raise ConfigError(f"env {env_id!r} cannot be made with {', '.join(kwargs) or 'no'} options: {error}") from error
