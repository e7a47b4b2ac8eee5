"""`RowSource`: what one row of a batch is made from, and `RowImages`: what a model gets of its images."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolgym.rollout.advantages.reward_placement import RewardPlacement, token_rewards
from toolgym.rollout.trajectory.distribution import SequenceSampling, sampling_of
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory


@dataclass(frozen=True)
class RowSource:
    """The source of one row of a batch, which the row is also compared with.

    `token_rewards` are float64 `[response]`.
    """

    trajectory: Trajectory
    sequence: TokenSequence
    id: str
    trajectory_number: int
    group_number: int
    version_numbers: Mapping[str, int]
    token_rewards: NDArray[np.float64]
    sampling: SequenceSampling

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

    @functools.cached_property
    def token_ids(self) -> NDArray[np.int32]:
        return np.concatenate([self.sequence.prompt_ids, self.response_ids])

    def image_tokens(self, image_token_id: int) -> int:
        """The number of ids where images stand that are this one."""
        spans = (self.token_ids[image.start : image.start + image.tokens] for image in self.sequence.images)
        return sum(int((span == image_token_id).sum()) for span in spans)


@dataclass(frozen=True)
class RowImages:
    """The images of one row.

    Attributes:
        inputs: tensors by the names of the model's arguments, such as `pixel_values`: those of all images, in order.
        tokens: how many of the row's ids must be `Batch.image_token_id` for them.
    """

    inputs: Mapping[str, Tensor]
    tokens: int


def joined_inputs(images: Sequence[RowImages]) -> dict[str, Tensor]:
    """The inputs of several rows for one call of the model: one behind the other, filled up with zeros to one shape, as
    processors do it where images have different numbers of tiles."""
    joined = {}
    for name in dict.fromkeys(name for row in images for name in row.inputs):
        values = [row.inputs[name] for row in images if name in row.inputs]
        shape = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
        filled = []
        for value in values:
            room = value.new_zeros((len(value), *shape))
            room[tuple(slice(size) for size in value.shape)] = value
            filled.append(room)
        joined[name] = torch.cat(filled)
    return joined


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
            sampling,
        )
        for number, trajectory in enumerate(trajectories)
        for part, (sequence, rewards, sampling) in enumerate(
            zip(
                trajectory.sequences,
                token_rewards(trajectory, reward_placement),
                sampling_of(trajectory),
                strict=True,
            )
        )
        if sequence.policy_tokens
    ]
