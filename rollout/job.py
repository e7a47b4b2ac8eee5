"""`Job`: one episode to play, as plain data, so that a scheduler can hand it to a worker in any process."""

from __future__ import annotations

from dataclasses import dataclass

from toolgym.envs.tasks.task import Task
from toolgym.rollout.episode_key import EpisodeKey


@dataclass(frozen=True)
class Job:
    """One episode to play.

    Attributes:
        task: the task.
        key: the episode's place in its run.
        group_id: the same for all episodes that are sampled from this task in this run, and for no others: of two runs,
            no groups share an id.
        seed: the run's seed. From it and the training step are derived those of the env and of each request to the
            engine; None gives them none, and makes nothing reproducible.
        attempt: how many episodes were played in this place before, and lost.
        parent: id of the trajectory that it is branched from; None where it begins with `reset`.
        branch_turn: number of the parent's turn, counted from 0, before which it is branched; None without a parent.
        seed_path: what its seeds derive from, where that is not its place: a branch's number in its group depends on
            which episode branched first, and its seeds must not.
    """

    task: Task
    key: EpisodeKey
    group_id: str
    seed: int | None = None
    attempt: int = 0
    parent: str | None = None
    branch_turn: int | None = None
    seed_path: tuple[str | int, ...] = ()

    @property
    def member(self) -> tuple[str, int]:
        """Which member of which group it is: names the episode across runs, whatever the attempt."""
        return self.group_id, self.key.sample_index

    @property
    def seed_parts(self) -> tuple[str | int, ...]:
        """What its seeds derive from, besides the run's: its place, and the attempt if it is not the first."""
        if self.seed_path:
            return self.seed_path
        return (*self.key, "attempt", self.attempt) if self.attempt else tuple(self.key)
