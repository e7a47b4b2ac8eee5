"""Which episode the running code belongs to.

One engine and one tool serve many episodes at once, and no call names its episode. Code that must tell episodes apart
all the same, such as a recording, asks `current_episode`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NamedTuple

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


_current: ContextVar[EpisodeKey | None] = ContextVar("toolgym_episode", default=None)


def current_episode() -> EpisodeKey | None:
    """The episode that the running code belongs to; None outside of any. Tasks that it starts belong to it, too."""
    return _current.get()


def episode_scope(key: EpisodeKey) -> AbstractContextManager[None]:
    """Let the code inside of the block belong to an episode."""
    return set_contextvar(_current, key)
