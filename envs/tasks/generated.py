"""`from_generator`: tasks that a function makes when they are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from toolgym.envs.tasks.sources import TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, shorten

MakeTask = Callable[[random.Random], Task | Mapping[str, Any]]


class GeneratedTasks(TaskSource):
    """An endless source of tasks that a function makes.

    Args:
        make: from a source of chance to a task, or to its row in verl's shape. The same state of the source must give
            the same task.
        name: of the source, for errors.
    """

    def __init__(self, make: MakeTask, name: str) -> None:
        self._make = make
        self._name = name

    def sample(self, rng: random.Random) -> Task:
        made = self._make(rng)
        if isinstance(made, Task):
            return made
        if not isinstance(made, Mapping):
            raise ConfigError(f"{self._name} must give a Task or a row in verl's shape, it gave {shorten(repr(made))}")
        try:
            return Task.from_row(made)
        except ConfigError as error:
            raise ConfigError(f"a row that {self._name} gave: {error}") from error


def from_generator(make: MakeTask) -> GeneratedTasks:
    """Return a source whose tasks a function makes when they are drawn.

    Example:
        >>> import random
        >>> def double(rng):
        ...     n = rng.randrange(100)
        ...     return {"prompt": [{"role": "user", "content": f"2 * {n}?"}], "reward_model": {"ground_truth": 2 * n}}
        >>> tasks = from_generator(double)
        >>> tasks.task(7) == tasks.task(7), len(tasks.take(3, seed=0))
        (True, 3)

    Args:
        make: from a `random.Random` to a task, or to its row in verl's shape. It takes all chance from there, so that
            a seed gives the same tasks again.

    Raises:
        ConfigError: it is no function.
    """
    if not callable(make):
        raise ConfigError(f"expected a function from a random.Random to a task, got {shorten(repr(make))}")
    return GeneratedTasks(make, getattr(make, "__name__", repr(make)))
