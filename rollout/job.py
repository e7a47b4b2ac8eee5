"""`Job`: one episode to play, as plain data that any process can play; and `current_episode`."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NamedTuple

from toolgym.envs.tasks.task import Task
from toolgym.rollout.seeds import derive_seed


class EpisodeKey(NamedTuple):
    """An episode's place in its run: its task's number, and its own among those of the task, each counted from 0."""

    task_index: int
    sample_index: int

    def __str__(self) -> str:
        return f"task {self.task_index}, sample {self.sample_index}"


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play.

    Attributes:
        task: the task.
        key: the episode's place in its run.
        group_id: the same for all episodes of this task in this run, and for no others, whatever the run.
        seed: the run's seed, which all others derive from; None: nothing is reproducible.
        attempt: how many episodes were played in this place before, and lost.
        parent: id of the trajectory that it is branched from; None if it begins with `reset`.
        branch_turn: number of the parent's turn, counted from 0, before which it is branched.
        seed_path: a branch's seeds derive from it instead of its place, which depends on the episode that branched
            first.
        role: the role of the env that is played; its group's id, `group_id`, then ends with it.
        group_seed: the seed of the envs of the group, where members of a group have different run seeds, as in a
            trainer that splits a group across processes. If None, it is derived, see `env_seed`.
    """

    task: Task
    key: EpisodeKey
    group_id: str
    seed: int | None = None
    attempt: int = 0
    parent: str | None = None
    branch_turn: int | None = None
    seed_path: tuple[str | int, ...] = ()
    role: str = "policy"
    group_seed: int | None = None

    @property
    def member(self) -> tuple[str, int]:
        return self.group_id, self.key.sample_index

    @property
    def seed_parts(self) -> tuple[str | int, ...]:
        if self.seed_path:
            return self.seed_path
        parts = (*self.key, "attempt", self.attempt) if self.attempt else tuple(self.key)
        return parts if self.role == "policy" else (*parts, "role", self.role)

    def env_seed(self, step_seed: int | None) -> int:
        """Return the seed for `reset` of the env.

        The seed is the same for all members, attempts and roles of a group, so that all of them begin in the same
        state. It is derived from `step_seed` and the task's number, or from the id of the group in a run without a
        seed.
        """
        if self.group_seed is not None:
            return self.group_seed
        if step_seed is None:
            return derive_seed(0, "env", task_group(self.group_id, self.role))
        return derive_seed(step_seed, "env", self.key.task_index)

    def for_role(self, role: str) -> Job:
        """The part of a role in this job. Its group is one of its own: rewards of two roles are never compared."""
        return replace(self, group_id=f"{self.group_id}/{role}", role=role)


def task_group(group_id: str, role: str) -> str:
    """The id of the group of all roles, which `Job.for_role` made a role's group id from."""
    return group_id if role == "policy" else group_id.removesuffix(f"/{role}")


_current: ContextVar[EpisodeKey | None] = ContextVar("toolgym_episode", default=None)


def current_episode() -> EpisodeKey | None:
    """The episode that the running code, and each task that it starts, belongs to; None outside of any."""
    return _current.get()


def enter_episode(key: EpisodeKey | None) -> EpisodeKey | None:
    """Let the running task belong to an episode from here on; returns the one that it belonged to."""
    before = _current.get()
    _current.set(key)
    return before
