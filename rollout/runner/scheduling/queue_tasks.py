"""`QueueTasks`: the tasks of a `RolloutQueue` in their order, and what became of each of them."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from toolgym.envs.tasks.sources import CountedTasks, TaskSource
from toolgym.envs.tasks.task import Task
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.scheduling.tasks import TaskFeed, Tasks
from toolgym.rollout.seeds import stream_seed
from toolgym.tools.errors import ConfigError, require_whole_number, shorten


class QueueTasks:
    """Draws tasks one by one, numbers them from 0, and remembers which numbers are settled.

    A number is settled once the trainer has its group, once the plan has refused the group, or once the task is skipped
    because the group was too stale. After `load_state_dict`, tasks whose numbers are not settled are drawn first, then
    the tasks after them.

    Args:
        tasks: tasks, or a source, from which tasks are drawn as `rollout` draws them, `batch_size` for each step.
        batch_size: tasks of a training step.
        config: has the seed, and the training step of the first batch.
        num_tasks: how many tasks to draw in all. If None, all tasks, and without end from a source.

    Attributes:
        observed: numbers of tasks whose rewards the source has, and whose groups are not settled.
        skipped: ids of the tasks that were skipped, by their numbers.
    """

    def __init__(
        self, tasks: Tasks | TaskSource, *, batch_size: int, config: RunConfig, num_tasks: int | None = None
    ) -> None:
        if num_tasks is not None:
            require_whole_number("num_tasks", num_tasks, at_least=1)
        self._num_tasks = num_tasks
        self._drawing = _drawing_of(tasks, batch_size, config)
        self._settled = 0  # all numbers below are settled
        self._ahead: set[int] = set()  # numbers above that are settled, too
        self.observed: set[int] = set()
        self.skipped: dict[int, str] = {}
        self._seed = config.seed

    @property
    def seed(self) -> int | None:
        return self._seed

    def is_settled(self, number: int) -> bool:
        return number < self._settled or number in self._ahead

    def settle(self, number: int) -> None:
        self._ahead.add(number)
        self.observed.discard(number)
        while self._settled in self._ahead:
            self._ahead.remove(self._settled)
            self._settled += 1

    def skip(self, number: int, task_id: str) -> None:
        """Settle a number whose group was too stale: the trainer never gets the task."""
        self.skipped[number] = task_id
        self.settle(number)

    async def __aiter__(self) -> AsyncIterator[tuple[int, Task]]:
        """Yield each task that is not settled, with its number; each is drawn when it is asked for."""
        number = self._settled
        if number:
            await self._drawing.task(number - 1, skip=True)
        while self._num_tasks is None or number < self._num_tasks:
            is_settled = self.is_settled(number)
            task = await self._drawing.task(number, skip=is_settled)
            if task is None and not is_settled:
                return
            if task is not None:
                yield number, task
            number += 1

    async def close(self) -> None:
        await self._drawing.close()

    def state_dict(self) -> dict[str, Any]:
        self._drawing.forget_below(self._settled)
        return {
            "seed": self._seed,
            "settled": self._settled,
            "ahead": sorted(self._ahead),
            "observed": sorted(self.observed),
            "skipped": sorted([number, id] for number, id in self.skipped.items()),
            "tasks": self._drawing.state_dict(self._settled, self._ahead),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        names = self.state_dict().keys()
        if not isinstance(state, Mapping) or state.keys() != names:
            raise ConfigError(f"expected a state of RolloutQueue with {', '.join(names)}, got {shorten(repr(state))}")
        self._drawing.load_state_dict(state["tasks"])
        self._seed, self._settled = state["seed"], state["settled"]
        self._ahead, self.observed = set(state["ahead"]), set(state["observed"])
        self.skipped = dict(state["skipped"])


class _Drawing(ABC):
    """Draws the tasks of a queue in the order of their numbers."""

    kind: str

    @abstractmethod
    async def task(self, number: int, *, skip: bool) -> Task | None:
        """Return the task of a number. None at the end of all tasks, and for a number to `skip`."""

    def forget_below(self, number: int) -> None:
        """Free what is kept of tasks below a number: they are not drawn again."""

    @abstractmethod
    def state_dict(self, settled: int, ahead: set[int]) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    async def close(self) -> None:
        """Free what the drawing holds."""

    def _require_same(self, state: Any, **present: Any) -> None:
        """Check a state against what may not change. Raises `ConfigError`."""
        if not isinstance(state, Mapping) or state.get("kind") != self.kind:
            kind = state.get("kind") if isinstance(state, Mapping) else state
            raise ConfigError(f"the saved state is of {kind!r}, and the tasks of this queue are {self.kind!r}")
        for name, value in present.items():
            if state.get(name) != value:
                raise ConfigError(f"the saved state has {name} {state.get(name)!r}, and this queue has {value!r}")


class _Places(_Drawing):
    """Draws from a source whose tasks have places, epoch after epoch; see `CountedTasks.take`."""

    kind = "a source with places"

    def __init__(self, source: CountedTasks, batch_size: int, seed: int | None, step: int) -> None:
        self._source, self._seed = source, seed
        self._start = source.start_of(batch_size, seed=seed, training_step=step)

    async def task(self, number: int, *, skip: bool) -> Task | None:
        if skip:
            return None
        [place] = self._source.places(self._start + number, 1, seed=self._seed)
        return self._source.task(place)

    def state_dict(self, settled: int, ahead: set[int]) -> dict[str, Any]:
        state = {"start": self._start, "seed": self._seed, "size": self._source.size}
        return {"kind": self.kind, **state, "source": self._source.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._require_same(state, size=self._source.size)
        self._start, self._seed = state["start"], state["seed"]
        self._source.load_state_dict(state["source"])


class _Steps(_Drawing):
    """Draws from any source, `batch_size` tasks for each training step. The state holds the tasks that were drawn and
    are not settled, since what the source observes may change what it draws."""

    kind = "a source without places"

    def __init__(self, source: TaskSource, batch_size: int, seed: int | None, step: int) -> None:
        self._source, self._batch_size, self._seed, self._step = source, batch_size, seed, step
        self._drawn: dict[int, Task] = {}  # by number, those that are not settled
        self._count = 0

    async def task(self, number: int, *, skip: bool) -> Task | None:
        while number >= self._count:
            for task in self._source.take(self._batch_size, seed=self._seed, training_step=self._step):
                self._drawn[self._count] = task
                self._count += 1
            self._step += 1
        return None if skip else self._drawn[number]

    def forget_below(self, number: int) -> None:
        for known in [known for known in self._drawn if known < number]:
            del self._drawn[known]

    def state_dict(self, settled: int, ahead: set[int]) -> dict[str, Any]:
        pending = {number: task for number, task in self._drawn.items() if number >= settled and number not in ahead}
        return {
            "kind": self.kind,
            "batch_size": self._batch_size,
            "seed": self._seed,
            "step": self._step,
            "count": self._count,
            "pending": [[number, *_written(task)] for number, task in pending.items()],
            "source": self._source.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._require_same(state, batch_size=self._batch_size)
        self._seed, self._step, self._count = state["seed"], state["step"], state["count"]
        self._drawn = {number: Task.from_row(row, id=id, folder=folder) for number, row, id, folder in state["pending"]}
        self._source.load_state_dict(state["source"])


class _Items(_Drawing):
    """Draws from tasks to iterate over. A later queue gets the same tasks, and skips what is settled."""

    kind = "tasks to iterate over"

    def __init__(self, tasks: Tasks) -> None:
        self._feed = TaskFeed(tasks)
        self._next = 0
        self._nothing_else = asyncio.Event()

    async def task(self, number: int, *, skip: bool) -> Task | None:
        task: Task | None = None
        while self._next <= number:
            task = await self._feed.next(self._nothing_else)
            if task is None:
                return None
            self._next += 1
        return None if skip else task

    def state_dict(self, settled: int, ahead: set[int]) -> dict[str, Any]:
        return {"kind": self.kind, "size": self._feed.size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._require_same(state, size=self._feed.size)

    async def close(self) -> None:
        await self._feed.close()


def _drawing_of(tasks: Tasks | TaskSource, batch_size: int, config: RunConfig) -> _Drawing:
    if not isinstance(tasks, TaskSource):
        return _Items(tasks)
    seed = stream_seed(config.seed, validate=config.validate)
    step = 0 if config.validate else config.training_step
    if isinstance(tasks, CountedTasks):
        return _Places(tasks, batch_size, seed, step)
    return _Steps(tasks, batch_size, seed, step)


def _written(task: Task) -> tuple[dict[str, Any], str, str]:
    """Return a task's row as JSON values, its id and its folder. Raises `ConfigError` if the row is not JSON."""
    row = task.to_json_row()
    try:
        json.dumps(row)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"task {task.id!r} cannot be saved in the state of the queue: {error}. Tasks of this source must be JSON "
            "values, or come from a source with places, such as a TaskList"
        ) from error
    return row, task.id, task.folder
