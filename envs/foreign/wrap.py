"""`wrap`: an env of another project as an env of toolgym."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from toolgym.envs.foreign.env import ForeignEnv
from toolgym.envs.foreign.options import WrapOptions
from toolgym.envs.foreign.projects import adapter_for, checked_project, project_of
from toolgym.tools.errors import ConfigError


def wrap(env: object, **options: Any) -> ForeignEnv:
    """Return an env of aviary, GEM, Gymnasium, OpenEnv, skyrl-gym, tau2-bench or TextArena as an env of toolgym.

    `docs/foreign_envs.md` says for each project what is passed on. An exception of an env, a deadline that passes and a
    reward that is no finite number end the episode as a failure of the env, never as a reward of 0.

    Example:
        >>> import asyncio, gymnasium, toolgym
        >>> class Echo(gymnasium.Env):
        ...     action_space = observation_space = gymnasium.spaces.Text(max_length=100)
        ...     def reset(self, *, seed=None, options=None):
        ...         return f"Say {seed}.", {}
        ...     def step(self, action):
        ...         return "", float(action == "7"), True, False, {}
        >>> async def main():
        ...     async with toolgym.envs.wrap(Echo) as env:
        ...         obs, info = await env.reset(seed=7)
        ...         return obs[0]["content"], (await env.step("7")).reward
        >>> asyncio.run(main())
        ('Say 7.', 1.0)

    Args:
        env: the object, or a function or class that makes one when the first episode begins. A function that takes an
            argument gets the task, and makes an object for each episode. It may be async. The object is closed with
            the env. A runner wants an object for each env: `rollout(lambda: wrap(...), ...)`.
        options: see `WrapOptions`.

    Raises:
        ConfigError: the object is of no known project, cannot be wrapped, or an option is of the wrong kind or means
            nothing to its project.
        UnknownNameError: there is no such project, parser or option; names the nearest one.
    """
    settings = WrapOptions(**options)
    if settings.project is not None:
        checked_project(settings.project)
    is_object = not isinstance(env, type) and (project_of(env) is not None or not callable(env))
    if not is_object:
        assert callable(env)
        return ForeignEnv(None, env, _takes_task(env), settings)
    if adapter_for(env, settings.project).one_episode:
        raise ConfigError(
            f"an object of {type(env).__name__} plays one episode, so wrap needs a function that makes one, such as "
            f"`lambda task: {type(env).__name__}(...)`, got {env!r}"
        )
    return ForeignEnv(env, None, False, settings)


def _takes_task(make: Callable[..., Any]) -> bool:
    """Whether a function that makes envs takes the task. Raises ConfigError: it takes more than that."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # it does not say what it takes
        return False
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [arg for arg in parameters if arg.default is arg.empty and arg.kind not in variadic]
    if len(required) > 1 or any(arg.kind is arg.KEYWORD_ONLY for arg in required):
        names = ", ".join(arg.name for arg in required)
        raise ConfigError(f"a function that makes an env takes nothing, or the task; {make!r} takes: {names}")
    return bool(required)
