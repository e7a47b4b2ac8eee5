"""Tasks of envs that have none of their own: each is a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from toolgym.envs.foreign.base import Start
from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, require_whole_number
from toolgym.tools.message import user

SEED = "seed"
"""The key of a task's `extra_info` with the seed of the episode."""

RESET = "reset"
"""The key of a task's `extra_info` with further arguments for the `reset` of a foreign env."""

_ENV_BEGINS = "env_begins"


class SeedTasks(TaskSource):
    """Tasks that are seeds: the episodes of a group begin in the same state, and another task in another."""

    def sample(self, rng: random.Random) -> Task:
        return seed_task(rng.getrandbits(31))


def seed_tasks(seeds: Iterable[int]) -> list[Task]:
    """Return one task for each seed, to roll out a foreign env from these and no others.

    A task's id is its seed as text, so that a function that makes envs may also take it for a row's number.

    Example:
        >>> [task.id for task in seed_tasks(range(3))]
        ['0', '1', '2']

    Raises:
        ConfigError: a seed is no whole number of at least 0.
    """
    return [seed_task(seed) for seed in seeds]


def seed_task(seed: int) -> Task:
    """Return the task of a seed. Its message stands for the env's own, which begins the conversation."""
    require_whole_number("a seed", seed, at_least=0)
    row = {
        "prompt": [dict(user("(the env begins)"))],
        "extra_info": {"index": seed, SEED: seed, _ENV_BEGINS: True},
    }
    return Task.from_row(row)


def start_of(task: Task, seed: int | None, rng: random.Random, options: Mapping[str, Any]) -> Start:
    """Return an episode's beginning as its task says it: with the task's seed, so that the episodes of a group begin
    alike, or else the given one, or one that is drawn now; and with `options` above those of the task."""
    wanted = _seed_of(task)
    wanted = seed if wanted is None else wanted
    messages = () if task.extra_info.get(_ENV_BEGINS) else task.messages
    chosen = rng.getrandbits(31) if wanted is None else wanted
    return Start(messages, chosen % 2**32, {**_reset_arguments(task), **options})


def _reset_arguments(task: Task) -> Mapping[str, Any]:
    value = task.extra_info.get(RESET)
    if not isinstance(value, Mapping | None):
        raise ConfigError(f"extra_info[{RESET!r}] of task {task.id!r} must map names to arguments, got {value!r}")
    # Arrow fills keys that a row does not use with None when it unites rows.
    return {name: argument for name, argument in (value or {}).items() if argument is not None}


def _seed_of(task: Task) -> int | None:
    """Return the seed that a task asks for; None: none."""
    seed = task.extra_info.get(SEED)
    if seed is None:
        return None
    require_whole_number(f"extra_info[{SEED!r}] of task {task.id!r}", seed, at_least=0)
    return int(seed)
