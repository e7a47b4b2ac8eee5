"""The contract of a runner: tasks in, trajectories out, many episodes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.metrics.run_history import RunHistory, history_of
from toolgym.rollout.runner.scheduling.group_scheduler import GroupScheduler
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.scheduler import Scheduler
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError


@runtime_checkable
class Sink(Protocol):
    """Gets each trajectory of a run as it finishes, before the run's consumer does. It stays its maker's to close."""

    def write(self, trajectory: Trajectory) -> None:
        """Take one trajectory, on the event loop, so without blocking for long. An error ends the run: the episodes
        that run are played to their end and reach all sinks and the consumer, who then gets the error."""


class RunnerProtocol(Protocol):
    """Plays tasks, many episodes at once. One failing episode is one failed trajectory. The same seeds and the same
    replies of the engine give the same trajectories, whatever runs at the same time and wherever it runs."""

    config: RunConfig

    @property
    def history(self) -> RunHistory:
        """The earlier runs of this runner's engine, or of the runner itself if its workers have the engines."""
        engine = getattr(self, "engine", None)
        return history_of(self if engine is None else engine)

    def stream(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        """Play tasks, and yield each trajectory as it finishes; with a plan, those of each group together.

        A slow consumer slows the run: no episode begins while `max_concurrent` trajectories wait. Closing the iterator
        early cancels the episodes that run, and waits until they have cleaned up. At the end each kind of failure is
        logged.

        Args:
            tasks: the tasks, in a list or anything else to iterate over, also asynchronously and without an end; they
                are drawn as episodes begin. Or a scheduler, which decides what is played.
            group_size: episodes per task; None: the config's.
            plan: which groups are wanted; None: every episode.

        Raises:
            ConfigError: `tasks` is none of these, or the plan does not fit.
            EngineError: the engine has not started, or an episode of the run was cancelled, and not by the runner.
        """
        ...

    async def stream_groups(
        self, tasks: Tasks | GroupScheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> AsyncGenerator[tuple[Trajectory, ...], None]:
        """Play tasks as `stream` does, and yield whole groups, ordered by sample, as soon as their last trajectory has
        finished. Failed trajectories are among them. Raises `ConfigError` also for a scheduler that need not give out
        groups."""
        if plan is None and not isinstance(tasks, Scheduler):
            plan = GroupPlan()
        scheduler = self.schedule(tasks, group_size=group_size, plan=plan)
        if not isinstance(scheduler, GroupScheduler) or not scheduler.whole_groups:
            raise ConfigError(f"stream_groups takes tasks, or a scheduler of whole groups, got {scheduler!r}")
        group: list[Trajectory] = []
        async with aclosing(self.stream(scheduler)) as stream:
            async for trajectory in stream:
                group.append(trajectory)
                if len(group) == scheduler.sizes[0]:
                    scheduler.sizes.popleft()
                    yield tuple(group)
                    group = []

    async def run(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> list[Trajectory]:
        """Play tasks as `stream` does, and return all trajectories, ordered by task and sample, each group in one
        piece.

        What ends it early (an error, `CancelledError`, `KeyboardInterrupt`) has the trajectories that had finished as
        its attribute `trajectories`. The text of an interrupt says how many.
        """
        done: list[Trajectory] = []
        try:
            async with aclosing(self.stream(tasks, group_size=group_size, plan=plan)) as stream:
                async for trajectory in stream:
                    done.append(trajectory)
        except BaseException as error:
            if done:
                error.trajectories = done  # type: ignore[attr-defined]
            tell_interrupt(error)
            raise
        return in_order(done)

    def schedule(
        self, tasks: Tasks | Scheduler, *, group_size: int | None = None, plan: GroupPlan | None = None
    ) -> Scheduler:
        """Return the scheduler for one call of `stream`; a scheduler is returned as it is."""
        if isinstance(tasks, Scheduler):
            if group_size is not None or plan is not None:
                raise ConfigError("group_size and plan go with tasks; a scheduler knows its own")
            return tasks
        config = self.config.seeded()
        if group_size is not None:
            config = replace(config, group_size=group_size)
        return GroupScheduler(tasks, config, plan)


def tell_interrupt(error: BaseException | None, out: object = None) -> None:
    """Let an interrupt say how many episodes had finished, and where they are: a notebook shows that."""
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        count = len(error.__dict__.setdefault("trajectories", []))
        kept = "see error.trajectories (in a notebook: sys.last_value.trajectories)"
        error.args = error.args or (f"the run was interrupted; {count} episodes had finished: {kept}",)
        if isinstance(out, str | Path):
            error.args = (f"{error}, and the file {str(out)!r}, which resume=True goes on with",)


def in_order(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    groups = {group_id: number for number, group_id in enumerate(dict.fromkeys(each.group_id for each in trajectories))}
    return sorted(trajectories, key=lambda each: (each.task_index, groups[each.group_id], each.sample_index))


def checked_sinks(sinks: Sequence[Sink]) -> tuple[Sink, ...]:
    if not isinstance(sinks, Sequence):
        raise ConfigError(f"sinks must be a list of sinks, got {sinks!r}")
    for sink in sinks:
        if not isinstance(sink, Sink):
            raise ConfigError(f"a sink must have a method `write(trajectory)`, got {sink!r}")
    return tuple(sinks)


class Delivery:
    """Gives the trajectories of one run to the sinks and to the runner's history, before the consumer gets them.

    Args:
        runner: the runner of the run.
        sinks: get each trajectory. An error of a sink goes to `on_error`, and the other sinks get the trajectory.
        on_error: breaks the run off.
        weight_version: of the engine when the run begins. None if it is not known.
    """

    def __init__(
        self,
        runner: RunnerProtocol,
        sinks: Sequence[Sink],
        on_error: Callable[[Exception], None],
        weight_version: str | None = None,
    ) -> None:
        self._sinks, self._on_error = sinks, on_error
        self._history = None if runner.config.validate else runner.history
        if self._history is not None:
            self._history.began(runner.config, weight_version)

    def add(self, trajectory: Trajectory) -> None:
        for sink in self._sinks:
            try:
                sink.write(trajectory)
            except Exception as error:  # noqa: BLE001  the run raises it when the episodes that run have finished
                self._on_error(error)
        if self._history is not None:
            self._history.add(trajectory)

    def end(self) -> None:
        """Note that the run has given out all of its trajectories: a training step ends."""
        if self._history is not None:
            self._history.end_step()
