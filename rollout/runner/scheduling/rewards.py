from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from toolgym.envs.tasks.task import Task
from toolgym.rollout.trajectory.trajectory import Trajectory

Observe = Callable[[Task, Sequence[float]], None]
"""As `TaskSource.observe`: takes a task and the rewards of its group."""


class GroupRewards:
    """Reports the rewards of groups to a task source in the order of the tasks: what is learnt from them does not
    depend on which ends first."""

    def __init__(self, observe: Observe | None) -> None:
        self._observe = observe
        self._waiting: dict[int, tuple[Task, list[float]]] = {}
        self._next = 0

    def add(self, task_index: int, task: Task, members: Iterable[Trajectory]) -> None:
        """Take a group that has ended; `members` ordered by sample."""
        if self._observe is None:
            return
        self._waiting[task_index] = task, [member.reward for member in members if member.in_group_statistics]
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
