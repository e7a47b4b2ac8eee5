from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby

from toolgym.envs.tasks.task import Task
from toolgym.envs.types import Blame
from toolgym.rollout.job import Job, task_group
from toolgym.rollout.runner.config import RunConfig
from toolgym.rollout.runner.scheduling.open_group import Member, OpenGroup
from toolgym.rollout.runner.scheduling.plan import GroupPlan
from toolgym.rollout.runner.scheduling.scheduler import Cut, RunCounts, Scheduler, Stragglers
from toolgym.rollout.runner.scheduling.tasks import TaskFeed, Tasks
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ConfigError, EpisodeError

Observe = Callable[[Task, Sequence[float]], None]
"""As `TaskSource.observe`: takes a task and the rewards of its group."""

_log = logging.getLogger("toolgym.rollout")


class GroupRewards:
    """Reports the rewards of groups to a task source in the order of the tasks: what is learnt from them does not
    depend on which ends first."""

    def __init__(self, observe: Observe | None) -> None:
        self._observe = observe
        self._waiting: dict[int, tuple[Task, list[float]]] = {}
        self._next = 0

    @property
    def reported(self) -> int:
        """The places below this one were reported."""
        return self._next

    def add(self, place: int, task: Task, members: Iterable[Member]) -> None:
        if self._observe is None:
            return
        rewards = [first.reward for first, *_ in members if first.in_group_statistics]  # of roles, the first one's
        self._waiting[place] = task, rewards
        while self._next in self._waiting:
            task, rewards = self._waiting.pop(self._next)
            self._next += 1
            if rewards:
                self._observe(task, rewards)

    def flush(self) -> None:
        """Report the groups that wait for one which will not end in this run."""
        for _, (task, rewards) in sorted(self._waiting.items()):
            if rewards and self._observe is not None:
                self._observe(task, rewards)
        self._waiting.clear()


class GroupScheduler(Scheduler):
    """Plays each task `group_size` times, group after group.

    Without a plan, every trajectory goes to the consumer as it finishes. With one, groups go whole, ordered by sample,
    and only those that the plan wants. A member that the infrastructure lost is played again, `RunConfig.refills`
    times, before a further one begins; the consumer gets the last attempt.

    Args:
        tasks: the tasks, in anything to iterate over, with or without an end; `task_index` is a task's place in it.
        config: says the size of a group, the seed, and how often a lost member is played again.
        plan: which groups are wanted; None: every trajectory, at once.
        observe: gets each task with its group's rewards (of several roles, those of the first that is trained), also of
            groups that the plan drops, in the order of the tasks.
        run_id: what the ids of the groups begin with, of a run that is resumed; None: a new one.

    Attributes:
        count: how many jobs there will be, without branches, if the tasks suffice; None if that is not known.
        whole_groups: whether there is a plan.
        sizes: the number of trajectories of each group that the plan gave out, in order, until taken.

    Raises:
        ConfigError: `tasks` is nothing to iterate over, or holds something else than tasks; or the plan does not fit.
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
        if not isinstance(plan, GroupPlan | None):
            raise ConfigError(f"plan must be a GroupPlan, got {plan!r}")
        self.whole_groups, self._config = plan is not None, config
        plan = plan or GroupPlan()
        self._plan, self._how = plan, Stragglers(plan.stragglers)
        self._group_size, self._members = config.group_size, config.group_size + plan.spare_members
        self._run_id = run_id or uuid.uuid4().hex
        self._feed, self._rewards = TaskFeed(tasks), GroupRewards(observe)
        self._groups: dict[str, OpenGroup] = {}
        self._beginning: deque[OpenGroup] = deque()  # of which members have not begun
        self._lost: deque[Job] = deque()  # to be played again
        self._earlier: set[str] = set()  # groups that an earlier run carried over
        self._cuts: list[Cut] = []
        self._counts = RunCounts()
        self._out = 0  # jobs that have not come back
        self._to_decide: deque[OpenGroup] = deque()  # whole groups that `keep` has not seen
        self._in_turn = asyncio.Lock()  # of the decisions of a plan that is `in_order`
        self._kept = self._decided = 0
        self._enough = False
        self._news = asyncio.Event()
        self.sizes: deque[int] = deque()
        plan.check(config.group_size, self._feed.size)
        groups = plan.groups if plan.keep is not None else plan.groups or self._feed.size
        self.count = None if groups is None else groups * config.group_size

    @property
    def counts(self) -> RunCounts:
        return self._counts

    def go_on_with(self, carried: Iterable[OpenGroup]) -> None:
        """Go on with the `carried_groups` of an earlier run, before any other. Call it before the run, with a plan."""
        for group in carried:
            self._earlier.add(group.id)
            self._groups[group.id] = group
            self._beginning.append(group)

    # ------------------------------------------------------------------ what is played

    async def next(self) -> Job | None:
        while not self._enough:
            job = self._next_begun()
            if job is not None:
                self._out += 1
                return job
            if not self._feed.over and self._wants_another():
                self._open_group(await self._feed.next(self._news))
            elif self._waits():
                await self._news.wait()
            else:
                if self.whole_groups:
                    self._end()
                return None
            self._news.clear()
        return None

    def _next_begun(self) -> Job | None:
        if self._lost:
            return self._lost.popleft()
        while self._beginning:
            job = self._beginning[0].begin()
            if job is not None:
                return job
            self._beginning.popleft()
        return None

    def _open_group(self, task: Task | None) -> None:
        if task is not None:
            place = self._counts.groups_begun
            number = self._task_index(place)
            id = f"{self._run_id}-{number}"
            group = OpenGroup(task, number, id, self._config.seed, self._members, place=place)
            self._groups[group.id] = group
            self._beginning.append(group)
            self._counts.groups_begun += 1

    def _task_index(self, place: int) -> int:
        """Return the number of the task of the group that began in this place."""
        return place

    def _wants_another(self) -> bool:
        if self._plan.max_groups is not None and self._counts.groups_begun >= self._plan.max_groups:
            return False
        wanted = self._plan.groups
        return wanted is None or self._kept + self._undecided < wanted + self._plan.spare_groups

    def _waits(self) -> bool:
        """Whether a group may yet need a member. Members that an earlier run carried over are waited for, too."""
        if not self.whole_groups:
            return self._config.refills > 0 and self._out > 0
        groups = self._groups.values()
        return any(group.id in self._earlier or not (group.late or group.closing) for group in groups)

    @property
    def _undecided(self) -> int:
        return sum(not group.late and not group.closing for group in self._groups.values())

    def branch(self, job: Job) -> Job:
        group = self._groups.get(job.group_id)
        if group is None:
            raise EpisodeError(f"the episode of {job.key} cannot branch: its run does not wait for its group any more")
        self._out += 1
        return group.branch()

    # ------------------------------------------------------------------ what comes back

    def ready(self) -> Sequence[Trajectory]:
        groups = list(self._groups.values())
        return self._in_groups([trajectory for group in groups for trajectory in self._settled(group)])

    def finished(self, job: Job, trajectory: Trajectory) -> Sequence[Trajectory]:
        return self.finished_roles(job, (trajectory,))

    def finished_roles(self, job: Job, trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
        group = self._group_of(job)
        if group is None:
            return ()
        if not (group.late or group.closing) and self._is_lost(job, trajectories):
            self._counts.refills += 1
            again = group.again(job)
            if not self._enough:
                self._lost.append(again)
                return ()
            group.stand_still(again)
        else:
            group.end(job, tuple(trajectories))
        if self.whole_groups:
            return self._in_groups(self._settled(group))
        if group.whole:
            self._close_group(group)
            self._observe(group, group.all_ended())
            self._counts.groups_kept += 1
        return tuple(trajectories)

    def _group_of(self, job: Job) -> OpenGroup | None:
        """The group of a job that has come back; None if that was closed."""
        self._out -= 1
        self._news.set()
        return self._groups.get(job.group_id)

    def _is_lost(self, job: Job, trajectories: Sequence[Trajectory]) -> bool:
        """Whether the infrastructure broke it off, and it may be played again. A branch has no beginning to play."""
        reasons = [trajectory.stop_reason for trajectory in trajectories]
        lost = any(reason.failed and reason.blame not in (Blame.USER, Blame.POLICY) for reason in reasons)
        return lost and job.attempt < self._config.refills and job.parent is None

    def _close_group(self, group: OpenGroup) -> None:
        """Begin no further member of a group, and forget it: what comes back of it is not taken any more."""
        group.begin_no_more()
        self._lost = deque(job for job in self._lost if job.group_id != group.id)
        del self._groups[group.id]
        self._news.set()

    def _in_groups(self, trajectories: list[Trajectory]) -> list[Trajectory]:
        groups = groupby(trajectories, lambda trajectory: task_group(trajectory.group_id, trajectory.role))
        self.sizes += [len(list(group)) for _, group in groups]
        return trajectories

    def suspended(self, job: Job) -> None:
        group = self._group_of(job)
        if group is not None:
            group.stand_still(job)

    def _settled(self, group: OpenGroup) -> list[Trajectory]:
        """Return what the consumer gets now that a group has got further."""
        if group.closing or group.late:
            return self._rest_of(group)
        if self._enough:
            return []  # carried over as it is
        if not self._plan.keeps_inline:
            if group.first(self._group_size, in_order=self._plan.in_order) and group not in self._to_decide:
                self._to_decide.append(group)
            return []
        if not self._plan.in_order or group.id in self._earlier:
            return self._decision(group)
        decided: list[Trajectory] = []
        if group.place == self._decided:
            while (following := self._next_in_order()) is not None:
                self._decided += 1
                decided += self._decision(following)
        return decided

    def _next_in_order(self) -> OpenGroup | None:
        """Return the group that is decided next if it can be decided now."""
        if self._enough:
            return None
        groups = (group for group in self._groups.values() if group.id not in self._earlier)
        following = next((group for group in groups if group.place == self._decided), None)
        if following is None or following.first(self._group_size, in_order=True) is None:
            return None
        return following

    async def decide(self) -> Sequence[Trajectory]:
        decided: list[Trajectory] = []
        while self._to_decide:
            group = self._to_decide.popleft()
            if not self._plan.in_order or group.id in self._earlier:
                decided += await self._decision_apart(group)
                continue
            async with self._in_turn:
                while (following := self._next_in_order()) is not None:
                    self._decided += 1
                    decided += await self._decision_apart(following)
        return self._in_groups(decided)

    async def _decision_apart(self, group: OpenGroup) -> list[Trajectory]:
        """As `_decision`, for a `keep` that takes time. The run, or a limit, may give up the group in the meantime."""
        chosen = group.first(self._group_size, in_order=self._plan.in_order)
        if chosen is None or group.deciding or self._is_gone(group):
            return []
        group.deciding = True
        try:
            keeps = await self._plan.keeps_apart(tuple(chain(*chosen)))
        finally:
            group.deciding = False
        return [] if self._is_gone(group) else self._decided_as(group, chosen, keeps)

    def _is_gone(self, group: OpenGroup) -> bool:
        return self._enough or group.id not in self._groups or group.closing or group.late

    def _rest_of(self, group: OpenGroup) -> list[Trajectory]:
        if group.running:
            return []
        if group.late and (group.suspended or self._enough):
            return []  # carried over
        self._close_group(group)
        return [*chain(*group.all_ended())]

    def _decision(self, group: OpenGroup) -> list[Trajectory]:
        chosen = group.first(self._group_size, in_order=self._plan.in_order)
        if chosen is None:
            return []
        return self._decided_as(group, chosen, self._plan.keeps(tuple(chain(*chosen))))

    def _decided_as(self, group: OpenGroup, chosen: list[Member], keeps: bool) -> list[Trajectory]:
        self._observe(group, chosen)
        if not keeps:
            self._counts.groups_filtered += 1
            self._drop(group)
            return []
        self._kept += 1
        self._counts.groups_kept += 1
        kept = self._leave(group, chosen)
        if self._kept == self._plan.groups:
            kept += self._end()
        return kept

    def _leave(self, group: OpenGroup, chosen: list[Member]) -> list[Trajectory]:
        group.begin_no_more()
        if not group.running or self._how is Stragglers.DROP:
            self._counts.episodes_dropped += len(group.ended) - len(chosen)
            self._drop(group, but=len(group.ended))
            return [*chain(*chosen)]
        self._counts.episodes_dropped += len(group.ended) - len(chosen)
        if self._how is Stragglers.KEEP:
            group.ended = {member[0].sample_index: member for member in chosen}
            group.closing = True
            self._cut(group)
            return []
        group.ended = {}
        group.late = True  # they play on, and come by themselves
        group.give_out(chosen)
        return [*chain(*chosen)]

    def give_up(self, unwanted: Callable[[Trajectory], bool]) -> int:
        """Drop the open groups that have an unwanted trajectory, and cut their other members. Returns how many; none if
        the plan is `in_order`, where each group decides the next."""
        if self._plan.in_order or self._enough:
            return 0
        open_groups = [group for group in self._groups.values() if not (group.late or group.closing)]
        given_up = [group for group in open_groups if any(map(unwanted, chain(*group.ended.values())))]
        for group in given_up:
            self._observe(group, group.all_ended())
            self._drop(group)
        return len(given_up)

    def _drop(self, group: OpenGroup, but: int = 0) -> None:
        """Cut what runs of a group, and forget it; `but` so many of those that ended count as dropped already."""
        self._counts.episodes_dropped += len(group.ended) - but + len(group.running)
        self._cut(group)
        self._close_group(group)

    def _observe(self, group: OpenGroup, members: Sequence[Member]) -> None:
        if group.id not in self._earlier:
            self._rewards.add(group.place, group.task, members)

    # ------------------------------------------------------------------ the end

    def _end(self) -> list[Trajectory]:
        """Begin nothing more, and do with what still runs as the plan says. Returns what the consumer gets at once."""
        self._enough = True
        for job in self._lost:
            self._groups[job.group_id].stand_still(job)
        self._lost.clear()
        self._news.set()
        self._rewards.flush()
        ended: list[Trajectory] = []
        for group in [group for group in self._groups.values() if not group.closing]:
            if self._how is Stragglers.CARRY:
                self._cut(group)
                continue
            self._counts.groups_cut += not group.late
            if self._how is Stragglers.DROP:
                self._drop(group)
                continue
            group.begin_no_more()
            group.closing = True
            self._cut(group)
            ended += self._rest_of(group)
        if self._plan.groups is not None and self._kept < self._plan.groups:
            _log.warning(
                "the run has %d of the %d groups that it wanted: it tried %d and dropped %d of them, and there were no "
                "more tasks or max_groups was reached",
                self._kept, self._plan.groups, self._counts.groups_begun, self._counts.groups_filtered,
            )  # fmt: skip
        return ended

    def _cut(self, group: OpenGroup) -> None:
        self._cuts += [Cut(job, self._how) for job in group.running.values()]
        self._counts.episodes_cut += len(group.running)

    def cuts(self) -> Sequence[Cut]:
        cuts, self._cuts = self._cuts, []
        return cuts

    @property
    def over(self) -> bool:
        return self._enough and (self._how is Stragglers.DROP or not self._out)

    def carried(self) -> Sequence[Job]:
        return [job for group in self.carried_groups for job in group.suspended.values()]

    @property
    def carried_groups(self) -> list[OpenGroup]:
        """The groups that a later run can go on with; none of their members runs."""
        if self._how is Stragglers.CARRY:
            self._open_group(self._feed.take_drawn())  # drawn when the run had no use for it any more
        return [
            group
            for group in self._groups.values()
            if not group.running and not group.closing and (self._how is Stragglers.CARRY or group.id in self._earlier)
        ]

    async def close(self) -> None:
        if self.whole_groups:
            self._counts.groups_carried = len(self.carried_groups)
            _log.info("%s", self._counts)
        await self._feed.close()
