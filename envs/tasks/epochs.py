"""`TaskEpochs`: tasks one after the other, epoch after epoch, from a position that can be saved."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.envs.tasks.sources import CountedTasks, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.tools.errors import ConfigError, require_seed, require_whole_number, shorten


class TaskEpochs(TaskSource):
    """A source that knows how far it is (`position`), for training that stops and goes on with steps of any size.

    `take` goes on where the last one ended, whatever seed and training step it is given. `sample` and `task` draw from
    the source and move nothing. A seed shuffles the tasks, in each epoch anew; None keeps their order.

    Example:
        >>> from toolgym.envs import ArithmeticTasks, TaskList
        >>> tasks = TaskList(ArithmeticTasks().take(5, seed=0))
        >>> epochs, again = TaskEpochs(tasks, seed=0), TaskEpochs(tasks, seed=0)
        >>> first = epochs.take(3)
        >>> again.load_state_dict(epochs.state_dict())
        >>> again.take(2) == epochs.take(2), epochs.epoch
        (True, 1)
    """

    def __init__(self, source: CountedTasks, *, seed: int | None = None) -> None:
        if not isinstance(source, CountedTasks):
            raise ConfigError(f"epochs need a source whose tasks have places, got {shorten(repr(source))}")
        require_seed(seed)
        self._source = source
        self._seed = seed
        self.position = 0

    @property
    def epoch(self) -> int:
        """The epoch that the next task belongs to, counted from 0."""
        return self.position // self._source.size

    @property
    def size(self) -> int:
        return self._source.size

    def sample(self, rng: random.Random) -> Task:
        return self._source.sample(rng)

    def task(self, index: int) -> Task:
        return self._source.task(index)

    def take(self, count: int, *, seed: int | None = None, training_step: int = 0) -> list[Task]:
        require_whole_number("count", count, at_least=0)
        places = self._source.places(self.position, count, seed=self._seed)
        tasks = [self._source.task(place) for place in places]
        self.position += count
        return tasks

    def observe(self, task: Task, rewards: Sequence[float]) -> None:
        self._source.observe(task, rewards)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON values, for a checkpoint."""
        return {"position": self.position, "seed": self._seed, "size": self._source.size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `state_dict`; one of another seed or number of tasks is a `ConfigError`."""
        present = self.state_dict()
        if not isinstance(state, Mapping) or state.keys() != present.keys():
            raise ConfigError(f"expected a state with {', '.join(present)}, got {shorten(repr(state))}")
        for name in ("seed", "size"):
            if state[name] != present[name]:
                raise ConfigError(
                    f"the saved position belongs to {name} {state[name]!r}, and here it is {present[name]!r}"
                )
        require_whole_number("position", state["position"], at_least=0)
        self.position = state["position"]
