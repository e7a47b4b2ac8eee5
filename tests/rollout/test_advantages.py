"""Advantages over a group: three forms, and what stays out of the statistics."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.trajectories import played
from toolgym.envs.types import StopReason
from toolgym.rollout.advantages.advantages import FORMS, group_advantages
from toolgym.rollout.batch.make import make_batch
from toolgym.rollout.trajectory.trajectory import Failure
from toolgym.tools.errors import BatchError, ConfigError, UnknownArgumentError


def one(name, reward, group="g", **changes):
    return dataclasses.replace(played([[(1, reward)]], name=name, group=group), **changes)


BROKEN = {"stop_reason": StopReason.SANDBOX_FAILED, "error": Failure("died", 0)}
GROUP = [one("a", 1.0), one("b", 0.0), one("c", 0.5), one("d", 1.0)]


def test_the_three_forms_are_those_of_the_papers():
    rewards = [item.reward for item in GROUP]
    mean, deviation = statistics.mean(rewards), statistics.stdev(rewards)
    assert group_advantages(GROUP, epsilon=0.0) == pytest.approx([(r - mean) / deviation for r in rewards])
    assert group_advantages(GROUP, form="grpo") == pytest.approx([(r - mean) / (deviation + 1e-6) for r in rewards])
    assert group_advantages(GROUP, form="dr_grpo") == pytest.approx([r - mean for r in rewards])
    others = [statistics.mean(rewards[:n] + rewards[n + 1 :]) for n in range(4)]
    assert group_advantages(GROUP, form="rloo") == pytest.approx([r - o for r, o in zip(rewards, others, strict=True)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reason", [reason for reason in StopReason if not reason.in_group_statistics])
def test_what_does_not_count_has_none_and_changes_nothing(form, reason):
    broken = one("x", -9.0, stop_reason=reason, error=None if reason is StopReason.ABORTED else Failure("died", 0))
    mixed = [GROUP[0], broken, *GROUP[1:]]
    alone = group_advantages(GROUP, form=form)
    assert group_advantages(mixed, form=form) == [alone[0], None, *alone[1:]]


def test_an_episode_without_a_token_of_the_policy_changes_nothing():
    empty = one("x", -9.0, stop_reason=StopReason.BUDGET, sequences=())
    assert group_advantages([*GROUP, empty]) == [*group_advantages(GROUP), None]


def test_limits_count():
    cut = one("x", -1.0, stop_reason=StopReason.MAX_TURNS)
    assert group_advantages([cut, GROUP[0]], form="dr_grpo") == [-1.0, 1.0]


def test_groups_are_per_task_run_and_role():
    other, critic = one("e", 8.0, group="h"), one("f", 7.0, role="critic")
    mixed = [other, GROUP[0], critic, *GROUP[1:], one("i", 6.0, group="h"), one("j", 9.0, role="critic")]
    found = group_advantages(mixed, form="dr_grpo")
    assert (found[0], found[-2]) == (1.0, -1.0)
    assert (found[2], found[-1]) == (-1.0, 1.0)
    assert [found[1], *found[3:6]] == group_advantages(GROUP, form="dr_grpo")
    everything = group_advantages(mixed, form="dr_grpo", per=lambda trajectory: trajectory.role)
    assert everything[0] == pytest.approx(8.0 - statistics.mean([8, 1, 0, 0.5, 1, 6]))


@pytest.mark.parametrize("form", FORMS)
def test_equal_rewards_and_single_trajectories_give_zeros(form, caplog):
    assert group_advantages([one(str(n), 0.1) for n in range(3)], form=form) == [0.0] * 3  # the mean is not quite 0.1
    with caplog.at_level(logging.WARNING):
        assert group_advantages([GROUP[0], one("x", 0.0, group="h")], form=form) == [0.0, 0.0]
    assert "all 2 groups have one trajectory that counts" in caplog.text
    assert group_advantages([GROUP[0], one("x", 0.0, **BROKEN)], form=form) == [0.0, None]
    assert group_advantages([], form=form) == []


def test_mistakes_are_told():
    with pytest.raises(ConfigError, match="one of grpo, rloo, dr_grpo, got 'ppo'"):
        group_advantages(GROUP, form="ppo")
    with pytest.raises(ConfigError, match="trajectory x has the reward nan"):
        group_advantages([one("x", float("nan"))])
    with pytest.raises(ConfigError, match="Trajectories, got 'a'"):
        group_advantages("a")
    with pytest.raises(UnknownArgumentError, match="did you mean 'form'"):
        group_advantages(GROUP, forms="rloo")


def test_advantages_of_trajectories_become_those_of_rows():
    several = dataclasses.replace(played([[(1, 0.0)], [(2, 3.0)]], name="x"))
    given = [one("broken", 0.0, **BROKEN), several, one("aborted", 0.0, stop_reason=StopReason.ABORTED), GROUP[0]]
    batch = make_batch(given, pad_token_id=0)
    rows = batch.per_row(given, group_advantages(given, form="dr_grpo"))
    assert batch.ids == ("x/0", "x/1", "aborted", "a")
    assert torch.equal(rows, torch.tensor([1.0, 1.0, 0.0, -1.0]))
    assert torch.equal(batch.select([1, 3]).per_row(given, group_advantages(given, form="dr_grpo")), rows[[1, 3]])
    with pytest.raises(BatchError, match="row 2, 'aborted'"):
        batch.per_row([given[1], given[3]], [1.0, 2.0])
    with pytest.raises(ConfigError, match="4 trajectories need as many values, got 3"):
        batch.per_row(given, [1.0, None, 2.0])


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8), st.sampled_from(FORMS))
def test_a_groups_advantages_add_up_to_zero_in_the_rewards_order(rewards, form):
    made = [one(str(n), reward) for n, reward in enumerate(rewards)]
    found = group_advantages(made, form=form)
    assert sum(found) == pytest.approx(0.0, abs=1e-9)
    for (a, x), (b, y) in itertools.pairwise(zip(rewards, found, strict=True)):
        assert (a - b) * (x - y) >= 0


@pytest.mark.parametrize("form", FORMS)
def test_an_episode_enters_once_however_many_sequences_it_has(form):
    rewards = [1.0, 0.0, 0.25, 0.0, 1.0, 0.5]
    counts = [1, 2, 3, 3, 2, 1]
    several = [
        played([[(2, None)]] * count, reward=reward, name=str(place))
        for place, (count, reward) in enumerate(zip(counts, rewards, strict=True))
    ]
    single = [played([[(2, None)]], reward=reward, name=str(place)) for place, reward in enumerate(rewards)]
    advantages = group_advantages(several, form=form)
    assert advantages == group_advantages(single, form=form)
    batch = make_batch(several, pad_token_id=0)
    per_row = batch.per_row(several, advantages)
    assert per_row.tolist() == pytest.approx(
        [one for one, count in zip(advantages, counts, strict=True) for _ in range(count)]
    )
    rows = batch.trajectory_ids.bincount()[batch.trajectory_ids]
    assert rows.tolist() == [1, 2, 2, 3, 3, 3, 3, 3, 3, 2, 2, 1]
    assert (per_row / rows).sum() == pytest.approx(sum(advantages), abs=1e-5)  # an episode weighs 1 then
