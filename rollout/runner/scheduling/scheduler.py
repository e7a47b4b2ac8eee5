"""`Scheduler`: which episode runs next, and what becomes of what came back. A runner plays jobs and knows nothing of
groups: how the episodes of a run belong together is decided by a scheduler."""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from toolgym.rollout.job import Job
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError


class Stragglers(enum.StrEnum):
    """The fate of episodes that a run does not wait for. The engine and the tools stop working for them."""

    DROP = "drop"
    KEEP = "keep"
    """They are kept as far as they got, with the stop reason `straggler`: trainable, and outside of their group's
    statistics."""
    CARRY = "carry"
    """They stand still, and the next call of the same runner goes on with them in mid-turn."""


class Cut(NamedTuple):
    """An episode to end now: `CARRY` suspends it, the others cut it."""

    job: Job
    how: Stragglers


@dataclass
class RunCounts:
    """Numbers of one run, which grow while it runs.

    Attributes:
        groups_begun: tasks that were drawn, without the groups that an earlier run carried over.
        groups_kept: whole groups that the consumer got.
        groups_filtered: whole groups that the plan's filter dropped.
        groups_cut: groups that had not ended when the run had enough: dropped, or kept as far as they got.
        groups_carried: groups that a later run goes on with.
        episodes_dropped: episodes whose trajectory no consumer gets: ended or cut, beyond what their group needed.
        episodes_cut: running episodes that were asked to end or to stand still.
        refills: episodes that the infrastructure broke off, and that were sampled again.
    """

    groups_begun: int = 0
    groups_kept: int = 0
    groups_filtered: int = 0
    groups_cut: int = 0
    groups_carried: int = 0
    episodes_dropped: int = 0
    episodes_cut: int = 0
    refills: int = 0

    def to_dict(self) -> dict[str, float]:
        return {f"run/{name}": float(value) for name, value in dataclasses.asdict(self).items()}

    def __str__(self) -> str:
        counts = {name.replace("_", " "): value for name, value in dataclasses.asdict(self).items() if value}
        return ", ".join(f"{name}: {value}" for name, value in counts.items()) or "nothing"


class Scheduler(ABC):
    """Gives a runner its jobs, and takes their trajectories. One object serves one run, in one event loop."""

    def tell_cuts(self, on_cuts: Callable[[], None]) -> None:
        """Take, before the run, what to call if `cuts` has something at a time when the runner does not ask."""

    @abstractmethod
    async def next(self) -> Job | None:
        """The next job; None: there will be none any more. The runner calls this when an episode may start, and never
        twice at the same time. It may wait, for example for a trajectory that decides."""

    @abstractmethod
    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        """Take the trajectory of a job, in the order that episodes finish. Returns the trajectories that the run's
        consumer gets now, one behind the other."""

    def finished_roles(self, job: Job, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """As `finished`, for a job that has a trajectory for each of several roles. Raises `ConfigError` if this
        scheduler takes one of a job."""
        self.require_roles()
        raise AssertionError(f"{type(self).__name__} overrides this")

    def require_roles(self) -> None:
        """Raise `ConfigError` if this scheduler takes one trajectory of a job."""
        if type(self).finished_roles is Scheduler.finished_roles:
            raise ConfigError(
                f"a {type(self).__name__} takes one trajectory of a job, and this env has several roles: play it with "
                "tasks, a GroupScheduler or a RolloutQueue, or give your scheduler a method `finished_roles`"
            )

    @property
    def counts(self) -> RunCounts:
        """Numbers of the run so far, beside what its consumer got; all 0 for a scheduler that counts nothing."""
        return RunCounts()

    @property
    def over(self) -> bool:
        """Whether the consumer has all that it will get. The runner then cancels the episodes that still run."""
        return False

    def ready(self) -> Sequence[Trajectory]:
        """The trajectories that the consumer gets before anything is played; asked once, before the first `next`."""
        return ()

    async def decide(self) -> Sequence[Trajectory]:
        """Wait for decisions that take time, such as those of a `GroupPlan.keep` in a thread; called after `ready` and
        after each `finished`. Returns the trajectories that the consumer gets now."""
        return ()

    def cuts(self) -> Sequence[Cut]:
        """The running episodes to end now, each named once; asked after each `next`, `finished`, `decide` and
        `suspended`. One that is cut comes back to `finished`; one that is suspended to `suspended`, or to `finished` if
        it could not stand still."""
        return ()

    def suspended(self, job: Job) -> None:
        """Hear that the episode of a job stands still, as a cut of this scheduler asked."""

    def carried(self) -> Sequence[Job]:
        """The jobs whose episodes stand still and shall go on. Before the run, the runner takes up these episodes of an
        earlier run, for when `next` gives their jobs; behind the run, it keeps these for a later one, and frees the
        others."""
        return ()

    def branch(self, job: Job) -> Job:
        """A job of the same task and group, with the next free `sample_index`, for a branch of that job's episode. It
        is played without `next`, and comes back to `finished`. Raises `ConfigError` if this scheduler has no branches.
        """
        raise ConfigError(f"a {type(self).__name__} cannot branch episodes: it has no method `branch`")

    async def close(self) -> None:
        """Free what it holds; called once, when the run is over, however it ends."""


def finish(scheduler: Scheduler, job: Job, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """Hand a scheduler what became of a job."""
    if len(trajectories) == 1:
        return scheduler.finished(job, trajectories[0])
    return scheduler.finished_roles(job, trajectories)
