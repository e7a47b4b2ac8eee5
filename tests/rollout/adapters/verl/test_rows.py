"""What verl trains on, of every kind of trajectory. Needs no verl."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rollout.adapters.golden import (
    BROKEN,
    assert_golden,
    env,
    golden,
    policy,
    sequence_row,
    trajectory,
)
from toolgym.envs.types import StopReason
from toolgym.rollout.adapters.verl.rows import rows_of
from toolgym.rollout.trajectory.token_sequence import TokenSequence
from toolgym.tools.errors import ConfigError

BOUNDS = {"prompt_length": 8, "response_length": 12, "pad_token_id": 99}


def row_of(one, **bounds):
    [row] = rows_of(one, **{**BOUNDS, **bounds})
    return row


def test_the_golden_set():
    def read(trajectories):
        return [[sequence_row(row.sequence, row.reward) for row in rows_of(one, **BOUNDS)] for one in trajectories]

    assert_golden(read)


def test_ids_mask_and_log_probs_are_the_trajectory_s():
    one = golden()[0]
    row = row_of(one)
    assert row.sequence.prompt_ids.tolist() == [5, 6, 7]
    assert row.sequence.response_ids.tolist() == [10, 11, 12, 30, 31, 13, 14]
    assert row.sequence.response_mask.tolist() == [1, 1, 1, 0, 0, 1, 1]
    assert row.sequence.logprobs.tolist() == one.logprobs.tolist()
    assert row.sequence.logprobs[3:5].tolist() == [0.0, 0.0]
    assert (row.reward, row.num_turns) == (1.0, 4)


def test_every_row_has_the_same_fields():
    rows = [row for one in golden() for row in rows_of(one, **BOUNDS)]
    assert len({tuple(row.extra_fields) for row in rows}) == 1
    assert len({tuple(row.extra_fields["reward_extra_info"]) for row in rows}) == 1
    values = [row.extra_fields["reward_extra_info"].items() for row in rows]
    assert {type(value) for row in values for name, value in row if name != "acc_counted"} == {float}


def test_rewards_of_turns_and_calls_are_where_verl_reads_them():
    fields = row_of(golden()[0]).extra_fields
    assert fields["turn_scores"] == [0.5, 0.5]
    assert fields["tool_rewards"] == [0.25, 0.25]
    assert fields["reward_extra_info"]["acc"] == 1.0


@pytest.mark.parametrize("number", [4, 5])
def test_a_failed_episode_is_masked_and_not_scored(number):
    row = row_of(golden()[number])
    assert row.sequence.response_mask.sum() == 0
    assert row.reward == 0.0
    assert row.extra_fields["stop_reason"] == "engine_failed"
    assert row.extra_fields["error"] == "EngineError: gone"
    assert row.extra_fields["reward_extra_info"]["failed"] == 1.0
    assert row.extra_fields["reward_extra_info"]["acc"] == 0.0
    assert row.extra_fields["reward_extra_info"]["acc_counted"] is None


def test_an_episode_that_does_not_count_is_masked_too():
    row = row_of(trajectory(policy(1, 2), stop_reason=StopReason.ABORTED))
    assert (row.sequence.response_mask.tolist(), row.reward) == ([0, 0], 0.0)


def test_no_prompt_and_no_response_is_ever_empty():
    for number in (3, 5):
        sequence = row_of(golden()[number]).sequence
        assert len(sequence.prompt_ids) >= 1
        masked = (sequence.response_ids.tolist(), sequence.response_mask.tolist(), sequence.logprobs.tolist())
        assert masked == ([99], [0], [0.0])
    assert sequence.prompt_ids.tolist() == [99]


def test_a_response_is_cut_to_its_length_with_all_that_goes_with_it():
    row = row_of(golden()[0], response_length=4)
    assert (row.sequence.response_ids.tolist(), row.sequence.response_mask.tolist()) == ([10, 11, 12, 30], [1, 1, 1, 0])
    assert len(row.sequence.logprobs) == 4


def test_weight_versions_say_how_stale_a_row_is():
    fields = row_of(golden()[6]).extra_fields
    assert (fields["min_global_steps"], fields["max_global_steps"]) == (3, 4)
    named = row_of(trajectory(policy(1, versions=["best"]))).extra_fields
    assert (named["min_global_steps"], named["max_global_steps"]) == (None, None)
    given = row_of(golden()[6], global_steps=(1, 2)).extra_fields
    assert (given["min_global_steps"], given["max_global_steps"]) == (1, 2)


def test_a_long_prompt_is_refused_by_name_and_never_cut():
    one = trajectory(policy(1), prompt=tuple(range(1, 10)))
    with pytest.raises(ConfigError, match=r"trajectory t0 \(task '0'\): prompt_ids has 9 tokens"):
        rows_of(one, **BOUNDS)
    assert len(row_of(one, prompt_length=None).sequence.prompt_ids) == 9
    assert len(row_of(trajectory(policy(1), prompt=tuple(range(1, 10)), **BROKEN)).sequence.prompt_ids) == 8


def test_each_sequence_that_the_policy_wrote_in_is_a_row():
    sequences = (
        TokenSequence(np.array([5]), (policy(1, 2),)),
        TokenSequence(np.array([6]), ()),
        TokenSequence(np.array([7, 8]), (policy(3), env(30), policy(4)), "template"),
    )
    first, second = rows_of(trajectory(policy(1, 2), sequences=sequences), **BOUNDS)
    assert (first.sequence.prompt_ids.tolist(), first.sequence.response_ids.tolist()) == ([5], [1, 2])
    assert (second.sequence.prompt_ids.tolist(), second.sequence.response_ids.tolist()) == ([7, 8], [3, 30, 4])
    assert first.extra_fields == second.extra_fields
    assert first.extra_fields is not second.extra_fields  # verl takes some out
