from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import Blame
from toolgym.rollout.job import Job
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.metrics.run_counts import RunCounts
from toolgym.rollout.runner.scheduling.open_group import OpenGroup
from toolgym.rollout.runner.scheduling.tasks import TaskFeed, Tasks
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import EpisodeError


class GroupTracker:
    """Makes jobs of tasks, group after group, and keeps what became of them until a group is closed.

    A member that the infrastructure lost is played again before anything else, `RunConfig.refills` times.

    Args:
        tasks: see `TaskFeed`.
        config: of the run, with its seed.
        members: how many episodes begin for a task.
        run_id: what the ids of the groups begin with, of a run that is resumed; None: a new one.

    Raises:
        ConfigError: see `TaskFeed`.
    """

    def __init__(self, tasks: Tasks, config: RunConfig, members: int, run_id: str | None = None) -> None:
        self.feed = TaskFeed(tasks)
        self.groups: dict[str, OpenGroup] = {}
        self.counts = RunCounts()
        self.out = 0
        self._config, self._members = config, members
        self._run_id = run_id or uuid.uuid4().hex
        self._lost: deque[Job] = deque()
        self._beginning: deque[OpenGroup] = deque()
        self._news = asyncio.Event()
        self._stopped = False

    def go_on_with(self, group: OpenGroup) -> None:
        """Take over a group that an earlier run left."""
        self.groups[group.id] = group
        self._beginning.append(group)

    async def next(self, more: Callable[[], bool], waits: Callable[[], bool]) -> Job | None:
        """The next job; None: there will be none any more.

        Args:
            more: whether another task may be drawn now.
            waits: whether there may be another job later, if there is none now.
        """
        while not self._stopped:
            job = self._next_begun()
            if job is not None:
                self.out += 1
                return job
            if not self.feed.over and more():
                self._open_group(await self.feed.next(self._news))
            elif waits():
                await self._news.wait()
            else:
                return None
            self._news.clear()
        return None

    def take_drawn(self) -> None:
        """Open a group also for a task that was drawn when the run had no use for it any more."""
        self._open_group(self.feed.take_drawn())

    def _open_group(self, task: Task | None) -> None:
        if task is not None:
            number = self.counts.groups_begun
            group = OpenGroup(task, number, f"{self._run_id}-{number}", self._config.seed, self._members)
            self.groups[group.id] = group
            self._beginning.append(group)
            self.counts.groups_begun += 1

    def _next_begun(self) -> Job | None:
        if self._lost:
            return self._lost.popleft()
        while self._beginning:
            job = self._beginning[0].begin()
            if job is not None:
                return job
            self._beginning.popleft()
        return None

    def back(self, job: Job, trajectory: Trajectory) -> OpenGroup | None:
        """Take what became of a job. Returns its group, unless that was closed, or the member is played again."""
        self.out -= 1
        self._news.set()
        group = self.groups.get(job.group_id)
        if group is None:
            return None
        if not (group.late or group.closing) and self._is_lost(job, trajectory):
            self.counts.refills += 1
            again = group.again(job)
            if not self._stopped:
                self._lost.append(again)
                return None
            group.stand_still(again)
            return group
        group.end(job, trajectory)
        return group

    def _is_lost(self, job: Job, trajectory: Trajectory) -> bool:
        """Whether the infrastructure broke it off, and it may be played again. A branch has no beginning to play."""
        reason = trajectory.stop_reason
        lost = reason.failed and reason.blame not in (Blame.USER, Blame.POLICY)
        return lost and job.attempt < self._config.refills and trajectory.parent is None

    def suspended(self, job: Job) -> OpenGroup | None:
        self.out -= 1
        self._news.set()
        group = self.groups.get(job.group_id)
        if group is not None:
            group.stand_still(job)
        return group

    def branch(self, job: Job) -> Job:
        group = self.groups.get(job.group_id)
        if group is None:
            raise EpisodeError(f"the episode of {job.key} cannot branch: its run does not wait for its group any more")
        self.out += 1
        return group.branch()

    def close_group(self, group: OpenGroup) -> None:
        """Begin no further member of a group, and forget it: what comes back of it is not taken any more."""
        group.begin_no_more()
        self._lost = deque(job for job in self._lost if job.group_id != group.id)
        del self.groups[group.id]
        self._news.set()

    def stop(self) -> None:
        self._stopped = True
        for job in self._lost:
            self.groups[job.group_id].stand_still(job)
        self._lost.clear()
        self._news.set()

    @property
    def stopped(self) -> bool:
        return self._stopped

    async def close(self) -> None:
        self._stopped = True
        await self.feed.close()
