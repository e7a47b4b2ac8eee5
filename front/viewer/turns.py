"""`played_turns`: the turns of a trajectory, each with its message, its tokens and what followed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toolgym.rollout.trajectory.token_sequence import Ids, Segment
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn
from toolgym.tools.message import Message, assistant


class PlayedTurn(NamedTuple):
    """One turn of the policy.

    `behind` are the messages before the next turn. `prompt_ids` are the whole context that was sent, `tokens` what was
    sampled, without payloads; both None if they are not known. `begins_context` says why the context is not the
    conversation before, such as `env`; empty if it is. Times are seconds since the epoch.
    """

    number: int
    turn: Turn
    message: Message
    behind: tuple[Message, ...]
    prompt_ids: Ids | None
    tokens: Segment | None
    begins_context: str
    began_at: float
    answered_at: float
    ended_at: float


def played_turns(trajectory: Trajectory) -> tuple[tuple[Message, ...], list[PlayedTurn]]:
    """Return the messages before the first turn, and the turns."""
    messages, turns = trajectory.messages, trajectory.turns
    places = [*trajectory.turn_places, len(messages)] if trajectory.turn_places or not turns else []
    if not places:  # there is not a message for each turn: their texts have to do
        roles = [*(message["role"] for message in messages), "assistant"]
        places = [roles.index("assistant")] * (len(turns) + 1)
        spoken = [assistant(turn.text) for turn in turns]
    else:
        spoken = [messages[place] for place in places[:-1]]
    steps, now, context = [], trajectory.started_at, 0
    for number, (turn, tokens) in enumerate(zip(turns, _tokens_of_turns(trajectory), strict=True)):
        began = now + turn.queue_seconds
        answered, reason = began + turn.engine_seconds, ""
        now = answered + turn.env_seconds
        if turn.sequence != context and turn.sequence < len(trajectory.sequences):
            context, reason = turn.sequence, trajectory.sequences[turn.sequence].start_reason
        behind = messages[places[number] + 1 : places[number + 1]]
        reason = "" if reason == "template" else reason
        steps.append(PlayedTurn(number, turn, spoken[number], behind, *tokens, reason, began, answered, now))
    return messages[: places[0]], steps


def _tokens_of_turns(trajectory: Trajectory) -> list[tuple[Ids | None, Segment | None]]:
    """Context and sampled tokens of each turn, as many as it counts; None where it or its sequence counts others."""
    sampled = []
    for sequence in trajectory.sequences:
        mask, runs = (
            sequence.response_mask == 1,
            [run for part in sequence.policy_segments for run in part.version_runs],
        )
        ids = np.concatenate([sequence.prompt_ids, sequence.response_ids])
        segment = Segment(sequence.response_ids[mask], True, sequence.logprobs[mask], tuple(runs))
        sampled.append((ids, len(sequence.prompt_ids) + np.flatnonzero(mask), segment))
    counts = [sum(turn.generated_tokens for turn in trajectory.turns if turn.sequence == number)
              for number in range(len(sampled))]  # fmt: skip
    seen = [0] * len(sampled)
    tokens: list[tuple[Ids | None, Segment | None]] = []
    for turn in trajectory.turns:
        tokens.append((None, None))
        fits = 0 <= turn.sequence < len(sampled) and counts[turn.sequence] == len(sampled[turn.sequence][2])
        if fits and turn.generated_tokens:
            ids, places, segment = sampled[turn.sequence]
            start = seen[turn.sequence]
            seen[turn.sequence] = end = start + turn.generated_tokens
            tokens[-1] = (ids[: places[start]], segment[start:end])
    return tokens
