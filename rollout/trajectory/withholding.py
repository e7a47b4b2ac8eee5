"""Trajectories without some of their sampled tokens, which then belong to their context alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.trajectory.distribution import SamplingDistribution
from toolgym.rollout.trajectory.token_sequence import Segment
from toolgym.rollout.trajectory.trajectory import Peer, Trajectory

_Withheld = list[NDArray[np.bool_]]
"""For each sequence of a trajectory, which of the tokens that the policy sampled are withheld."""


def withhold(group: Sequence[Trajectory], is_stale: Callable[[str], bool]) -> list[Trajectory]:
    """Return a group whose tokens of stale weight versions are not trained: they become tokens of the env, which every
    mask leaves out.

    Rewards, texts and messages stay, and a turn counts the tokens that are left. A member of which none is left is not
    `usable` any more; the others have its reward as that of one of their `peers`, so it counts in their advantages.

    Args:
        group: the trajectories of one group; what stays as it was is returned itself.
        is_stale: from the name of a version to whether its tokens are withheld.
    """
    return _without(group, lambda trajectory: _stale_tokens(trajectory, is_stale))


def withhold_constrained(group: Sequence[Trajectory]) -> list[Trajectory]:
    """Return a group whose turns under a grammar are not trained.

    The sampler's log-probabilities of these turns are those without the tokens that the grammar forbids, so importance
    ratios would not begin at 1. Everything else is as in `withhold`.

    Args:
        group: the trajectories of one group; what stays as it was is returned itself.
    """
    return _without(group, _constrained_tokens)


def _without(group: Sequence[Trajectory], withheld_of: Callable[[Trajectory], _Withheld]) -> list[Trajectory]:
    trained = [_masked(trajectory, withheld_of(trajectory)) for trajectory in group]
    gone: dict[str, list[Peer]] = {}  # by group: each role of an env has its own
    for old, new in zip(group, trained, strict=True):
        if old.usable and not new.usable:
            gone.setdefault(old.group_id, []).append(Peer(old.id, old.reward))
    return [
        replace_fields(new, peers=(*new.peers, *gone[new.group_id])) if new.usable and new.group_id in gone else new
        for new in trained
    ]


def _stale_tokens(trajectory: Trajectory, is_stale: Callable[[str], bool]) -> _Withheld:
    withheld = []
    for sequence in trajectory.sequences:
        runs = [run for segment in sequence.policy_segments for run in segment.version_runs]
        withheld.append(np.repeat([is_stale(name) for name, _ in runs], [count for _, count in runs]).astype(np.bool_))
    return withheld


def _constrained_tokens(trajectory: Trajectory) -> _Withheld:
    parts: list[list[NDArray[np.bool_]]] = [[np.zeros(0, np.bool_)] for _ in trajectory.sequences]
    for turn in trajectory.turns:
        distribution = SamplingDistribution.of({**trajectory.sampling, **turn.sampling})
        parts[turn.sequence].append(np.full(turn.generated_tokens, distribution.grammar is not None))
    return list(map(np.concatenate, parts))


def _masked(trajectory: Trajectory, withheld: _Withheld) -> Trajectory:
    if not any(map(np.any, withheld)):
        return trajectory
    sequences = [
        replace(sequence, segments=tuple(_segments(sequence.segments, tokens)))
        for sequence, tokens in zip(trajectory.sequences, withheld, strict=True)
    ]
    seen, turns = [0] * len(sequences), []
    for turn in trajectory.turns:
        start, end = seen[turn.sequence], seen[turn.sequence] + turn.generated_tokens
        count = int(np.sum(~withheld[turn.sequence][start:end]))
        turns.append(replace_fields(turn, generated_tokens=count))
        seen[turn.sequence] = end
    return replace_fields(trajectory, sequences=tuple(sequences), turns=tuple(turns))


def _segments(segments: Sequence[Segment], withheld: NDArray[np.bool_]) -> Iterator[Segment]:
    """Yield segments whose withheld tokens are segments of the env."""
    seen = 0
    for segment in segments:
        tokens = withheld[seen : seen + len(segment)] if segment.is_policy else withheld[:0]
        seen += len(tokens)
        if not tokens.any():
            yield segment
            continue
        at = 0
        for is_withheld, run in groupby(tokens.tolist()):
            part = slice(at, at := at + sum(1 for _ in run))
            yield Segment.env(segment.token_ids[part]) if is_withheld else segment[part]
