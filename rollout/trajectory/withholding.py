"""`withhold`: a trajectory without some of its sampled tokens, which then belong to its context alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from toolgym.rollout.replace_fields import replace_fields
from toolgym.rollout.trajectory.token_sequence import Segment
from toolgym.rollout.trajectory.trajectory import Peer, Trajectory


def withhold(group: Sequence[Trajectory], is_stale: Callable[[str], bool]) -> list[Trajectory]:
    """Return a group whose tokens of stale weight versions are not trained: they become tokens of the env, which every
    mask leaves out.

    Rewards, texts and messages stay, and a turn counts the tokens that are left. A member of which none is left is not
    `usable` any more; the others have its reward as that of one of their `peers`, so it counts in their advantages.

    Args:
        group: the trajectories of one group; what stays as it was is returned itself.
        is_stale: from the name of a version to whether its tokens are withheld.
    """
    fresh = [_fresh(trajectory, is_stale) for trajectory in group]
    gone: dict[str, list[Peer]] = {}  # by group: each role of an env has its own
    for old, new in zip(group, fresh, strict=True):
        if old.usable and not new.usable:
            gone.setdefault(old.group_id, []).append(Peer(old.id, old.reward))
    return [
        replace_fields(new, peers=(*new.peers, *gone[new.group_id])) if new.usable and new.group_id in gone else new
        for new in fresh
    ]


def _fresh(trajectory: Trajectory, is_stale: Callable[[str], bool]) -> Trajectory:
    sequences = [
        replace(sequence, segments=tuple(part for segment in sequence.segments for part in _parts(segment, is_stale)))
        for sequence in trajectory.sequences
    ]
    if sum(sequence.policy_tokens for sequence in sequences) == trajectory.policy_tokens:
        return trajectory
    # In turn order: the mask of the new sequence at the places that the policy sampled.
    masks = [
        new.response_mask[old.response_mask == 1] for old, new in zip(trajectory.sequences, sequences, strict=True)
    ]
    seen, turns = [0] * len(sequences), []
    for turn in trajectory.turns:
        start, end = seen[turn.sequence], seen[turn.sequence] + turn.generated_tokens
        turns.append(replace_fields(turn, generated_tokens=int(np.sum(masks[turn.sequence][start:end]))))
        seen[turn.sequence] = end
    return replace_fields(trajectory, sequences=tuple(sequences), turns=tuple(turns))


def _parts(segment: Segment, is_stale: Callable[[str], bool]) -> Iterator[Segment]:
    """The segment itself if nothing of it is stale; else its stale and its other parts in order."""
    at = 0
    for stale, runs in groupby(segment.version_runs, lambda run: is_stale(run[0])):
        part = slice(at, at := at + sum(count for _, count in runs))
        yield Segment.env(segment.token_ids[part]) if stale else segment[part]
    if not at:
        yield segment
