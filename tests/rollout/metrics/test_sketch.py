"""Percentiles to the promised accuracy, in little memory."""

from __future__ import annotations

import random
import statistics

import pytest

from toolgym.rollout.runner.metrics.counts import ACCURACY, Sketch, Spread


@pytest.mark.parametrize("draw", [random.random, lambda: random.paretovariate(1.1), lambda: random.expovariate(1e3)])
def test_percentiles_are_within_the_accuracy(draw):
    random.seed(0)
    numbers = sorted(draw() for _ in range(5000))
    sketch = Sketch()
    for number in numbers:
        sketch.add(number)
    for percent in (1, 50, 90, 99, 100):
        exact = numbers[max(0, round(percent / 100 * 5000) - 1)]
        assert sketch.percentile(percent / 100) == pytest.approx(exact, rel=ACCURACY * 1.001)
    assert sketch.total / sketch.count == pytest.approx(statistics.fmean(numbers))
    assert sketch.most == numbers[-1]
    assert len(list(sketch.cumulated())) < 700
    assert list(sketch.cumulated())[-1][1] == 5000


def test_zero_and_none():
    sketch = Sketch()
    assert (sketch.percentile(0.5), sketch.count) == (0.0, 0)
    sketch.add(0)
    sketch.add(0.0)
    sketch.add(1.0)
    assert sketch.percentile(0.5) == 0.0
    assert sketch.percentile(0.99) == pytest.approx(1.0, rel=ACCURACY * 1.001)


def test_a_spread_is_mean_and_deviation():
    numbers = [random.Random(1).gauss(1e6, 1) for _ in range(100)]
    spread = Spread()
    for number in numbers:
        spread.add(number)
    assert spread.mean == pytest.approx(statistics.fmean(numbers))
    assert spread.std == pytest.approx(statistics.stdev(numbers))
    assert (spread.least, spread.most) == (min(numbers), max(numbers))
