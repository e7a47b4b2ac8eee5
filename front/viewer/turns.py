"""`played_turns`: the turns of a trajectory, each with its message, its tokens and what followed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from toolgym.rollout.trajectory.token_sequence import Ids, Segment
from toolgym.rollout.trajectory.trajectory import Trajectory, Turn
from toolgym.rollout.views.tokens import sampled_turns
from toolgym.tools.message import Message, assistant


class PlayedTurn(NamedTuple):
    """One turn of the policy.

    `behind` are the messages before the next turn. `prompt_ids` are the whole context that was sent, `tokens` what was
    sampled; both None if they are not known. `begins_context` says why the context is not the
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
    """Context and sampled tokens of each turn, as many as it counts; None where it or its sequence has others."""
    tokens: list[tuple[Ids | None, Segment | None]] = [(None, None)] * len(trajectory.turns)
    numbers = sampled_turns(trajectory)
    for place, sequence in enumerate(trajectory.sequences):
        ids, at = np.concatenate([sequence.prompt_ids, sequence.response_ids]), len(sequence.prompt_ids)
        counted = sum(turn.generated_tokens for turn in trajectory.turns if turn.sequence == place)
        fits = counted == sequence.policy_tokens
        for segment in sequence.segments:
            number = next(numbers) if segment.is_policy and len(segment) else len(tokens)
            turn = trajectory.turns[number] if number < len(tokens) else None
            if fits and turn is not None and (turn.sequence, turn.generated_tokens) == (place, len(segment)):
                tokens[number] = (ids[:at], segment)
            at += len(segment)
    return tokens
