"""Token rewards: which token has which part of a trajectory's reward, in rows and in files."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.trajectories import played
from toolgym.rollout.advantages.reward_placement import token_rewards
from toolgym.rollout.batch.check import check_batch
from toolgym.rollout.batch.io import load_batch, save_batch
from toolgym.rollout.batch.make import make_batch
from toolgym.tools.errors import BatchError, ConfigError


def spread(trajectory, placement="turns"):
    return [rewards.tolist() for rewards in token_rewards(trajectory, placement)]


def test_each_turns_last_token_has_its_reward_and_the_last_one_the_outcome():
    one = played([[(2, 0.5), (3, None), (1, 1.0)]])
    assert spread(one) == [[0, 0.5, 0, 0, 0, 0, 0, 1.0, 0]]
    assert spread(one, "outcome") == [[0, 0, 0, 0, 0, 0, 0, 1.5, 0]]
    judged = dataclasses.replace(one, reward=4.0)  # the whole got 2.5 beyond its turns
    assert spread(judged) == [[0, 0.5, 0, 0, 0, 0, 0, 3.5, 0]]
    assert spread(dataclasses.replace(one, turns=())) == spread(one, "outcome")


def test_turns_without_tokens_count_for_the_token_before():
    assert spread(played([[(2, 0.0), (0, 0.25), (1, 1.0)]])) == [[0, 0.25, 0, 0, 1.0, 0]]
    assert spread(played([[(0, 0.25), (2, 1.0)]])) == [[0, 0.25, 1.0, 0]]
    assert spread(played([[(2, 0.0)], [(0, 0.25)], [(1, 0.0)]])) == [[0, 0.25, 0], [0], [0, 0]]


def test_several_sequences_share_the_reward_out_by_their_turns(tmp_path):
    one = played([[(1, 0.5)], [(2, 0.25), (1, 1.0)]])
    assert spread(one) == [[0.5, 0], [0, 0.25, 0, 1.0, 0]]
    assert spread(one, "outcome") == [[0, 0], [0, 0, 0, 1.75, 0]]
    for placement in ("turns", "outcome"):
        batch = make_batch([one], pad_token_id=0, reward_placement=placement)
        assert batch.token_rewards.sum(dim=1).tolist() == ([0.5, 1.25] if placement == "turns" else [0, 1.75])
        assert batch.rewards.tolist() == [1.75, 1.75]
        save_batch(batch, tmp_path / "batch.safetensors")
        back = load_batch(tmp_path / "batch.safetensors")
        assert back.reward_placement == placement
        check_batch(back, [one])
        with pytest.raises(BatchError, match="does not lead back.*token_rewards differ"):
            check_batch(dataclasses.replace(back, token_rewards=back.token_rewards * 2), [one])


def test_what_does_not_fit_is_refused():
    one = played([[(2, 0.5)]])
    with pytest.raises(ConfigError, match="'turns' or 'outcome', got 'last'"):
        make_batch([one], pad_token_id=0, reward_placement="last")
    wrong = dataclasses.replace(one, turns=(dataclasses.replace(one.turns[0], generated_tokens=3),))
    with pytest.raises(BatchError, match=r"turns of trajectory t sampled \[3\] tokens .* hold \[2\]"):
        make_batch([wrong], pad_token_id=0)
    assert make_batch([wrong], pad_token_id=0, reward_placement="outcome").token_rewards.tolist() == [[0, 0.5, 0]]
    other = dataclasses.replace(one, turns=(dataclasses.replace(one.turns[0], sequence=1),))
    with pytest.raises(BatchError, match="sampled in sequence 1; it has 1"):
        token_rewards(other)
    with pytest.raises(BatchError, match="no token that the policy sampled"):
        token_rewards(played([[(0, 1.0)]]))
    assert spread(played([[(0, None)]])) == [[0]]


@pytest.mark.parametrize(
    ("value", "said"), [(float("inf"), "token_rewards are finite"), (1.0, "0 where the policy did not sample")]
)
def test_the_checker_knows_token_rewards(value, said):
    batch = make_batch([played([[(1, 0.5)]])], pad_token_id=0)
    wrong = batch.token_rewards.clone()
    wrong[0, 1] = value
    with pytest.raises(BatchError, match=said):
        check_batch(dataclasses.replace(batch, token_rewards=wrong))


rewards = st.one_of(st.none(), st.floats(-2, 2))
turns = st.lists(st.tuples(st.integers(0, 3), rewards), min_size=1, max_size=4)


@given(st.lists(turns, min_size=1, max_size=3), rewards)
def test_they_always_add_up_and_stay_on_the_policys_tokens(sequences, reward):
    one = played([[(1, 0.0)], *sequences], reward=reward)
    for placement in ("turns", "outcome"):
        spread_out = token_rewards(one, placement)
        assert np.concatenate(spread_out).sum() == pytest.approx(one.reward)
        for sequence, values in zip(one.sequences, spread_out, strict=True):
            assert not values[sequence.response_mask == 0].any()
