"""`PlannedGroups`: whole groups, by a `GroupPlan`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from toolgym.rollout.job import Job
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.metrics.run_counts import RunCounts
from toolgym.rollout.runner.scheduler import Cut, Scheduler, Stragglers
from toolgym.rollout.runner.scheduling.book import GroupBook
from toolgym.rollout.runner.scheduling.group import Group
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.rewards import GroupRewards, Observe
from toolgym.rollout.runner.scheduling.tasks import Tasks
from toolgym.rollout.trajectory.trajectory import Peer, Trajectory

_log = logging.getLogger("toolgym.rollout")


class PlannedGroups(Scheduler):
    """Whole groups, each at once and ordered by sample, as a `GroupPlan` wants them.

    Args:
        tasks: the tasks, in anything to iterate over, with or without an end.
        config: says the size of a group, the seed, and how often a lost member is played again.
        plan: which groups are wanted; None: all.
        observe: gets each task with its group's rewards, see `GroupsInOrder`; also of groups that the plan drops.
        run_id: see `GroupBook`.

    Attributes:
        count: how many trajectories there will be in all, if the tasks suffice; None where that is not known.
        sizes: None; or a deque, which then gets the number of trajectories of each group that is given out.

    Raises:
        ConfigError: see `GroupsInOrder`, or the plan does not fit the run.
    """

    def __init__(
        self,
        tasks: Tasks,
        config: RunConfig,
        plan: GroupPlan | None = None,
        observe: Observe | None = None,
        *,
        run_id: str | None = None,
    ) -> None:
        plan = plan or GroupPlan()
        self._plan, self._how = plan, Stragglers(plan.stragglers)
        self._group_size = config.group_size
        self._book = GroupBook(tasks, config, config.group_size + plan.spare_members, run_id)
        self._rewards = GroupRewards(observe)
        self._earlier: set[str] = set()
        self._cuts: list[Cut] = []
        self._kept = self._decided = 0
        self._enough = False
        self.sizes: deque[int] | None = None
        plan.check(config.group_size, self._book.feed.size)
        groups = plan.groups if plan.keep is not None else plan.groups or self._book.feed.size
        self.count = None if groups is None else groups * config.group_size

    @property
    def counts(self) -> RunCounts:
        return self._book.counts

    def go_on_with(self, carried: Iterable[Group]) -> None:
        """Go on with the `carried_groups` of an earlier run, before any other. Call it before the run."""
        for group in carried:
            self._earlier.add(group.id)
            self._book.go_on_with(group)

    # ------------------------------------------------------------------ what is played

    async def next(self) -> Job | None:
        job = await self._book.next(self._more, self._waits)
        if job is None and not self._enough:
            self._end()
        return job

    def _more(self) -> bool:
        """Whether another group may begin."""
        if self._plan.max_groups is not None and self.counts.groups_begun >= self._plan.max_groups:
            return False
        wanted = self._plan.groups
        return wanted is None or self._kept + self._undecided < wanted + self._plan.spare_groups

    def _waits(self) -> bool:
        """Whether there is a group that may yet lose a member, or have another one take its place. Members that an
        earlier run carried over are waited for, too: they would be carried for ever."""
        groups = self._book.groups.values()
        return any(group.id in self._earlier or not (group.late or group.closing) for group in groups)

    @property
    def _undecided(self) -> int:
        return sum(not group.late and not group.closing for group in self._book.groups.values())

    def branch(self, job: Job) -> Job:
        return self._book.branch(job)

    # ------------------------------------------------------------------ what comes back

    def ready(self) -> Sequence[Trajectory]:
        return self._given([one for group in list(self._book.groups.values()) for one in self._settled(group)])

    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        group = self._book.back(job, trajectory)
        return () if group is None else self._given(self._settled(group))

    def _given(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        if self.sizes is not None:
            self.sizes += [len(list(group)) for _, group in groupby(trajectories, lambda one: one.group_id)]
        return trajectories

    def suspended(self, job: Job) -> None:
        self._book.suspended(job)

    def _settled(self, group: Group) -> list[Trajectory]:
        """What the consumer gets now that a group has got further."""
        if group.closing or group.late:
            return self._rest_of(group)
        if self._enough:
            return []  # carried over as it is
        if not self._plan.in_order or group.id in self._earlier:
            return self._decision(group)
        given: list[Trajectory] = []
        if group.task_index == self._decided:
            by_index = {one.task_index: one for one in self._book.groups.values() if one.id not in self._earlier}
            while not self._enough and (one := by_index.get(self._decided)) is not None:
                if one.first(self._group_size, in_order=True) is None:
                    break
                self._decided += 1
                given += self._decision(one)
        return given

    def _rest_of(self, group: Group) -> list[Trajectory]:
        """The trajectories of a group whose stragglers are awaited, once all are back."""
        if group.running:
            return []
        if group.late and (group.suspended or self._enough):
            return []  # carried over
        self._book.close_group(group)
        return group.all_ended()

    def _decision(self, group: Group) -> list[Trajectory]:
        """Give out a group or drop it, if that can be said by now."""
        chosen = group.first(self._group_size, in_order=self._plan.in_order)
        if chosen is None:
            return []
        self._observe(group, chosen)
        if self._plan.keep is not None and not self._plan.keep(tuple(chosen)):
            self.counts.groups_filtered += 1
            self._drop(group)
            return []
        self._kept += 1
        self.counts.groups_kept += 1
        given = self._leave(group, chosen)
        if self._kept == self._plan.groups:
            given += self._end()
        return given

    def _leave(self, group: Group, chosen: list[Trajectory]) -> list[Trajectory]:
        """Give out the chosen members of a group, and do with its stragglers as the plan says."""
        group.begin_no_more()
        if not group.running or self._how is Stragglers.DROP:
            self.counts.episodes_dropped += len(group.ended) - len(chosen)
            self._drop(group, but=len(group.ended))
            return chosen
        self.counts.episodes_dropped += len(group.ended) - len(chosen)
        if self._how is Stragglers.KEEP:
            group.ended = {one.sample_index: one for one in chosen}
            group.closing = True
            self._cut(group)
            return []
        group.ended = {}
        group.late = True  # they play on, and come by themselves
        group.peers = tuple(Peer(one.id, one.reward) for one in chosen if one.usable)
        return chosen

    def give_up(self, unwanted: Callable[[Trajectory], bool]) -> int:
        """Drop the open groups that have an unwanted trajectory, and cut their other members.

        Returns:
            How many groups; none where they are chosen in order, which each one decides.
        """
        if self._plan.in_order or self._enough:
            return 0
        open_groups = [one for one in self._book.groups.values() if not (one.late or one.closing)]
        given_up = [group for group in open_groups if any(map(unwanted, group.ended.values()))]
        for group in given_up:
            self._observe(group, group.all_ended())
            self._drop(group)
        return len(given_up)

    def _drop(self, group: Group, but: int = 0) -> None:
        """Cut what runs of a group, and forget it; `but` so many of those that ended count as dropped already."""
        self.counts.episodes_dropped += len(group.ended) - but + len(group.running)
        self._cut(group)
        self._book.close_group(group)

    def _observe(self, group: Group, members: Sequence[Trajectory]) -> None:
        if group.id not in self._earlier:
            self._rewards.add(group.task_index, group.task, members)

    # ------------------------------------------------------------------ the end

    def _end(self) -> list[Trajectory]:
        """Begin nothing more, and do with what still runs as the plan says. Returns what the consumer gets at once."""
        self._enough = True
        self._book.stop()
        self._rewards.flush()
        given: list[Trajectory] = []
        for group in [one for one in self._book.groups.values() if not one.closing]:
            if self._how is Stragglers.CARRY:
                self._cut(group)
                continue
            self.counts.groups_cut += not group.late
            if self._how is Stragglers.DROP:
                self._drop(group)
                continue
            group.begin_no_more()
            group.closing = True
            self._cut(group)
            given += self._rest_of(group)
        if self._plan.groups is not None and self._kept < self._plan.groups:
            _log.warning(
                "the run has %d of the %d groups that it wanted: it tried %d and dropped %d of them, and there were no "
                "more tasks or max_groups was reached",
                self._kept, self._plan.groups, self.counts.groups_begun, self.counts.groups_filtered,
            )  # fmt: skip
        return given

    def _cut(self, group: Group) -> None:
        self._cuts += [Cut(job, self._how) for job in group.running.values()]
        self.counts.episodes_cut += len(group.running)

    def cuts(self) -> Sequence[Cut]:
        cuts, self._cuts = self._cuts, []
        return cuts

    @property
    def over(self) -> bool:
        return self._enough and (self._how is Stragglers.DROP or not self._book.out)

    def carried(self) -> Sequence[Job]:
        return [job for group in self.carried_groups for job in group.suspended.values()]

    @property
    def carried_groups(self) -> list[Group]:
        """The groups that a later run can go on with; none of their members runs."""
        if self._how is Stragglers.CARRY:
            self._book.take_drawn()
        return [
            group
            for group in self._book.groups.values()
            if not group.running and not group.closing and (self._how is Stragglers.CARRY or group.id in self._earlier)
        ]

    async def close(self) -> None:
        self.counts.groups_carried = len(self.carried_groups)
        _log.info("%s", self.counts)
        await self._book.close()
