"""Trajectories as slime's samples: what slime takes silently, or stops at after a whole rollout, is refused before."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from argparse import Namespace

import numpy as np
import pytest
import torch

from tests.actors import policy
from tests.rollout.adapters import slime_stand_in
from tests.rollout.adapters.golden import assert_golden, assert_grouped, response_row
from toolgym.envs.types import StopReason
from toolgym.rollout import Trajectory, Turn
from toolgym.rollout.adapters.slime import check_samples, post_process_rewards, to_samples
from toolgym.rollout.trajectory import Failure, Segment, TokenSequence
from toolgym.tools.errors import BatchError, ConfigError, MissingExtraError

EOS = 2


@pytest.fixture(params=["shape", "slime"], autouse=True)
def slime(request, monkeypatch, tokenizer):
    if request.param == "shape":
        slime_stand_in.install(monkeypatch, tokenizer)
    else:
        pytest.importorskip("slime.utils.types", reason="slime is not on the path")


def trajectory(name, *sequences, reward=1.0, reason=StopReason.ANSWERED, group="g", error=None):
    return Trajectory(
        id=name, env_id="e", task_id="t", source="", group_id=group, task_index=0, sample_index=0,
        messages=({"role": "user", "content": "q"},), tools=(), sequences=sequences, reward=reward, stop_reason=reason,
        turns=(Turn("a", "stop", 2, 3),), ground_truth="6", error=error,
    )  # fmt: skip


ONE = TokenSequence(np.array([5, 6]), (policy(7, 8, EOS), Segment.env([9, 9]), policy(10, EOS, version="4")))
OTHER = TokenSequence(np.array([5]), (policy(1, version="4"),), "template")
NOTHING = TokenSequence(np.array([5]), (Segment.env([9]),), "template")
GOOD = trajectory("good", ONE)
FAILED = trajectory("failed", ONE, reason=StopReason.SANDBOX_FAILED, error=Failure("no disk", 1), reward=0.25)
ABORTED = trajectory("aborted", ONE, reason=StopReason.ABORTED, reward=0.0)
SILENT = trajectory("silent", NOTHING, reason=StopReason.BUDGET)
NEVER = trajectory("never", reason=StopReason.RESET_FAILED, error=Failure("no", 0))
TWO = trajectory("two", ONE, NOTHING, OTHER, reason=StopReason.MAX_TURNS, group="h")


def test_the_golden_set(tokenizer):
    def row_of(sample):
        prompt, response = sample.tokens[: -sample.response_length], sample.tokens[-sample.response_length :]
        bounds = itertools.pairwise(sample.rollout_top_p_token_offsets.tolist())
        kept = [sample.rollout_top_p_token_ids[start:end].tolist() for start, end in bounds]
        return response_row(prompt, response, sample.loss_mask, sample.rollout_log_probs, sample.reward, kept=kept)

    def read(trajectories):
        rows = {one.id: [] for one in trajectories}
        for one in slime_stand_in.flatten(to_samples(trajectories, tokenizer=tokenizer)):
            if not one.remove_sample:
                rows[one.metadata["toolgym"]["trajectory_id"]].append(row_of(one))
        return list(rows.values())

    assert_golden(read)


def test_a_group_is_made_of_episodes(tokenizer):
    args = Namespace(
        advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True, reward_key=None
    )

    def read(trajectories):
        samples = slime_stand_in.flatten(to_samples(trajectories, tokenizer=tokenizer))
        _, rewards = post_process_rewards(args, samples)
        rows = {one.id: [] for one in trajectories}
        for sample, reward in zip(samples, rewards, strict=True):
            rows[sample.metadata["toolgym"]["trajectory_id"]].append(reward)
        return list(rows.values())

    assert_grouped(read, deviation=True)


def test_trajectories_are_samples_by_group(tokenizer):
    [[[good], [failed], [aborted], [silent], [never]], [two]] = to_samples(
        [GOOD, FAILED, TWO, ABORTED, SILENT, NEVER], tokenizer=tokenizer, first_group=4, first_index=10
    )
    assert (good.tokens, good.response_length) == ([5, 6, 7, 8, EOS, 9, 9, 10, EOS], 7)
    assert good.loss_mask == [1, 1, 1, 0, 0, 1, 1]
    assert good.rollout_log_probs == [-0.5, -0.6, -0.7, 0.0, 0.0, -0.5, -0.6]
    assert good.weight_versions == ["3", "4"]
    assert (good.group_index, good.index, good.reward, good.label) == (4, 10, 1.0, "6")
    assert [one.index for one in (failed, aborted, silent, never)] == [11, 13, 14, 15]
    for one in (failed, aborted, silent, never):
        assert (one.loss_mask, one.remove_sample, one.reward) == ([0], True, 0.0)
        assert one.status is type(one).Status.ABORTED
    assert failed.metadata["toolgym"]["error"] == "no disk"
    assert [(one.rollout_id, one.group_index, one.reward) for one in two] == [(12, 5, 1.0)] * 2
    assert [one.tokens for one in two] == [good.tokens, [5, 1]]
    assert {one.status for one in two} == {type(good).Status.TRUNCATED}


def test_an_episode_counts_once_in_its_group(tokenizer):
    two, low = dataclasses.replace(TWO, group_id="g"), dataclasses.replace(GOOD, id="low", reward=0.0)
    [[many, [zero], [failed]]] = to_samples([two, low, FAILED], tokenizer=tokenizer)
    args = Namespace(
        advantage_estimator="reinforce_plus_plus_baseline", rewards_normalization=True, reward_key=None,
        grpo_std_normalization=True,
    )  # fmt: skip
    assert post_process_rewards(args, [*many, zero, failed]) == ([1.0, 1.0, 0.0, 2 / 3], [0.5, 0.5, -0.5, 0.0])
    plain = Namespace(advantage_estimator="ppo", rewards_normalization=True, reward_key=None)
    assert post_process_rewards(plain, [zero, *many]) == ([0.0, 1.0, 1.0], [0.0, 1.0, 1.0])
    zero.group_index = None
    with pytest.raises(BatchError, match="field group_index of row 2"):
        post_process_rewards(args, [*many, zero])


def test_the_ids_that_a_sampler_kept_are_ragged(tokenizer):
    mask = np.array([[7, 1, -1], [8, -1, -1], [EOS, 3, 4]], np.int32)
    sequence = TokenSequence(np.array([5]), (policy(7, 8, EOS, sampling_mask=mask), Segment.env([9])))
    [[[sample]]] = to_samples([trajectory("kept", sequence)], tokenizer=tokenizer)
    assert sample.rollout_top_p_token_ids.tolist() == [7, 1, 8, EOS, 3, 4]
    assert sample.rollout_top_p_token_offsets.tolist() == [0, 2, 3, 6, 6]
    assert sample.rollout_top_p_token_ids.dtype is sample.rollout_top_p_token_offsets.dtype is torch.int32
    half = TokenSequence(np.array([5]), (*sequence.segments, policy(1, EOS)))
    with pytest.raises(BatchError, match="rollout_top_p_token_ids: 1 turns have no"):
        to_samples([trajectory("half", half)], tokenizer=tokenizer)


def test_routing_of_the_sampled_tokens_alone_is_refused(tokenizer):
    routed = TokenSequence(np.array([5]), (policy(7, routed_experts=np.zeros((1, 2, 2), np.int32)),))
    with pytest.raises(BatchError, match="rollout_routed_experts: trajectory routed"):
        to_samples([trajectory("routed", routed)], tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="Trajectories"):
        to_samples([GOOD, None], tokenizer=tokenizer)


BROKEN = {
    "response_length": (9, "response_length of row 1 is 9, and tokens has 9"),
    "tokens": ([5, 6, 7, 8, EOS, 9, 9, 10, "x"], "tokens of row 1"),
    "loss_mask": ([1] * 6, "loss_mask of row 1 has 6 values for 7"),
    "rollout_log_probs": (None, "rollout_log_probs of row 1 has none values for 7"),
    "reward": (float("nan"), "reward of row 1"),
    "rollout_top_p_token_ids": ([1], "rollout_top_p_token_offsets of row 1 go together"),
    "rollout_routed_experts": (np.zeros((7, 1, 1)), "rollout_routed_experts of row 1 has 7 rows for 9"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_sample_is_refused_by_field_and_row(name, tokenizer):
    [[[fine], [broken]]] = to_samples([GOOD, GOOD], tokenizer=tokenizer)
    check_samples([fine, broken])
    value, message = BROKEN[name]
    setattr(broken, name, value)
    with pytest.raises(BatchError, match=message):
        check_samples([fine, broken])


@pytest.mark.parametrize(("place", "value"), [(0, float("-inf")), (3, -0.5)])
def test_log_probs_are_finite_where_trained_and_0_elsewhere(place, value, tokenizer):
    [[[sample]]] = to_samples([GOOD], tokenizer=tokenizer)
    sample.rollout_log_probs[place] = value
    with pytest.raises(BatchError, match=f"rollout_log_probs of row 0 has {value!r} at {place}"):
        check_samples([sample])


def test_siblings_share_a_rollout_id(tokenizer):
    [[two]] = to_samples([TWO], tokenizer=tokenizer)
    check_samples(two, siblings=True)
    two[0].rollout_id = 9
    with pytest.raises(BatchError, match="field rollout_id"):
        check_samples(two, siblings=True)


def test_without_slime_the_error_says_where_it_is(monkeypatch, tokenizer):
    monkeypatch.setitem(sys.modules, "slime.utils.types", None)
    with pytest.raises(MissingExtraError, match="THUDM/slime"):
        to_samples([GOOD], tokenizer=tokenizer)
