"""`TrainerRow`: what a trainer trains on, of one token sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError

NO_VERSION = -1
"""The weight version of a token that the policy did not sample."""


@dataclass(frozen=True)
class TrainerRow:
    """One token sequence of an episode, without padding; in a masked row all behind the prompt are the env's tokens."""

    trajectory: Trajectory
    sequence: TokenSequence

    @classmethod
    def all_of(cls, trajectory: Trajectory, trainer: str, *, several: bool, advice: str = "") -> list[TrainerRow]:
        """Return a row for each sequence in which the policy sampled; none of a trajectory that is not usable.

        Raises BatchError, which ends with the `advice`, if there are several and the trainer takes one.
        """
        [trajectory] = require_trajectories([trajectory])
        if not trajectory.usable:
            return []
        rows = [cls(trajectory, sequence) for sequence in trajectory.sequences if sequence.policy_tokens]
        if len(rows) > 1 and not several:
            raise BatchError(
                f"trajectory {trajectory.id} has {len(rows)} token sequences, and {trainer} takes one row for each "
                "episode: play with history='append' and without a context policy that revises messages" + advice
            )
        return rows

    @classmethod
    def masked(cls, trajectory: Trajectory, filler_id: int, *, keep_tokens: bool = False) -> TrainerRow:
        """Return a row that keeps a place and trains nothing, of fillers or of the tokens of the last sequence."""
        filler = np.array([filler_id], np.int32)
        prompt, response = filler, filler
        if keep_tokens and trajectory.sequences:
            last = trajectory.sequences[-1]
            prompt = last.prompt_ids if len(last.prompt_ids) else filler
            response = last.response_ids if last.response_tokens else filler
        return cls(trajectory, TokenSequence(prompt, (Segment.env(response),)))

    def without_tail(self) -> TrainerRow:
        """Return the row without what the env put behind the last sampled token, where nothing is learned."""
        segments = self.sequence.segments
        last = max(number for number, part in enumerate(segments) if part.is_policy and len(part))
        return replace(self, sequence=replace(self.sequence, segments=segments[: last + 1]))

    @property
    def reward(self) -> float:
        """The episode's; 0 in a masked row."""
        return float(self.trajectory.reward) if self.trajectory.usable else 0.0

    @cached_property
    def token_ids(self) -> NDArray[np.int32]:
        """int32 `[prompt + response]`."""
        return np.concatenate([self.sequence.prompt_ids, self.sequence.response_ids])

    def behind_prompt(self, values: NDArray[Any], filler: int = 0) -> NDArray[Any]:
        """Return values `[response]` as `[prompt + response]`, with the filler at the prompt."""
        return np.concatenate([np.full(len(self.sequence.prompt_ids), filler, values.dtype), values])

    @cached_property
    def versions(self) -> NDArray[np.int64]:
        """int64 `[response]`; raises BatchError if one is no whole number."""
        parts = []
        for segment in self.sequence.segments:
            try:
                runs = [(int(name), count) for name, count in segment.version_runs] or [(NO_VERSION, len(segment))]
            except ValueError:
                names = ", ".join(repr(name) for name, _ in segment.version_runs)
                raise BatchError(
                    f"trajectory {self.trajectory.id} has the weight version {names}; the trainer's are whole numbers"
                ) from None
            parts += [np.full(count, number, np.int64) for number, count in runs]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    @property
    def oldest_version(self) -> int:
        return int(self.versions[self.sequence.response_mask.astype(bool)].min(initial=2**62))


def check_values(row: int, ids: str, mask: tuple[str, Sequence[int]], logprobs: tuple[str, Sequence[float]]) -> None:
    """Check mask and log-probabilities, names and values, of a trainer's row, which it would take silently."""
    count = int(ids.split()[0])
    for name, values in (mask, logprobs):
        if values is None or len(values) != count:
            length = "none" if values is None else len(values)
            raise BatchError(f"{name} of row {row} has {length} values for {ids}")
    if any(value not in (0, 1) for value in mask[1]):
        raise BatchError(f"{mask[0]} of row {row} must hold 0 (the env's) and 1 (the policy's)")
    for place, (trained, value) in enumerate(zip(mask[1], logprobs[1], strict=True)):
        if not isinstance(value, float | int | np.floating) or not math.isfinite(value) or (not trained and value):
            raise BatchError(
                f"{logprobs[0]} of row {row} has {value!r} at {place}, which "
                + ("the policy sampled: it must be finite" if trained else "the env put there: it must be 0")
            )
