"""`TrainerRow`: what a trainer trains on, of one token sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.models.images import ImageProcessor
from toolgym.rollout.trajectory.distribution import GRAMMAR_ADVICE, UNSCALED, distributions_of
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import BatchError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

NO_VERSION = -1
"""The weight version of a token that the policy did not sample."""


@dataclass(frozen=True)
class TrainerRow:
    """One token sequence of an episode, without padding; in a masked row all behind the prompt are the env's tokens."""

    trajectory: Trajectory
    sequence: TokenSequence

    @classmethod
    def all_of(
        cls,
        trajectory: Trajectory,
        trainer: str,
        *,
        several: bool,
        temperature: float | None,
        advice: str = "",
        processor: ImageProcessor | None = None,
    ) -> list[TrainerRow]:
        """Return a row for each sequence in which the policy sampled; none of a trajectory that is not usable.

        Args:
            trajectory: the trajectory.
            trainer: name of the trainer, for errors.
            several: whether the trainer takes several rows of one episode.
            temperature: see `require_known_distribution`.
            advice: end of the error that there are several rows.
            processor: of the rollout's images.

        Raises:
            BatchError: there are several rows and the trainer takes one, or there are images and no processor makes
                pixel inputs of them.
            ConfigError: the trainer divides logits by another temperature than the sampler, or the policy sampled under
                a grammar.
        """
        [trajectory] = require_trajectories([trajectory])
        if not trajectory.usable:
            return []
        require_no_images(trajectory, trainer, processor)
        require_known_distribution(trajectory, trainer, temperature)
        if processor is not None:
            from toolgym.rollout.batch.make import sampled_image_token  # needs torch

            if sampled_image_token(trajectory, processor):
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
        if keep_tokens and trajectory.sequences and not any(sequence.images for sequence in trajectory.sequences):
            last = trajectory.sequences[-1]
            prompt = last.prompt_ids if len(last.prompt_ids) else filler
            response = last.response_ids if last.response_tokens else filler
        return cls(trajectory, TokenSequence(prompt, (Segment.env(response),)))

    def without_tail(self) -> TrainerRow:
        """Return the row without what the env put behind the last sampled token, where nothing is learned."""
        segments = self.sequence.segments
        last = max(number for number, part in enumerate(segments) if part.is_policy and len(part))
        kept = replace(self.sequence, segments=segments[: last + 1])
        end = len(kept.prompt_ids) + kept.response_tokens
        return replace(self, sequence=replace(kept, images=tuple(i for i in kept.images if i.start < end)))

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

    def pixel_inputs(self, processor: ImageProcessor | None) -> dict[str, Tensor]:
        """Return what a model gets of the row's images, such as `pixel_values`; empty without images."""
        from toolgym.rollout.batch.make import row_images
        from toolgym.rollout.batch.row import RowSource

        row = RowSource(self.trajectory, self.sequence, self.trajectory.id, 0, 0, {}, np.zeros(0), UNSCALED)
        return {name: value for images in row_images([row], processor) for name, value in images.inputs.items()}

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


def require_known_distribution(trajectory: Trajectory, trainer: str, temperature: float | None) -> None:
    """Raise ConfigError if the importance ratios of a trajectory would not begin at 1.

    That is so if the trajectory was sampled at another temperature than its trainer divides logits by, or under a
    grammar. Trajectories of a validation are not trained on, so they may be sampled in any way. Greedy tokens, whose
    log-probabilities engines do not scale, are those of temperature 1.

    Args:
        trajectory: the trajectory.
        trainer: name of the trainer, for the error.
        temperature: what the trainer divides logits by. None does not check it: the rows are only evaluated, or the
            trainer uses one setting for sampling and training.
    """
    if trajectory.validate:
        return
    for distribution in distributions_of(trajectory):
        if distribution.grammar is not None:
            raise ConfigError(
                f"trajectory {trajectory.id} was sampled under a grammar ({distribution.grammar}), and {trainer} "
                f"computes log-probabilities over all tokens: {GRAMMAR_ADVICE}"
            )
        if temperature is not None and not math.isclose(distribution.scale, temperature, rel_tol=1e-6):
            raise ConfigError(
                f"trajectory {trajectory.id} was sampled at {distribution}, so its log-probabilities are scaled by "
                f"{distribution.scale:g}, and {trainer} would compute them at temperature {temperature:g}: importance "
                f"ratios would not begin at 1. Let {trainer} train at the temperature of the rollout, and pass that as "
                "temperature=... if it is not 1"
            )


def require_no_images(trajectory: Trajectory, trainer: str, processor: ImageProcessor | None = None) -> None:
    """Raise BatchError if there are images, and no processor that makes the trainer's pixel inputs of them."""
    if processor is None and any(sequence.images for sequence in trajectory.sequences):
        raise BatchError(
            f"trajectory {trajectory.id} has images, and without the processor of the rollout {trainer} gets none of "
            "them: give processor=... where this adapter has it, or train with another (docs/images.md)"
        )


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
