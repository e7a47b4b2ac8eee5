"""The contract of a runner: tasks in, trajectories out, many episodes at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from toolgym.envs.tasks.task import Task
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.scheduler import Scheduler
from toolgym.rollout.trajectory import Trajectory


class RunnerProtocol(Protocol):
    """Plays tasks, many episodes at once.

    One failing episode is one failed trajectory. The same seeds and the same replies of the engine give the same
    trajectories, whatever runs at the same time and wherever it runs.

    Attributes:
        config: how to run.
    """

    config: RunConfig

    def stream(self, tasks: Sequence[Task] | Scheduler) -> AsyncGenerator[Trajectory, None]:
        """Play tasks, and yield each trajectory as it finishes.

        Closing the iterator early cancels the episodes that run, and waits until they have cleaned up. At the end
        failed episodes are logged: one warning for each kind of failure.

        Args:
            tasks: the tasks, each of which is played `group_size` times; or a scheduler, which decides for itself.

        Raises:
            ConfigError: `tasks` is neither.
            EngineError: the engine has not started, or an episode of the run was cancelled, and not by the runner.
        """
        ...

    async def run(self, tasks: Sequence[Task] | Scheduler) -> list[Trajectory]:
        """Play tasks as `stream` does.

        What ends it early (an error, `CancelledError`, `KeyboardInterrupt`) has the trajectories that had finished, in
        that order, as its attribute `trajectories`.

        Returns:
            All trajectories, ordered by task and sample.
        """
        done: list[Trajectory] = []
        try:
            async with aclosing(self.stream(tasks)) as stream:
                async for trajectory in stream:
                    done.append(trajectory)
        except BaseException as error:
            if done:
                error.trajectories = done  # type: ignore[attr-defined]
            raise
        return sorted(done, key=lambda one: (one.task_index, one.sample_index))
