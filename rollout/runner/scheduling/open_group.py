from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import TypeAlias

from toolgym.envs.tasks.task import Task
from toolgym.rollout.job import EpisodeKey, Job
from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.trajectory.trajectory import Peer, Trajectory

Member: TypeAlias = tuple[Trajectory, ...]
"""What became of one job: a trajectory, or one for each role."""


class OpenGroup:
    """The members of one task of a run, by sample, from their begin to their end; branches come on top of its `size`.

    A group that is `closing` begins nothing more, and is given out when what runs is back; one that is `late` was given
    out without these members, with its `peers`. While it is `deciding`, the plan's `keep` is called with it. Its
    `place` is its number among the groups that began in this run, from 0.
    """

    def __init__(
        self, task: Task, task_index: int, group_id: str, seed: int | None, size: int, *, place: int | None = None
    ) -> None:
        self.task, self.task_index, self.id, self.size = task, task_index, group_id, size
        self.place = task_index if place is None else place
        self._seed = seed
        self._begun = 0
        self._first_branch = self._next_branch = size
        self._seeds: set[int] = set()
        self.running: dict[int, Job] = {}
        self.suspended: dict[int, Job] = {}
        self.ended: dict[int, Member] = {}
        self.closing = self.late = self.deciding = False
        self.peers: Mapping[str, tuple[Peer, ...]] = {}  # by role

    def begin(self) -> Job | None:
        """The job of the next member; of those that stand still first. None: all have begun."""
        if self.suspended:
            sample, job = min(self.suspended.items())
            del self.suspended[sample]
        elif self._begun < self.size:
            job = Job(self.task, EpisodeKey(self.task_index, self._begun), self.id, self._seed)
            self._begun += 1
        else:
            return None
        self.running[job.key.sample_index] = job
        return job

    def begin_no_more(self) -> None:
        self.size = self._begun

    def branch(self) -> Job:
        job = Job(self.task, EpisodeKey(self.task_index, self._next_branch), self.id, self._seed)
        self._next_branch += 1
        self.running[job.key.sample_index] = job
        return job

    def again(self, job: Job) -> Job:
        following = replace(job, attempt=job.attempt + 1)
        self.running[job.key.sample_index] = following
        return following

    def stand_still(self, job: Job) -> None:
        self.running.pop(job.key.sample_index, None)
        self.suspended[job.key.sample_index] = job

    def end(self, job: Job, member: Member) -> None:
        self.running.pop(job.key.sample_index, None)
        for trajectory in member:
            new = trajectory.turns[trajectory.branch_turn or 0 :]  # the turns before are the parent's
            seeds = {turn.seed for turn in new if turn.seed is not None}
            assert self._seeds.isdisjoint(seeds), f"two of the group of task {self.task_index} share a sampling seed"
            self._seeds |= seeds
        self.ended[job.key.sample_index] = member

    @property
    def whole(self) -> bool:
        return not self.running and not self.suspended and self._begun == self.size

    def first(self, count: int, *, in_order: bool) -> list[Member] | None:
        """The first `count` members, and as many branches, that did not fail, ordered by sample; with failed ones if
        there are too few. None if that is not decided yet. `in_order`: the first by sample, not by time, which depends
        on no clock."""
        count += self._next_branch - self._first_branch
        ended = list(self.ended.items())
        if in_order:
            ended = []
            while len(ended) in self.ended:
                ended.append((len(ended), self.ended[len(ended)]))
        chosen = [each for each in ended if not _failed(each[1])][:count]
        if len(chosen) < count:
            if not self.whole:
                return None
            chosen += [each for each in ended if _failed(each[1])][: count - len(chosen)]
        return [member for _, member in sorted(chosen, key=itemgetter(0))]

    def give_out(self, members: Iterable[Member]) -> None:
        """Remember these members, which the consumer gets before the others, as the others' peers."""
        peers: dict[str, tuple[Peer, ...]] = {}
        for trajectory in itertools.chain(*members):
            if trajectory.usable:
                peers[trajectory.role] = (*peers.get(trajectory.role, ()), Peer(trajectory.id, trajectory.reward))
        self.peers = peers

    def all_ended(self) -> list[Member]:
        return [
            tuple(
                replace_fields(trajectory, peers=self.peers[trajectory.role])
                if trajectory.role in self.peers
                else trajectory
                for trajectory in self.ended[sample]
            )
            for sample in sorted(self.ended)
        ]


def _failed(member: Member) -> bool:
    return any(trajectory.failed for trajectory in member)
