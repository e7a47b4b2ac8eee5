"""`token_rewards`: a trajectory's reward, placed on the tokens that the policy sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory
from toolgym.tools.errors import BatchError, ConfigError

RewardPlacement = Literal["turns", "outcome"]
"""Which tokens have a trajectory's reward: the last one of each turn, or the last one of all."""

PLACEMENTS: tuple[RewardPlacement, ...] = get_args(RewardPlacement)


def token_rewards(trajectory: Trajectory, placement: RewardPlacement = "turns") -> list[NDArray[np.float64]]:
    """The reward of each token behind the prompt: float64 `[response]` for each of the trajectory's sequences.

    They add up to the trajectory's reward. Only tokens that the policy sampled have one; all others have 0.

    - `turns`: each turn's reward is on its last token; that of a turn without tokens on the policy's last token before
      it, or else on its first. The rest of the trajectory's reward, such as a judge's, is on the policy's last token.
    - `outcome`: the policy's last token has everything, for trainers that know one reward for each trajectory.

    Raises:
        ConfigError: `placement` is something else.
        BatchError: the trajectory has a reward and no token that the policy sampled, or its turns have other tokens
            than its sequences.
    """
    if placement not in PLACEMENTS:
        raise ConfigError(f"rewards are placed by {' or '.join(map(repr, PLACEMENTS))}, got {placement!r}")
    rewards = [np.zeros(sequence.response_tokens) for sequence in trajectory.sequences]
    sampled = [sequence.policy_tokens for sequence in trajectory.sequences]
    last = next((number for number in reversed(range(len(sampled))) if sampled[number]), None)
    if last is None:
        if trajectory.reward:
            raise BatchError(f"trajectory {trajectory.id} has a reward, but no token that the policy sampled has it")
        return rewards
    earned = 0.0
    if placement == "turns" and trajectory.turns:
        _require_same_tokens(trajectory, sampled)
        for number, token, reward in _turn_ends(trajectory, sampled):
            rewards[number][_place(trajectory.sequences[number], token)] += reward
            earned += reward  # in this order, as the episode added them up, so that exactly nothing is left over
    rewards[last][_place(trajectory.sequences[last], sampled[last] - 1)] += trajectory.reward - earned
    return rewards


def _turn_ends(trajectory: Trajectory, sampled: Sequence[int]) -> Iterator[tuple[int, int, float]]:
    """For each turn's reward the number of its sequence, and of its last token among those that the policy sampled."""
    seen = [0] * len(sampled)
    token = next(number for number, count in enumerate(sampled) if count), 0  # for turns before any token
    for turn in trajectory.turns:
        if turn.generated_tokens:
            seen[turn.sequence] += turn.generated_tokens
            token = turn.sequence, seen[turn.sequence] - 1
        if turn.reward:
            yield *token, turn.reward


def _place(sequence: TokenSequence, token: int) -> int:
    place = 0
    for segment in sequence.segments:
        if segment.is_policy:
            if token < len(segment):
                break
            token -= len(segment)
        place += len(segment)
    return place + token


def _require_same_tokens(trajectory: Trajectory, held: Sequence[int]) -> None:
    counted = [0] * len(trajectory.sequences)
    for turn in trajectory.turns:
        if not 0 <= turn.sequence < len(counted):
            raise BatchError(
                f"a turn of trajectory {trajectory.id} was sampled in sequence {turn.sequence}; it has {len(counted)}"
            )
        counted[turn.sequence] += turn.generated_tokens
    if counted != held:
        raise BatchError(
            f"the turns of trajectory {trajectory.id} sampled {counted} tokens in its sequences, which hold {held}; "
            "rewards cannot be placed by turns. Use reward_placement='outcome'"
        )
