"""`SamplingDistribution`: what the tokens of a trajectory were sampled from, as far as a loss has to know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.engines.base import GREEDY_BELOW
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import BatchError


@dataclass(frozen=True)
class SamplingDistribution:
    """Distribution that tokens were sampled from.

    Log-probabilities of the sampler are those of the whole vocabulary, scaled by `scale`. Top-p, top-k and min-p only
    decide which tokens may be drawn: they do not change a log-probability. A grammar does: its log-probabilities are
    those without the tokens that it forbids.

    Attributes:
        temperature: 0 is greedy. Defaults to 1, as in `SamplingParams`.
        top_p: 1 keeps all tokens.
        top_k: -1 keeps all tokens.
        min_p: 0 keeps all tokens.
        grammar: kind of the grammar that the tokens follow; None without a grammar.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    grammar: str | None = None

    @classmethod
    def of(cls, sampling: Mapping[str, Any]) -> SamplingDistribution:
        """Read sampling parameters by name, as `Trajectory.sampling` has them. Missing names have their default."""
        grammar = sampling.get("grammar")
        return cls(
            temperature=float(sampling.get("temperature", 1.0)),
            top_p=float(sampling.get("top_p", 1.0)),
            top_k=int(sampling.get("top_k", -1)),
            min_p=float(sampling.get("min_p", 0.0)),
            grammar=None if grammar is None else str(grammar[0]),
        )

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def scale(self) -> float:
        """The temperature that logits are divided by to get the sampler's log-probabilities. Engines do not scale
        those of greedy tokens, so it is 1 for a greedy distribution."""
        return 1.0 if self.greedy else self.temperature

    @property
    def truncated(self) -> bool:
        """Whether some tokens could not be drawn, so the log-probabilities are of a wider distribution."""
        return self.greedy or self.top_p < 1 or self.top_k != -1 or self.min_p > 0 or self.grammar is not None

    def __str__(self) -> str:
        further = {"top_p": (self.top_p, 1.0), "top_k": (self.top_k, -1), "min_p": (self.min_p, 0.0)}
        parts = [f"{name} {value:g}" for name, (value, keeps_all) in further.items() if value != keeps_all]
        parts += [] if self.grammar is None else [f"grammar {self.grammar}"]
        return ", ".join([f"temperature {self.temperature:g}", *parts])


@dataclass(frozen=True)
class SequenceSampling:
    """Sampling of one token sequence.

    Attributes:
        distributions: the different distributions of its tokens, in the order of its turns; at least one.
        scales: `SamplingDistribution.scale` of each token that the policy sampled: float32 `[policy tokens]`.
    """

    distributions: tuple[SamplingDistribution, ...]
    scales: NDArray[np.float32]


UNSCALED = SequenceSampling((SamplingDistribution(),), np.zeros(0, np.float32))
"""Sampling of rows whose temperatures are not asked for."""


def sampling_of(trajectory: Trajectory) -> list[SequenceSampling]:
    """Return the sampling of each sequence of a trajectory.

    Raises BatchError if the turns differ in their sampling, and have other tokens than the sequences.
    """
    counts = [sequence.policy_tokens for sequence in trajectory.sequences]
    whole = SamplingDistribution.of(trajectory.sampling)
    if not any(turn.sampling for turn in trajectory.turns):
        return [SequenceSampling((whole,), np.full(count, whole.scale, np.float32)) for count in counts]
    parts: list[dict[SamplingDistribution, None]] = [{} for _ in counts]
    scales: list[list[NDArray[np.float32]]] = [[np.zeros(0, np.float32)] for _ in counts]
    for turn in trajectory.turns:
        if turn.generated_tokens:
            distribution = SamplingDistribution.of({**trajectory.sampling, **turn.sampling}) if turn.sampling else whole
            parts[turn.sequence][distribution] = None
            scales[turn.sequence].append(np.full(turn.generated_tokens, distribution.scale, np.float32))
    joined = [np.concatenate(each) for each in scales]
    if (placed := list(map(len, joined))) != counts:
        raise BatchError(
            f"the turns of trajectory {trajectory.id} differ in their sampling, and have {placed} tokens in its "
            f"sequences, which hold {counts}: the temperature of a token is not known"
        )
    return [SequenceSampling(tuple(each) or (whole,), scale) for each, scale in zip(parts, joined, strict=True)]


def distributions_of(trajectory: Trajectory) -> tuple[SamplingDistribution, ...]:
    """Return the different distributions of a trajectory's turns, in their order; at least one."""
    sampled = [turn.sampling for turn in trajectory.turns if turn.generated_tokens] or [{}]
    each = ({**trajectory.sampling, **changed} for changed in sampled)
    return tuple(dict.fromkeys(map(SamplingDistribution.of, each)))


GRAMMAR_ADVICE = (
    "importance ratios would not begin at 1, because the log-probabilities are those without the tokens that the "
    "grammar forbids. Mask these turns with toolgym.rollout.trajectory.withhold_constrained(group)"
)
"""What is wrong with training on turns under a grammar, and what to do, for errors."""


def versions_of(sequences: Iterable[TokenSequence]) -> tuple[str, ...]:
    """Return the different weight versions that sampled tokens of sequences, in the order of their first token."""
    return tuple(
        dict.fromkeys(
            version
            for sequence in sequences
            for segment in sequence.policy_segments
            for version, _ in segment.version_runs
        )
    )
