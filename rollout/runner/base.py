"""The contract of a runner: tasks in, trajectories out, many episodes at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.scheduler import Scheduler
from toolgym.rollout.runner.scheduling.groups_in_order import GroupsInOrder
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.planned_groups import PlannedGroups
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError


class RunnerProtocol(Protocol):
    """Plays tasks, many episodes at once.

    One failing episode is one failed trajectory. The same seeds and the same replies of the engine give the same
    trajectories, whatever runs at the same time and wherever it runs.

    Attributes:
        config: how to run; what is changed here holds from the next call on.
    """

    config: RunConfig

    def stream(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        """Play tasks, and yield each trajectory as it finishes; with a plan, those of each group together.

        A consumer that is slow slows the run: no episode begins while `max_concurrent` trajectories wait. Closing the
        iterator early cancels the episodes that run, and waits until they have cleaned up. At the end failed episodes
        are logged: one warning for each kind of failure.

        Args:
            tasks: the tasks, in a list or anything else to iterate over, also asynchronously, and without an end if you
                like; they are drawn as episodes begin. An async generator is closed at the end. Or a scheduler, which
                decides for itself what is played.
            group_size: episodes per task; None: the config's.
            plan: which groups are wanted; None: every episode.

        Raises:
            ConfigError: `tasks` is none of these, or the plan does not fit.
            EngineError: the engine has not started, or an episode of the run was cancelled, and not by the runner.
        """
        ...

    async def stream_groups(
        self, tasks: Tasks | PlannedGroups, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> AsyncGenerator[tuple[Trajectory, ...], None]:
        """Play tasks as `stream` does, and yield whole groups: the trajectories of a group, ordered by sample, as soon
        as its last one has finished. Failed ones are among them.

        Args:
            tasks: see `stream`.
            group_size: see `stream`.
            plan: which groups are wanted; None: all.

        Raises:
            ConfigError: see `stream`; or the scheduler is another one, which need not give out groups.
            EngineError: see `stream`.
        """
        if plan is None and not isinstance(tasks, Scheduler):
            plan = GroupPlan()
        scheduler = self.schedule(tasks, group_size=group_size, plan=plan)
        if not isinstance(scheduler, PlannedGroups):
            raise ConfigError(f"stream_groups takes tasks, or a scheduler of whole groups, got {scheduler!r}")
        scheduler.sizes = sizes = deque[int]()
        group: list[Trajectory] = []
        async with aclosing(self.stream(scheduler)) as stream:
            async for trajectory in stream:
                group.append(trajectory)
                if len(group) == sizes[0]:
                    sizes.popleft()
                    yield tuple(group)
                    group = []

    async def run(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> list[Trajectory]:
        """Play tasks as `stream` does; tasks that do not end need a plan that does.

        What ends it early (an error, `CancelledError`, `KeyboardInterrupt`) has the trajectories that had finished, in
        that order, as its attribute `trajectories`. The text of an interrupt says how many.

        Returns:
            All trajectories, ordered by task and sample, each group in one piece.
        """
        done: list[Trajectory] = []
        try:
            async with aclosing(self.stream(tasks, group_size=group_size, plan=plan)) as stream:
                async for trajectory in stream:
                    done.append(trajectory)
        except BaseException as error:
            interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
            if done or interrupted:
                error.trajectories = done  # type: ignore[attr-defined]
            if interrupted and not error.args:  # a notebook shows this text
                error.args = (f"the run was interrupted; {len(done)} episodes had finished: see error.trajectories",)
            raise
        return in_order(done)

    def schedule(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> Scheduler:
        """The scheduler for one call of `stream`; a scheduler that is given is returned as it is.

        Raises:
            ConfigError: see `stream`.
        """
        if isinstance(tasks, Scheduler):
            if group_size is not None or plan is not None:
                raise ConfigError("group_size and plan go with tasks; a scheduler knows its own")
            return tasks
        config = self.config.seeded()
        if group_size is not None:
            config = replace(config, group_size=group_size)
        if not isinstance(plan, GroupPlan | None):
            raise ConfigError(f"plan must be a GroupPlan, got {plan!r}")
        return GroupsInOrder(tasks, config) if plan is None else PlannedGroups(tasks, config, plan)


def in_order(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Trajectories by task and sample, each group in one piece."""
    place = {group_id: number for number, group_id in enumerate(dict.fromkeys(one.group_id for one in trajectories))}
    return sorted(trajectories, key=lambda one: (one.task_index, place[one.group_id], one.sample_index))
