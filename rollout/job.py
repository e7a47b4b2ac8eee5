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
    """

    task: Task
    key: EpisodeKey
    group_id: str
    seed: int | None = None
