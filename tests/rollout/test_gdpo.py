"""GDPO: advantages of several rewards, each normalized in its group."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest

from tests.rollout.trajectories import played
from toolgym.envs.types import StopReason
from toolgym.rollout.advantages import gdpo_advantages, group_advantages
from toolgym.rollout.trajectory.trajectory import Failure, Peer
from toolgym.tools.errors import ConfigError


def one(name, correct=None, form=None, group="g", **changes):
    parts = {"score/correct": correct, "score/form": form}
    reward = (correct or 0.0) + (form or 0.0)
    metrics = {key: value for key, value in parts.items() if value is not None}
    return dataclasses.replace(played([[(1, reward)]], name=name, group=group), metrics=metrics, **changes)


GROUP = [one("a", 1.0, 0.0), one("b", 0.0, 1.0), one("c", 1.0, 1.0), one("d", 0.0, 0.0)]
OTHER = [one("e", 5.0, 0.1, group="h"), one("f", 3.0, 0.3, group="h")]


def normalized(values):
    return [(value - statistics.mean(values)) / (statistics.stdev(values) + 1e-6) for value in values]


def test_the_advantages_are_those_of_the_paper():
    weights = {"correct": 1.0, "form": 0.5}
    sums = []
    for group in (GROUP, OTHER):
        parts = {name: normalized([each.metrics[f"score/{name}"] for each in group]) for name in weights}
        sums += [sum(weight * parts[name][n] for name, weight in weights.items()) for n in range(len(group))]
    assert gdpo_advantages([*GROUP, *OTHER], weights, normalize_batch=False) == pytest.approx(sums)
    assert gdpo_advantages([*GROUP, *OTHER], weights) == pytest.approx(normalized(sums))


def test_equal_totals_of_other_components_differ():
    members = [one("a", 1.0, 0.0), one("b", 0.0, 1.0), one("c", 0.0, 0.0), one("d", 0.0, 0.0), one("e", 0.0, 1.0)]
    grpo = group_advantages(members)
    gdpo = gdpo_advantages(members, {"correct": 1.0, "form": 1.0})
    assert grpo[0] == grpo[1]
    assert gdpo[0] > gdpo[1] + 0.1, "a rarer success counts for more"


def test_a_component_of_one_weight_is_grpo():
    assert gdpo_advantages(GROUP, {"reward": 1.0}, normalize_batch=False) == pytest.approx(group_advantages(GROUP))


def test_a_component_that_does_not_differ_adds_nothing():
    members = [one("a", 1.0, 0.3), one("b", 0.0, 0.3)]
    assert gdpo_advantages(members, {"form": 1.0}) == [0.0, 0.0]
    assert gdpo_advantages([one("a", 1.0)], {"correct": 1.0}) == [0.0]


def test_what_broke_is_left_out_and_what_was_not_scored_has_0():
    broken = one("x", 9.0, 9.0, stop_reason=StopReason.SANDBOX_FAILED, error=Failure("died", 0))
    cut = one("y", stop_reason=StopReason.LENGTH)
    weights = {"correct": 1.0, "form": 1.0}
    advantages = gdpo_advantages([*GROUP, broken, cut], weights)
    assert advantages[4] is None
    assert [*advantages[:4], advantages[5]] == gdpo_advantages([*GROUP, one("y", 0.0, 0.0)], weights)


@pytest.mark.parametrize("weights", [{}, [], {"correct": "1"}, {"correct": math.nan}, {"correct": True}])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(ConfigError, match="weight"):
        gdpo_advantages(GROUP, weights)


def test_wrong_values_are_refused():
    with pytest.raises(ConfigError, match="no trajectory has the component 'corect'. Known: reward, correct, form"):
        gdpo_advantages(GROUP, {"corect": 1.0})
    with pytest.raises(ConfigError, match="trajectory z has nan for 'form'"):
        gdpo_advantages([*GROUP, one("z", 1.0, math.nan)], {"form": 1.0})
    with pytest.raises(ConfigError, match="has peers"):
        gdpo_advantages([dataclasses.replace(GROUP[0], peers=(Peer("p", 1.0),)), *GROUP[1:]], {"form": 1.0})


def test_nothing_gives_nothing():
    assert gdpo_advantages([], {"correct": 1.0}) == []
