"""`RowSource`: what one row of a batch is made from."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.advantages.reward_placement import RewardPlacement, token_rewards
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory


@dataclass(frozen=True)
class RowSource:
    """The source of one row of a batch, which the row is also compared with. `token_rewards` are float64
    `[response]`."""

    trajectory: Trajectory
    sequence: TokenSequence
    id: str
    trajectory_number: int
    group_number: int
    version_numbers: Mapping[str, int]
    token_rewards: NDArray[np.float64]

    @functools.cached_property
    def response_ids(self) -> NDArray[np.int32]:
        return self.sequence.response_ids

    @functools.cached_property
    def response_mask(self) -> NDArray[np.int8]:
        return self.sequence.response_mask

    @property
    def tokens(self) -> int:
        return len(self.sequence.prompt_ids) + len(self.response_ids)

    @functools.cached_property
    def logprobs(self) -> NDArray[np.float64]:
        return np.concatenate([np.zeros(0), *(segment.logprobs for segment in self.sequence.policy_segments)])

    @functools.cached_property
    def weight_versions(self) -> NDArray[np.int64]:
        runs = [run for segment in self.sequence.policy_segments for run in segment.version_runs]
        return np.repeat([self.version_numbers.get(version, -1) for version, _ in runs], [count for _, count in runs])


def rows_of(
    trajectories: Iterable[Trajectory],
    groups: Sequence[str],
    version_numbers: Mapping[str, int],
    reward_placement: RewardPlacement,
) -> list[RowSource]:
    """The rows that trajectories make. A sequence without a sampled token makes none. A group that is not among
    `groups` gets the number -1."""
    numbers = {group: number for number, group in enumerate(groups)}
    return [
        RowSource(
            trajectory,
            sequence,
            trajectory.id if len(trajectory.sequences) == 1 else f"{trajectory.id}/{part}",
            number,
            numbers.get(trajectory.group_id, -1),
            version_numbers,
            rewards,
        )
        for number, trajectory in enumerate(trajectories)
        for part, (sequence, rewards) in enumerate(
            zip(trajectory.sequences, token_rewards(trajectory, reward_placement), strict=True)
        )
        if sequence.policy_tokens
    ]
