"""Estimators against closed forms, published formulas, tables of statistics and simulation."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from toolgym.report.estimators import (
    estimate_mean,
    means_by_task,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    t_quantile,
    wilson_interval,
)
from toolgym.tools.errors import ConfigError


@pytest.mark.parametrize("episodes", range(1, 8))
def test_pass_rates_are_the_means_over_all_choices_of_k_episodes(episodes):
    for successes in range(episodes + 1):
        outcomes = [True] * successes + [False] * (episodes - successes)
        for k in range(1, episodes + 1):
            choices = list(itertools.combinations(outcomes, k))
            assert pass_at_k(episodes, successes, k) == pytest.approx(sum(map(any, choices)) / len(choices))
            assert pass_hat_k(episodes, successes, k) == pytest.approx(sum(map(all, choices)) / len(choices))


def human_eval(n, c, k):
    """`estimate_pass_at_k` as human-eval publishes it."""
    return 1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))


def test_pass_at_k_is_that_of_human_eval():
    for n, c, k in itertools.product((1, 5, 100, 200), (0, 1, 4, 50, 199), (1, 5, 10, 100)):
        if c <= n and k <= n:
            assert pass_at_k(n, c, k) == pytest.approx(human_eval(n, c, k), abs=1e-12)


def test_fewer_than_k_episodes_give_no_pass_rate():
    assert human_eval(2, 0, 4) == 1.0  # what its caller must guard against
    assert pass_at_k(2, 0, 4) is pass_hat_k(2, 2, 4) is None
    estimate = estimate_mean([("a", pass_at_k(2, 0, 4)), ("b", pass_at_k(3, 3, 4))], proportion=True)
    assert (estimate.value, estimate.low, estimate.left_out) == (None, None, 2)
    assert estimate.why == "too few episodes that count"


@pytest.mark.parametrize(("episodes", "successes", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 1.5)])
def test_impossible_counts_are_errors(episodes, successes, k):
    for estimator in (pass_at_k, pass_hat_k):
        with pytest.raises(ConfigError):
            estimator(episodes, successes, k)


@pytest.mark.parametrize(
    ("part", "freedom", "quantile"),
    [
        (0.975, 1, 12.7062047), (0.975, 2, 4.3026527), (0.975, 3, 3.1824463), (0.975, 4, 2.7764451),
        (0.975, 10, 2.2281389), (0.975, 30, 2.0422725), (0.995, 7, 3.4994833), (0.95, 99, 1.6603912),
        (0.5, 5, 0.0), (0.975, 1_000_000, 1.9599664),
    ],
)  # fmt: skip
def test_quantiles_of_t_are_those_of_the_tables(part, freedom, quantile):
    assert t_quantile(part, freedom) == pytest.approx(quantile, abs=2e-7)


def test_quantiles_of_t_go_down_to_that_of_the_normal_distribution():
    quantiles = [t_quantile(0.975, freedom) for freedom in (*range(1, 120), 500, 10_000, 1_000_000)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert quantiles[-1] > 1.959963984


def test_wilsons_interval_is_the_published_one():
    assert wilson_interval(0.0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson_interval(0.5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert wilson_interval(1.0, 50) == pytest.approx((0.92865, 1.0), abs=1e-5)


def test_a_mean_of_equally_many_samples_a_task_has_the_t_interval_of_the_tasks_means():
    values = [("a", 0.0), ("a", 1.0), ("b", 2.0), ("b", 2.0), ("c", -1.0), ("c", 4.0)]
    means = np.array([0.5, 2.0, 1.5])
    half = t_quantile(0.975, 2) * means.std(ddof=1) / math.sqrt(3)
    estimate = estimate_mean(values)
    assert (estimate.value, estimate.tasks, estimate.samples) == (pytest.approx(means.mean()), 3, 6)
    assert (estimate.low, estimate.high) == pytest.approx((means.mean() - half, means.mean() + half))


def test_ten_copies_of_each_sample_make_no_interval_narrower():
    values = [(task, float(task % 3)) for task in range(12)]
    single, copied = estimate_mean(values), estimate_mean(values * 10)
    assert (single.low, single.high) == pytest.approx((copied.low, copied.high))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_proportion_at_its_end_has_an_interval_of_as_many_values_as_tasks(value):
    estimate = estimate_mean([(task, value) for task in range(20) for _ in range(8)], proportion=True)
    assert (estimate.low, estimate.high) == wilson_interval(value, 20)
    assert estimate.high - estimate.low > 0.1


def test_no_interval_is_invented():
    single = estimate_mean([("a", 1.0), ("a", 3.0)])
    assert (single.value, single.low, single.why) == (2.0, None, "a single task, so it has no interval")
    equal = estimate_mean([("a", 0.1 + 0.2), ("b", 0.3), ("c", 0.3)])
    assert (equal.low, equal.why) == (None, "the 3 tasks do not differ in it, so it has no interval")
    assert estimate_mean([]).value is None


@pytest.mark.parametrize(("value", "proportion"), [(math.nan, False), (math.inf, False), (1.1, True), (math.nan, True)])
def test_values_without_a_mean_are_errors(value, proportion):
    with pytest.raises(ConfigError, match="expected"):
        estimate_mean([("a", 0.5), ("b", value)], proportion=proportion)


def test_policies_are_compared_on_the_tasks_that_both_have():
    first = means_by_task([("a", 0.0), ("a", 1.0), ("b", 1.0), ("c", None), ("d", 0.0)])
    assert first == {"a": 0.5, "b": 1.0, "d": 0.0}
    difference = paired_difference(first, {"a": 1.0, "b": 1.0, "d": 1.0, "e": 0.0, "f": 0.0})
    each = np.array([0.5, 0.0, 1.0])
    half = t_quantile(0.975, 2) * each.std(ddof=1) / math.sqrt(3)
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half))
    assert (difference.tasks, difference.dropped) == (3, (0, 2))
    assert paired_difference({"a": 1.0}, {"b": 1.0}).why == "the runs share no task"
    equal = paired_difference({"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 1.0})
    assert (equal.value, equal.low) == (0.0, None)


def coverage(tasks, episodes, k, alpha, beta, every, runs):
    """How often the interval of a pass rate holds the truth, and the mean of its values less the truth."""
    draw = np.random.default_rng(tasks + k)
    chances = draw.beta(alpha, beta, 400_000)
    truth = float((chances**k).mean() if every else (1 - (1 - chances) ** k).mean())
    holds, total = 0, 0.0
    for _ in range(runs):
        right = draw.binomial(episodes, draw.beta(alpha, beta, tasks))
        rate = pass_hat_k if every else pass_at_k
        pairs = [(task, rate(episodes, count, k)) for task, count in enumerate(right.tolist())]
        estimate = estimate_mean(pairs, proportion=True)
        holds += estimate.low <= truth <= estimate.high
        total += estimate.value - truth
    return holds / runs, total / runs


CASES = [
    (10, 8, 1, 0.5, 0.5, False),
    (10, 8, 4, 0.5, 0.5, False),
    (30, 8, 4, 0.5, 0.5, False),
    (20, 4, 1, 0.2, 4.0, False),
    (100, 8, 4, 0.5, 0.5, False),
    (30, 8, 4, 0.5, 0.5, True),
]


def test_an_interval_holds_the_truth_nearly_as_often_as_it_says():
    covered, bias = coverage(30, 8, 4, 0.5, 0.5, False, 300)
    assert 0.89 < covered < 0.99
    assert abs(bias) < 0.02


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_intervals_hold_the_truth_nearly_as_often_as_they_say(case):
    covered, bias = coverage(*case, runs=2_000)
    assert 0.88 < covered < 0.985
    assert abs(bias) < 0.005


@pytest.mark.long
def test_intervals_of_paired_differences_hold_the_truth():
    draw, holds = random.Random(1), 0
    for _ in range(2_000):
        first = {task: draw.gauss(0, 1) for task in range(12)}
        second = {task: value + 0.3 + draw.gauss(0, 0.5) for task, value in first.items()}
        difference = paired_difference(first, second)
        holds += difference.low <= 0.3 <= difference.high
    assert 0.935 < holds / 2_000 < 0.965
