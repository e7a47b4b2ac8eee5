"""Where tasks come from."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, require_whole_number, shorten


class TaskSource(ABC):
    """Where an env draws its tasks from."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Task:
        """Draw one task; the same state of `rng` gives the same task."""

    @property
    def size(self) -> int | None:
        """How many tasks there are; None where they are generated without end."""
        return None

    def task(self, index: int) -> Task:
        """Return the task of a place, counted from 0; the same place always has the same task.

        Raises:
            IndexError: there are not so many.
        """
        if index < 0:
            raise IndexError(index)
        return self.sample(random.Random(f"task {index}"))

    def splits(self) -> Mapping[str, TaskSource]:
        """Return the sources of all splits by name; a source that knows of no others is `train`."""
        return {"train": self}

    def take(self, count: int, *, seed: int | None = None, training_step: int = 0) -> list[Task]:
        """Draw `count` tasks.

        Args:
            count: how many.
            seed: the same seed and training step give the same tasks; None draws afresh.
            training_step: another step gives other tasks.
        """
        require_whole_number("count", count, at_least=0)
        rng = random.Random(f"{seed}, step {training_step}" if seed is not None and training_step else seed)
        return [self.sample(rng) for _ in range(count)]


class TaskList(TaskSource):
    """Tasks from a list.

    `sample` draws one at random. `take` goes through the list and around, and at each training step goes on where the
    step before ended. A seed shuffles the list, each time around anew; None keeps its order.

    Args:
        tasks: the tasks; not copied, so that many envs share one list. Do not change it.

    Raises:
        ConfigError: `tasks` is no sequence of tasks, or empty.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        given: object = tasks
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ConfigError(f"tasks must be a list of toolgym Tasks or a TaskSource, got {shorten(repr(given))}")
        if not tasks:
            raise ConfigError("a list of tasks must not be empty")
        # Many envs may be made from one long list: the others are checked when they are drawn.
        require_task(tasks[0])
        self.tasks = tasks

    def sample(self, rng: random.Random) -> Task:
        return rng.choice(self.tasks)

    @property
    def size(self) -> int:
        """How many tasks there are."""
        return len(self.tasks)

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self.tasks):
            raise IndexError(index)
        return require_task(self.tasks[index])

    def take(self, count: int, *, seed: int | None = None, training_step: int = 0) -> list[Task]:
        require_whole_number("count", count, at_least=0)
        length = len(self.tasks)
        start = training_step * count
        places: list[int] = []
        for lap in range(start // length, -(-(start + count) // length)):
            lap_places = list(range(length))
            if seed is not None:
                random.Random(f"{seed}, lap {lap}").shuffle(lap_places)
            places += lap_places[max(0, start - lap * length) : start + count - lap * length]
        return [self.tasks[place] for place in places]


def require_task(task: object) -> Task:
    """Return what should be a task.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(task, Task):
        raise ConfigError(
            "a list of tasks must hold toolgym Tasks (`Task.from_row` reads a row of verl's shape), got "
            f"{shorten(repr(task))}"
        )
    return task
