"""Images by hand: a processor whose images are patches, as many as it likes, and trajectories that hold them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from tests.rollout.trajectories import played
from toolgym.rollout.models.images import PlacedImage
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory

PART = 7
"""The id that stands for a part of an image."""


def url(height: int, width: int, color: int = 0) -> str:
    return f"data:image/png;base64,{height}x{width}x{color}"


class Patches:
    """Gives an image of 2 x 3 two rows of three patches, and ids for each of them between a begin and an end."""

    image_token_id = PART
    processor = None
    """transformers' own, to which verl binds positions."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def expansion(self, address: str) -> tuple[int, ...]:
        height, width, _ = _size(address)
        return (5, *[PART] * (height * width), 6)

    def pixel_inputs(self, addresses: Sequence[str]) -> dict[str, np.ndarray]:
        self.asked.append(tuple(addresses))
        sizes = [_size(address) for address in addresses]
        patches = [np.full((height * width, 4), color, np.float32) for height, width, color in sizes]
        return {
            "pixel_values": np.concatenate(patches),
            "image_grid_thw": torch.tensor([[1, height, width] for height, width, _ in sizes]),
        }


def _size(address: str) -> tuple[int, int, int]:
    height, width, color = address.rpartition(",")[2].split("x")
    return int(height), int(width), int(color)


def pictured(
    prompt: Sequence[str] = (), seen: Sequence[str] = (), name: str = "p", group: str = "g", reward: float = 1.0
) -> Trajectory:
    """A trajectory whose prompt shows images, and whose only tool result shows others between two turns."""
    processor, ids, placed = Patches(), [1, 2], []
    for address in prompt:
        placed.append(PlacedImage(address, len(ids), len(processor.expansion(address))))
        ids += [*processor.expansion(address), 3]
    start, result = len(ids) + 2, [8]
    for address in seen:
        placed.append(PlacedImage(address, start + len(result), len(processor.expansion(address))))
        result += [*processor.expansion(address), 8]
    segments = (policy(11, 12), Segment.env(result), policy(13))
    sequence = TokenSequence(ids, segments, images=tuple(placed))
    return dataclasses.replace(played([[(2, reward)]], name=name, group=group), sequences=(sequence,), turns=())


def policy(*ids: int) -> Segment:
    return Segment.policy(ids, [-0.5] * len(ids), ["3"] * len(ids))
