"""`Scheduler`: which episode runs next, and what becomes of what came back.

A runner plays jobs and knows nothing of groups. Everything that depends on how the episodes of a run belong together
(more groups than are needed, groups that are dropped, failed episodes that are played again, jobs that an earlier run
finished) is a scheduler of its own, and needs no other runner.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from toolgym.envs.tasks.task import Task
from toolgym.rollout.episode_key import EpisodeKey
from toolgym.rollout.job import Job
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.trajectory import Trajectory
from toolgym.tools.errors import ConfigError


class Scheduler(ABC):
    """Gives a runner its jobs, and takes their trajectories. One object serves one run, in one event loop."""

    @abstractmethod
    async def next(self) -> Job | None:
        """The next job; None: there will be none any more.

        The runner calls this when an episode may start, and never twice at the same time. It may wait, for example
        until a trajectory has come back that decides.
        """

    @abstractmethod
    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        """Take the trajectory of a job, in the order that episodes finish.

        Returns:
            The trajectories that the run's consumer gets now: this one, none, or earlier ones with it.
        """

    @property
    def over(self) -> bool:
        """Whether the consumer has all that it will get. The runner then cancels the episodes that still run."""
        return False


class GroupsInOrder(Scheduler):
    """Each task `group_size` times, group after group; every trajectory goes to the consumer as it finishes.

    Args:
        tasks: the tasks; `task_index` is a task's place here.
        config: says the size of a group, and the seed.

    Attributes:
        count: how many jobs there are in all.

    Raises:
        ConfigError: `tasks` is no sequence of tasks.
    """

    def __init__(self, tasks: Sequence[Task], config: RunConfig) -> None:
        if not isinstance(tasks, Sequence):
            raise ConfigError(f"tasks must be a sequence of toolgym Tasks, got {tasks!r}")
        for number, task in enumerate(tasks):
            if not isinstance(task, Task):
                raise ConfigError(f"tasks must hold toolgym Tasks (see `Task.from_row`), got {task!r} at {number}")
        self.count = len(tasks) * config.group_size
        self._jobs = _jobs(tasks, config)

    async def next(self) -> Job | None:
        return next(self._jobs, None)

    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        return (trajectory,)


def _jobs(tasks: Sequence[Task], config: RunConfig) -> Iterator[Job]:
    run_id = uuid.uuid4().hex
    for task_index, task in enumerate(tasks):
        for sample_index in range(config.group_size):
            yield Job(task, EpisodeKey(task_index, sample_index), f"{run_id}-{task_index}", config.seed)
