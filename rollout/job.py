"""`Job`: one episode to play, as plain data that a scheduler can hand to any process; and which episode code runs for.

One engine and one tool serve many episodes at once, and no call names its episode. Code that must tell episodes apart,
such as a recording, asks `current_episode`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from toolgym.envs.tasks.task import Task
from toolgym.tools.concurrency.set_contextvar import set_contextvar


class EpisodeKey(NamedTuple):
    """An episode's place in its run, which is the same when the run is repeated.

    Attributes:
        task_index: number of the task in the run, counted from 0.
        sample_index: number of the episode among those of its task, counted from 0.
    """

    task_index: int
    sample_index: int

    def __str__(self) -> str:
        return f"task {self.task_index}, sample {self.sample_index}"


@dataclass(frozen=True)
class Job:
    """One episode to play.

    Attributes:
        task: the task.
        key: the episode's place in its run.
        group_id: the same for all episodes that are sampled from this task in this run, and for no others: of two runs,
            no groups share an id.
        seed: the run's seed. The seeds of the env and of each request to the engine derive from it and the training
            step; None: they get none, and nothing is reproducible.
        attempt: how many episodes were played in this place before, and lost.
        parent: id of the trajectory that it is branched from; None if it begins with `reset`.
        branch_turn: number of the parent's turn, counted from 0, before which it is branched; None without a parent.
        seed_path: for a branch, what its seeds derive from instead of its place: a branch's number in its group depends
            on which episode branched first, and its seeds must not.
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
        """Its group and its place in it: names the episode across runs, whatever the attempt."""
        return self.group_id, self.key.sample_index

    @property
    def seed_parts(self) -> tuple[str | int, ...]:
        """The parts that its seeds derive from beside the run's: its place, and the attempt if it is not the first."""
        if self.seed_path:
            return self.seed_path
        return (*self.key, "attempt", self.attempt) if self.attempt else tuple(self.key)


_current: ContextVar[EpisodeKey | None] = ContextVar("toolgym_episode", default=None)


def current_episode() -> EpisodeKey | None:
    """The episode that the running code belongs to; None outside of any. Tasks that it starts belong to it, too."""
    return _current.get()


def episode_scope(key: EpisodeKey) -> AbstractContextManager[None]:
    """Let the code inside of the block belong to an episode."""
    return set_contextvar(_current, key)
