"""Tasks of envs that have none of their own: each is a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable

from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import require_whole_number
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


def env_begins(task: Task) -> bool:
    return bool(task.extra_info.get(_ENV_BEGINS))


def seed_of(task: Task) -> int | None:
    """Return the seed that a task asks for; None: none."""
    seed = task.extra_info.get(SEED)
    if seed is None:
        return None
    require_whole_number(f"extra_info[{SEED!r}] of task {task.id!r}", seed, at_least=0)
    return int(seed)
