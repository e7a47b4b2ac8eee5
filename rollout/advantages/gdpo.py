"""`gdpo_advantages`: advantages of several rewards, each normalized within its group before they are added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.advantages.advantages import by_group
from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_keywords


@named_keywords
def gdpo_advantages(
    trajectories: Iterable[Trajectory],
    components: Mapping[str, float],
    *,
    per: Callable[[Trajectory], Hashable] = by_group,
    epsilon: float = 1e-6,
    normalize_batch: bool = True,
) -> list[float | None]:
    """Return the advantage of each trajectory by GDPO, in the order given; None for one that is not `usable`.

    GDPO (Liu et al., arXiv 2601.05242) compares each component of the reward with its own mean and standard deviation
    in the group, adds the results up with their weights, and normalizes the sums over the whole batch. So a component
    with a small spread counts as much as one with a large spread, and two trajectories with the same total reward
    differ if their components do:

    - advantage of component k: a_k = (r_k - mean_group(r_k)) / (std_group(r_k) + epsilon), 0 if all r_k are equal
    - sum: a = sum over k of weight_k * a_k
    - result: (a - mean_batch(a)) / (std_batch(a) + epsilon)

    Standard deviations have n - 1 below the sum, as in `group_advantages`.

    Example:
        >>> gdpo_advantages([], {"correct": 1.0, "format": 0.5})
        []

    Args:
        trajectories: whole groups, in any order.
        components: weights of the components by name: `Score.components` and `add_group_reward(name=)`, which metrics
            have as `score/NAME`, or any other metric. `reward` is the trajectory's whole reward. A trajectory without a
            component, because the policy broke off before it was scored, has 0 for it.
        per: what the trajectories of a group have in common, by default group and role.
        epsilon: added to standard deviations.
        normalize_batch: whether to normalize the sums over all trajectories, as the paper does, so that the size of an
            advantage does not grow with the number of components.

    Raises:
        ConfigError: no trajectory has a component of that name, a value is not a finite number, a weight is not, or a
            trajectory has `peers`, whose components are not known.
    """
    episodes = require_trajectories(trajectories)
    _require_weights(components)
    groups: dict[Hashable, list[int]] = {}
    for index, trajectory in enumerate(episodes):
        if trajectory.usable:
            if trajectory.peers:
                raise ConfigError(
                    f"trajectory {trajectory.id} has peers, of which only the whole reward is known: GDPO cannot "
                    "compare their components. Train on whole groups"
                )
            groups.setdefault(per(trajectory), []).append(index)
    usable = [index for places in groups.values() for index in places]
    sums = np.zeros(len(episodes))
    for name, weight in components.items():
        values = _component(episodes, usable, name)
        for places in groups.values():
            sums[places] += weight * _normalized(values[places], epsilon)
    if normalize_batch and usable:
        sums[usable] = _normalized(sums[usable], epsilon)
    advantages: list[float | None] = [None] * len(episodes)
    for index in usable:
        advantages[index] = float(sums[index])
    return advantages


def _require_weights(components: Mapping[str, float]) -> None:
    if not isinstance(components, Mapping) or not components:
        raise ConfigError(f"components must map names to weights, at least one, got {components!r}")
    for name, weight in components.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ConfigError(f"the weight of {name!r} must be a finite number, got {weight!r}")


def _component(episodes: Sequence[Trajectory], usable: Sequence[int], name: str) -> NDArray[np.float64]:
    """Return a component of all trajectories; 0 for those that are not usable, or lack it."""
    values = np.zeros(len(episodes))
    missing = 0
    for index in usable:
        trajectory = episodes[index]
        metrics: Mapping[str, Any] = {"reward": trajectory.reward, **trajectory.metrics}
        value = metrics.get(f"score/{name}", metrics.get(name))
        if value is None:
            missing += 1
            continue
        try:
            values[index] = float(value)
        except (TypeError, ValueError):
            values[index] = math.nan
        if not math.isfinite(values[index]):
            raise ConfigError(f"trajectory {trajectory.id} has {value!r} for {name!r}, which is not a finite number")
    if usable and missing == len(usable):
        known = sorted({key.removeprefix("score/") for index in usable for key in episodes[index].metrics})
        raise ConfigError(f"no trajectory has the component {name!r}. Known: reward, {', '.join(known)}")
    return values


def _normalized(values: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    if len(values) == 1 or (values == values[0]).all():
        return np.zeros(len(values))
    normalized: NDArray[np.float64] = (values - values.mean()) / (values.std(ddof=1) + epsilon)
    return normalized
