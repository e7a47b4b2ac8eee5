"""Sources of tasks: generated without end, made by a function, or at places of a list."""

from __future__ import annotations

import functools
import itertools
import random
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, require_seed, require_whole_number, shorten

_MOST_SEEDS = 64
"""Seeds whose steps a source remembers: runs without a seed draw one each."""


class TaskSource(ABC):
    """A source that an env draws its tasks from."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Task:
        """Draw one task; the same state of `rng` gives the same task."""

    @property
    def size(self) -> int | None:
        """The number of tasks; None if they are generated without end."""
        return None

    def task(self, index: int) -> Task:
        """Return the task of a place, counted from 0, always the same one; `IndexError` if there are fewer."""
        if index < 0:
            raise IndexError(index)
        return self.sample(random.Random(f"task {index}"))

    def splits(self) -> Mapping[str, TaskSource]:
        """Return the sources of all splits by name; a source that knows of no others is `train`."""
        return {"train": self}

    def take(self, count: int, *, seed: int | None = None, training_step: int = 0) -> list[Task]:
        """Draw a number of tasks: the same for the same seed and training step; by chance for the seed None."""
        require_whole_number("count", count, at_least=0)
        rng = random.Random(f"{seed}, step {training_step}" if seed is not None and training_step else seed)
        return [self.sample(rng) for _ in range(count)]

    def stream(self, count: int, *, seed: int | None = None, first_step: int = 0) -> Iterator[Task]:
        """Draw without end, `count` tasks for each training step from `first_step` on, as `take` would; those of a step
        when the first of them is wanted, so with what was observed until then."""
        require_whole_number("count", count, at_least=1)
        for step in itertools.count(first_step):
            yield from self.take(count, seed=seed, training_step=step)

    def observe(self, task: Task, rewards: Sequence[float]) -> None:
        """Learn how a task that was drawn here went; a curriculum draws the next ones by it.

        `rollout` calls this for each group of a run that trains, in the order of the tasks, with the rewards of its
        samples in order. Episodes that the infrastructure broke off are left out, as is a group of only these.
        """

    def metrics(self) -> dict[str, float]:
        """Return figures for a trainer's logger; none from a source that has none."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the source must know to go on after a stop, as JSON values; empty if that is nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        if state:
            raise ConfigError(f"{type(self).__name__} has no state to go on from, got {shorten(repr(state))}")


class CountedTasks(TaskSource):
    """A source with a number of tasks, each at its place. A subclass has `size` and `task`.

    `sample` draws one at random. `take` goes through all and around (an epoch), and at each training step goes on where
    the step before ended. A seed shuffles, in each epoch anew; None keeps the order. Of steps that this object has not
    taken it assumes that each had as many tasks; `TaskEpochs` has a position to save.
    """

    _step_ends: dict[int | None, dict[int, int]] | None = None  # by seed: where the steps that were taken ended

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of tasks, 1 or more."""

    @abstractmethod
    def task(self, index: int) -> Task: ...

    def sample(self, rng: random.Random) -> Task:
        return self.task(rng.randrange(self.size))

    def take(self, count: int, *, seed: int | None = None, training_step: int = 0) -> list[Task]:
        require_whole_number("count", count, at_least=0)
        start = self.start_of(count, seed=seed, training_step=training_step)
        self._ends_of(seed)[training_step] = start + count
        return [self.task(place) for place in self.places(start, count, seed=seed)]

    def start_of(self, count: int, *, seed: int | None, training_step: int) -> int:
        """Return where `take` begins, counted over all epochs."""
        ends = self._ends_of(seed)
        before = max(step for step in ends if step < training_step)
        return ends[before] + (training_step - 1 - before) * count

    def _ends_of(self, seed: int | None) -> dict[int, int]:
        """Return where the steps of a seed ended, by step."""
        if self._step_ends is None:
            self._step_ends = {}
        ends = self._step_ends.setdefault(seed, {-1: 0})
        if len(self._step_ends) > _MOST_SEEDS:
            del self._step_ends[next(iter(self._step_ends))]
        return ends

    def places(self, start: int, count: int, *, seed: int | None) -> Iterator[int]:
        """Yield the places of `count` tasks from the `start`-th on, counted over all epochs."""
        size = self.size
        for at in range(start, start + count):
            yield at % size if seed is None else _order(size, seed, at // size)[at % size]

    def __iter__(self) -> Iterator[Task]:
        return map(self.task, range(self.size))

    def __len__(self) -> int:
        return self.size


@functools.lru_cache(maxsize=2)  # an epoch that ends and the next: 4 bytes for each task
def _order(size: int, seed: int, epoch: int) -> Sequence[int]:
    order = array("I", range(size))
    random.Random(f"{seed}, lap {epoch}").shuffle(order)
    return order


MakeTask = Callable[[random.Random], Task | Mapping[str, Any]]


class GeneratedTasks(TaskSource):
    def __init__(self, make: MakeTask) -> None:
        if not callable(make):
            raise ConfigError(f"expected a function from a random.Random to a task, got {shorten(repr(make))}")
        self._make = make
        self._name = getattr(make, "__name__", repr(make))

    def sample(self, rng: random.Random) -> Task:
        task = self._make(rng)
        if isinstance(task, Task):
            return task
        if not isinstance(task, Mapping):
            raise ConfigError(f"{self._name} must give a Task or a row in verl's shape, it gave {shorten(repr(task))}")
        try:
            return Task.from_row(task)
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
        make: from a `random.Random`, its only source of chance, to a task or to its row in verl's shape.
    """
    return GeneratedTasks(make)


class TaskList(CountedTasks):
    """Tasks from a list that is not empty; it is not copied, so do not change it."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        argument: object = tasks
        if isinstance(argument, str) or not isinstance(argument, Sequence):
            raise ConfigError(
                "tasks must be a list of toolgym Tasks or a TaskSource (`toolgym.load_tasks(FILE)` reads a file), "
                f"got {shorten(repr(argument))}"
            )
        if not tasks:
            raise ConfigError("a list of tasks must not be empty")
        # Many envs may be made from one long list: the others are checked when they are drawn.
        require_task(tasks[0])
        self.tasks = tasks

    @property
    def size(self) -> int:
        return len(self.tasks)

    def task(self, index: int) -> Task:
        if not 0 <= index < len(self.tasks):
            raise IndexError(index)
        return require_task(self.tasks[index])


def task_of_reset(seed: object, options: object) -> Task | None:
    """Return the task among the options of a `reset`, if any. Raises ConfigError: they or the seed cannot be used."""
    require_seed(seed)
    if not isinstance(options, Mapping | None):
        raise ConfigError(f"options must be a mapping such as {{'task': Task(...)}}, got {options!r}")
    task = (options or {}).get("task")
    if not isinstance(task, Task | None):
        raise ConfigError(f"options['task'] must be a toolgym Task, got {task!r}")
    return task


def require_task(task: object) -> Task:
    if not isinstance(task, Task):
        raise ConfigError(
            "a list of tasks must hold toolgym Tasks (`Task.from_row` reads a row of verl's shape), got "
            f"{shorten(repr(task))}"
        )
    return task
