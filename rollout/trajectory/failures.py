"""Failed episodes of a run: one warning a kind, and an error if all failed at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from toolgym.envs.types import EpisodeFailedError, StopReason
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import ToolgymError, on_one_line

log = logging.getLogger("toolgym.rollout.trajectory.failures")
"""Gets one warning for each kind of failure, at the end of a run."""

_Kind = tuple[StopReason, str]

_OF_ROLE = re.compile(r"^EpisodeFailedError: the role '[^']*' failed: ")
"""The beginning of a failure that came from another role (`toolgym.envs.roles`): it is of that one's kind."""


class RunFailedError(ToolgymError, RuntimeError):
    """Every episode of a run failed in the same way, `stop_reason`, at its first turn."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        first = trajectories[0]
        super().__init__(
            f"all {len(trajectories)} episodes failed in the same way at their first turn, with "
            f"{first.stop_reason.value}: {_cause(first)}"
        )
        self.stop_reason = first.stop_reason
        self.trajectories = tuple(trajectories)


class FailureLog:
    """Counts the failed episodes of a run by kind: by their stop reason and the type of their error."""

    def __init__(self) -> None:
        self._episodes = 0
        self._counts: dict[_Kind, int] = {}
        self._examples: dict[_Kind, Trajectory] = {}

    def add(self, trajectory: Trajectory) -> None:
        self._episodes += 1
        if trajectory.failed:
            kind = _kind(trajectory)
            self._examples.setdefault(kind, trajectory)
            self._counts[kind] = self._counts.get(kind, 0) + 1

    def lines(self) -> list[str]:
        lines = []
        for kind, example in self._examples.items():
            assert example.error is not None
            place = f"task {example.task_index}, sample {example.sample_index}, turn {example.error.turn}"
            lines.append(
                f"{self._counts[kind]} of {self._episodes} episodes failed with {kind[0].value}; one of them: {place}: "
                f"{_cause(example)}"
            )
        return lines

    def warn(self) -> None:
        for line in self.lines():
            log.warning("%s", line)


def require_one_that_played(trajectories: Sequence[Trajectory]) -> None:
    """Raise `RunFailedError` if all trajectories of a run failed at their first turn in the same way.

    An episode whose scorer overran its deadline was played, so it does not count here.
    """
    at_once = all(
        trajectory.error is not None
        and trajectory.error.turn == 0
        and trajectory.stop_reason is not StopReason.SCORE_TIMEOUT
        for trajectory in trajectories
    )
    if at_once and len({_kind(trajectory) for trajectory in trajectories}) == 1:
        raise RunFailedError(trajectories)


def not_trainable_error(trajectory: Trajectory) -> EpisodeFailedError:
    text = f"the episode ended with {trajectory.stop_reason}"
    if trajectory.error is not None:
        text = trajectory.error.message
    elif not trajectory.policy_tokens:
        text += ", and the policy sampled nothing"
    return EpisodeFailedError(trajectory.stop_reason, text)


def _kind(trajectory: Trajectory) -> _Kind:
    return trajectory.stop_reason, _OF_ROLE.sub("", _cause(trajectory)).partition(":")[0]


def _cause(trajectory: Trajectory) -> str:
    assert trajectory.error is not None
    return on_one_line(trajectory.error.message)
