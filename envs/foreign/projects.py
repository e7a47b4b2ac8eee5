"""The adapter of an object, found by the modules of its classes, so that nothing is imported."""

from __future__ import annotations

from typing import Any, cast

from toolgym.envs.entry_points import load
from toolgym.envs.foreign.base import Adapter
from toolgym.tools.errors import ConfigError, UnknownNameError, nearest

PROJECTS = {
    "aviary": "toolgym.envs.foreign.adapters.aviary:AviaryAdapter",
    "gem": "toolgym.envs.foreign.adapters.gem:GemAdapter",
    "gymnasium": "toolgym.envs.foreign.adapters.gymnasium:GymnasiumAdapter",
    "openenv": "toolgym.envs.foreign.adapters.openenv:OpenEnvAdapter",
    "skyrl_gym": "toolgym.envs.foreign.adapters.skyrl_gym:SkyRLGymAdapter",
    "tau2": "toolgym.envs.foreign.adapters.tau2:Tau2Adapter",
    "textarena": "toolgym.envs.foreign.adapters.textarena:TextArenaAdapter",
}

_BASES = {
    ("aviary.env", "Environment"): "aviary",
    ("gem.core", "Env"): "gem",
    ("gymnasium.core", "Env"): "gymnasium",
    ("openenv.core.env_client", "EnvClient"): "openenv",
    ("openenv.core.env_server.interfaces", "Environment"): "openenv",
    ("openenv.core.sync_client", "SyncEnvClient"): "openenv",
    ("skyrl_gym.core", "Env"): "skyrl_gym",
    ("tau2.gym.gym_agent", "AgentGymEnv"): "tau2",
    ("tau2.gym.gym_agent", "UserGymEnv"): "tau2",
    ("textarena.core", "Env"): "textarena",
}
"""The project of each base class, by the class's module and name."""

_REFUSED = {
    ("gymnasium.vector.vector_env", "VectorEnv"): "a vector of envs; the runner plays many by itself: wrap one",
    ("gem.vector.vector_env", "VectorEnv"): "a vector of envs; the runner plays many by itself: wrap one",
    ("gem.multiagent.multi_agent_env", "MultiAgentEnv"): "an env of several agents; only one policy is supported",
    ("aviary.env", "TaskDataset"): (
        "a dataset of envs: give wrap a function that takes the task, such as "
        "`lambda task: dataset.get_new_env_by_idx(int(task.id))`, with tasks=seed_tasks(range(len(dataset)))"
    ),
    ("toolgym.envs.base", "BaseEnv"): "toolgym's own already: use it as it is",
    ("toolgym.envs.gym.gymnasium_env", "GymnasiumEnv"): "toolgym's own: toolgym.make gives the async env of its id",
}


def project_of(env: object) -> str | None:
    """Return the project that an object is an env of, by its import name; None if it is of none that is known."""
    project = None
    for cls in _classes(env):
        key = (cls.__module__, cls.__name__)
        if key in _REFUSED:
            raise ConfigError(f"{type(env).__name__} is {_REFUSED[key]}")
        project = project or _BASES.get(key)
    return project


def adapter_for(env: object, project: str | None = None) -> type[Adapter]:
    """Return the adapter for an object, of its classes' project unless `project` names another."""
    own_project = project_of(env)
    name = own_project if project is None else project
    if name is None:
        raise ConfigError(
            f"expected an env of {', '.join(PROJECTS)}, or a function that makes one, got {env!r}; an env of another "
            "class that keeps the contract of one of them can be wrapped with project="
        )
    adapter: Any = load(PROJECTS[checked_project(name)], f"the adapter of {name}")
    return cast(type[Adapter], adapter)


def checked_project(name: str) -> str:
    if name not in PROJECTS:
        raise UnknownNameError(
            f"there is no project {name!r}{nearest(str(name), PROJECTS)}; known: {', '.join(PROJECTS)}"
        )
    return name


def _classes(env: object) -> list[type[Any]]:
    """The classes of an object: of the env inside of wrappers first, as a Gymnasium env may be another project's."""
    inside = env
    if any((cls.__module__, cls.__name__) == ("gymnasium.core", "Env") for cls in type(env).__mro__):
        inside = getattr(env, "unwrapped", env)
    return [*type(inside).__mro__, *type(env).__mro__]
