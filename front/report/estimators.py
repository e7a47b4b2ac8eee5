"""Estimates over tasks with intervals: means, pass@k, pass^k, and what two policies differ by on the same tasks.

The unit of every interval is the task, since samples of one task are not independent of each other (Miller, 2024, arXiv
2411.00640). docs/report.md has the formulas, their sources, and how often the intervals hold.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

import numpy as np

from toolgym.tools.errors import ConfigError, require_whole_number

CONFIDENCE = 0.95
_ROUNDING = 1e-12  # a standard error below this, as a part of the values, is what rounding leaves of none


@dataclass(frozen=True)
class Estimate:
    """The mean of `samples` values with its interval over `tasks`; what is None has its reason in `why`.

    `left_out` are values that were None, such as pass@k of a task with fewer than k episodes. `dropped` are the tasks
    that only the first policy of a comparison has, and those that only the second has."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    tasks: int = 0
    samples: int = 0
    left_out: int = 0
    dropped: tuple[int, int] = (0, 0)
    why: str = ""


def pass_at_k(episodes: int, successes: int, k: int) -> float | None:
    """The chance that one of k episodes succeeds, without bias: 1 - C(n-c, k) / C(n, k) from c successes in n episodes
    (Chen et al., 2021, arXiv 2107.03374). None from fewer than k episodes."""
    all_fail = pass_hat_k(episodes, episodes - successes, k)
    return None if all_fail is None else 1 - all_fail


@functools.lru_cache(maxsize=65_536)
def pass_hat_k(episodes: int, successes: int, k: int) -> float | None:
    """The chance that all k episodes succeed (pass^k), without bias: C(c, k) / C(n, k) from c successes in n episodes
    (Yao et al., 2024, arXiv 2406.12045). None from fewer than k episodes."""
    require_whole_number("k", k, at_least=1)
    if not 0 <= successes <= episodes:
        raise ConfigError(f"expected from 0 to {episodes} of {episodes} episodes to succeed, got {successes}")
    return math.comb(successes, k) / math.comb(episodes, k) if k <= episodes else None


def estimate_mean(values: Iterable[tuple[Hashable, float | None]], *, proportion: bool = False) -> Estimate:
    """Estimate the mean of values that come with their tasks. Raises ConfigError for a value that is not finite.

    The standard error is that of the tasks' sums (clustered, times T / (T - 1) for T tasks). The interval is Student's
    t with T - 1 degrees of freedom; for a `proportion`, of values from 0 to 1, Wilson's with as many independent values
    as would have that standard error: it stays within 0 and 1, and is not empty at either end."""
    pairs = list(values)
    known = [(task, float(value)) for task, value in pairs if value is not None]
    left_out = len(pairs) - len(known)
    if not known:
        return Estimate(left_out=left_out, why="too few episodes that count")
    if not all(0 <= value <= 1 if proportion else math.isfinite(value) for _, value in known):
        raise ConfigError(f"expected {'values from 0 to 1' if proportion else 'finite values'} to take the mean of")
    mean, sums = fmean(value for _, value in known), dict[Hashable, float]()
    for task, value in known:
        sums[task] = sums.get(task, 0.0) + value - mean
    count, low, high, why = len(sums), None, None, ""
    error = math.sqrt(sum(off * off for off in sums.values()) * count / max(count - 1, 1)) / len(known)
    certain = error <= _ROUNDING * max(1.0, *(abs(value) for _, value in known))
    if count < 2:
        why = "a single task, so it has no interval"
    elif proportion:
        low, high = wilson_interval(mean, count if certain else mean * (1 - mean) / error**2)
    elif certain:
        why = f"the {count} tasks do not differ in it, so it has no interval"
    else:
        half = t_quantile((1 + CONFIDENCE) / 2, count - 1) * error
        low, high = mean - half, mean + half
    return Estimate(mean, low, high, count, len(known), left_out, why=why)


def means_by_task(values: Iterable[tuple[Hashable, float | None]]) -> dict[Hashable, float]:
    """Return the mean of each task's values; None is left out."""
    of_task: dict[Hashable, list[float]] = {}
    for task, value in values:
        if value is not None:
            of_task.setdefault(task, []).append(value)
    return {task: fmean(numbers) for task, numbers in of_task.items()}


def paired_difference(first: Mapping[Hashable, float], second: Mapping[Hashable, float]) -> Estimate:
    """Estimate a second policy's mean minus a first one's over the tasks that both have a mean of."""
    each = [(task, second[task] - first[task]) for task in first if task in second]
    estimate = estimate_mean(each)
    dropped = len(first) - len(each), len(second) - len(each)
    return replace(estimate, dropped=dropped, why=estimate.why if each else "the runs share no task")


def wilson_interval(proportion: float, count: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion of `count` independent values (Wilson, 1927)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    below = 1 + z * z / count
    middle = (proportion + z * z / (2 * count)) / below
    half = z * math.sqrt(proportion * (1 - proportion) / count + (z / (2 * count)) ** 2) / below
    return max(0.0, middle - half), min(1.0, middle + half)


@functools.cache
def t_quantile(part: float, freedom: int) -> float:
    """The number that this part (0.5 to below 1) of Student's t distribution does not exceed, to 1e-7 of itself."""
    # With t = tan(angle) * sqrt(freedom), the density is proportional to cos(angle) ** (freedom - 1).
    last = math.pi / 2 if freedom < 100 else math.atan(40 / math.sqrt(freedom))
    angles = np.linspace(0, last, 1 << 17)
    density = np.cos(angles) ** (freedom - 1)
    below = np.cumsum(density) - (density + 1) / 2
    return math.tan(np.interp((2 * part - 1) * below[-1], below, angles)) * math.sqrt(freedom)
