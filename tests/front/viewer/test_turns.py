"""Turns with their messages and tokens: every sampled token stands in one turn, behind the context that was sent."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.rollout.adapters.golden import CASES
from toolgym.rollout.trajectory import Segment, TokenSequence
from toolgym.viewer.tokens import tokens_of
from toolgym.viewer.turns import played_turns


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_sampled_token_is_in_one_turn_behind_its_context(case):
    trajectory = case.trajectory
    _, turns = played_turns(trajectory)
    assert [turn.turn for turn in turns] == list(trajectory.turns)
    for number, sequence in enumerate(trajectory.sequences):
        whole = [*sequence.prompt_ids, *sequence.response_ids]
        of_sequence = [turn for turn in turns if turn.turn.sequence == number and turn.tokens is not None]
        for turn in of_sequence:
            at = len(turn.prompt_ids)
            assert whole[:at] == turn.prompt_ids.tolist()
            assert whole[at : at + len(turn.tokens)] == turn.tokens.token_ids.tolist()
        sampled = [i for turn in of_sequence for i in turn.tokens.token_ids.tolist()]
        assert sampled == sequence.response_ids[sequence.response_mask == 1].tolist()


def test_an_empty_turn_has_no_tokens():
    trajectory = next(case.trajectory for case in CASES if case.name == "an empty turn")
    _, steps = played_turns(trajectory)
    assert [None if step.tokens is None else step.tokens.token_ids.tolist() for step in steps] == [[25, 26], None, [27]]
    assert [None if step.prompt_ids is None else len(step.prompt_ids) for step in steps] == [3, None, 7]
    assert np.array_equal(steps[2].tokens.logprobs, trajectory.sequence.logprobs[-1:])


def test_a_sequence_whose_turns_count_others_has_none_and_others_keep_theirs():
    trajectory = next(case.trajectory for case in CASES if case.name == "several sequences")
    first, *rest = trajectory.turns
    changed = dataclasses.replace(trajectory, turns=(dataclasses.replace(first, generated_tokens=9), *rest))
    _, turns = played_turns(changed)
    assert [turn.tokens is None for turn in turns] == [True, False, False]


def test_a_turn_without_tokens_moves_no_token_to_another_turn():
    trajectory = next(case.trajectory for case in CASES if case.name == "several turns")
    first, *rest = trajectory.turns
    empty = dataclasses.replace(first, generated_tokens=0)
    changed = dataclasses.replace(trajectory, turns=(empty, first, empty, *rest))
    _, turns = played_turns(changed)
    played = {turn.number: turn.tokens.token_ids.tolist() for turn in turns if turn.tokens is not None}
    seen: dict[int, list[int]] = {}
    for token in tokens_of(changed):
        if token.kind == "policy":
            seen.setdefault(token.turn, []).append(token.id)
    assert played == seen
    assert list(seen) == [1, 3]


def test_messages_stand_before_and_behind_their_turns():
    trajectory = next(case.trajectory for case in CASES if case.name == "several turns")
    roles = {"s": "system", "u": "user", "a": "assistant", "b": "user", "c": "assistant", "d": "user"}
    messages = [{"role": role, "content": text} for text, role in roles.items()]
    head, turns = played_turns(dataclasses.replace(trajectory, messages=tuple(messages)))
    assert [message["content"] for message in head] == ["s", "u"]
    assert [turn.message["content"] for turn in turns] == ["a", "c"]
    assert [[message["content"] for message in turn.behind] for turn in turns] == [["b"], ["d"]]
    without = dataclasses.replace(trajectory, messages=tuple(messages[:3]))  # one is missing: their texts have to do
    head, turns = played_turns(without)
    assert [message["content"] for message in head] == ["s", "u"]
    assert [turn.message for turn in turns] == [
        {"role": "assistant", "content": turn.text} for turn in trajectory.turns
    ]


def test_times_follow_each_other_and_a_new_context_says_why():
    trajectory = next(case.trajectory for case in CASES if case.name == "several turns")
    first, second = trajectory.turns
    timed = [dataclasses.replace(first, engine_seconds=1.0, env_seconds=2.0, queue_seconds=4.0),
             dataclasses.replace(second, engine_seconds=8.0, sequence=1)]  # fmt: skip
    for reason, shown in (("env", "env"), ("template", "")):
        sequences = (*trajectory.sequences, TokenSequence(np.array([1]), (Segment.policy([2], [-1.0], "0"),), reason))
        changed = dataclasses.replace(trajectory, sequences=sequences, turns=tuple(timed), started_at=100.0)
        _, turns = played_turns(changed)
        times = [(turn.began_at, turn.answered_at, turn.ended_at) for turn in turns]
        assert times == [(104.0, 105.0, 107.0), (107.0, 115.0, 115.0)]
        assert [turn.begins_context for turn in turns] == ["", shown]
