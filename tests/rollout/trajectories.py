"""Trajectories made by hand, turn by turn."""

from __future__ import annotations

from toolgym.envs.types import StopReason
from toolgym.rollout.trajectory.token_sequence import Segment, TokenSequence
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn


def played(sequences, reward=None, name="t", group="g"):
    """`sequences` holds lists of turns, each `(tokens, reward)`; an env's token follows each."""
    made, turns = [], []
    for number, turns_given in enumerate(sequences):
        segments = []
        for tokens, earned in turns_given:
            if tokens:
                segments.append(Segment.policy(range(tokens), [-1.0] * tokens, ["0"] * tokens))
            segments.append(Segment.env([9]))
            turns.append(Turn("", "stop", 0, tokens, reward=earned, sequence=number))
        made.append(TokenSequence([1, 2], tuple(segments)))
    total = sum(turn.reward or 0.0 for turn in turns)
    return Trajectory(
        id=name, env_id="", task_id="", source="", group_id=group, task_index=0, sample_index=0, messages=(), tools=(),
        sequences=tuple(made), reward=total if reward is None else reward, stop_reason=StopReason.ANSWERED,
        turns=tuple(turns),
    )  # fmt: skip
