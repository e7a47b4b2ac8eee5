"""`GroupsInOrder`: each task as often as its group is large, and every trajectory at once."""

from __future__ import annotations

from collections.abc import Sequence

from toolgym.rollout.job import Job
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.metrics.run_counts import RunCounts
from toolgym.rollout.runner.scheduler import Scheduler
from toolgym.rollout.runner.scheduling.book import GroupBook
from toolgym.rollout.runner.scheduling.rewards import GroupRewards, Observe
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.trajectory.trajectory import Trajectory


class GroupsInOrder(Scheduler):
    """Each task `group_size` times, group after group; every trajectory goes to the consumer as it finishes.

    A member that the infrastructure lost is played again, `RunConfig.refills` times, before a further one begins; the
    consumer gets the last attempt.

    Args:
        tasks: the tasks, in anything to iterate over, with or without an end; `task_index` is a task's place in it.
        config: says the size of a group, the seed, and how often a lost member is played again.
        observe: gets each task with its group's rewards, as `TaskSource.observe` takes them, in the order of the tasks;
            what a task waits for is its own group and those of the tasks before it. None: nothing does.
        run_id: see `GroupBook`.

    Attributes:
        count: how many trajectories there will be in all, without branches; None where that is not known.

    Raises:
        ConfigError: `tasks` is nothing to iterate over, or a list of something else than tasks.
    """

    def __init__(
        self, tasks: Tasks, config: RunConfig, observe: Observe | None = None, *, run_id: str | None = None
    ) -> None:
        self._book = GroupBook(tasks, config, config.group_size, run_id)
        self._rewards = GroupRewards(observe)
        self._refills = config.refills > 0
        self.count = None if self._book.feed.size is None else self._book.feed.size * config.group_size

    @property
    def counts(self) -> RunCounts:
        return self._book.counts

    async def next(self) -> Job | None:
        return await self._book.next(more=lambda: True, waits=lambda: self._refills and self._book.out > 0)

    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        group = self._book.back(job, trajectory)
        if group is None:
            return ()
        if group.whole:
            self._book.close_group(group)
            self._rewards.add(group.task_index, group.task, group.all_ended())
            self.counts.groups_kept += 1
        return (trajectory,)

    def branch(self, job: Job) -> Job:
        return self._book.branch(job)

    async def close(self) -> None:
        await self._book.close()
