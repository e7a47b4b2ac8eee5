"""`group_advantages`: how much better than its group each trajectory was."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from toolgym.rollout.trajectory.trajectory import Trajectory, require_trajectories
from toolgym.tools.errors import ConfigError
from toolgym.tools.keywords import named_keywords

AdvantageForm = Literal["grpo", "rloo", "dr_grpo"]

FORMS: tuple[AdvantageForm, ...] = get_args(AdvantageForm)

log = logging.getLogger("toolgym.rollout.advantages.advantages")


def by_group(trajectory: Trajectory) -> Hashable:
    return trajectory.group_id, trajectory.role


def grouped(trajectories: Iterable[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[Hashable, list[Trajectory]] = {}
    for trajectory in require_trajectories(trajectories):
        groups.setdefault(by_group(trajectory), []).append(trajectory)
    return list(groups.values())


@named_keywords
def group_advantages(
    trajectories: Iterable[Trajectory],
    *,
    form: AdvantageForm = "grpo",
    per: Callable[[Trajectory], Hashable] = by_group,
    epsilon: float = 1e-6,
) -> list[float | None]:
    """The advantage of each trajectory over its group, in the order given; None for one that is not `usable`.

    Those that are not usable have no part in the statistics of their group. A branch counts like any other trajectory
    (see docs/trees.md). `Batch.per_row` makes values of a batch's rows of the list.

    With r a trajectory's reward, and n rewards in its group:

    - `grpo`: (r - mean) / (s + epsilon), where s is the standard deviation with n - 1 below the sum, as in torch, verl
      and TRL (Shao et al., arXiv 2402.03300).
    - `dr_grpo`: r - mean. No division makes much of groups that hardly differ (Liu et al., arXiv 2503.20783).
    - `rloo`: r - the mean of the n - 1 others (Ahmadian et al., arXiv 2402.14740).

    A member that came after its group was whole (`Trajectory.peers`) is compared with that group. All are exactly 0 if
    a group's rewards are equal, or if only one counts; if all of several groups are of the second kind, it warns.

    Args:
        trajectories: whole groups, in any order.
        form: see above.
        per: what the trajectories of a group have in common, by default group and role; `lambda member: (member.source,
            member.task_id, member.role)` pools the runs of a task.
        epsilon: see `grpo`.

    Raises:
        ConfigError: `trajectories` holds something else, `form` is unknown, or a reward that counts is not finite.
    """
    if form not in FORMS:
        raise ConfigError(f"the form of advantages is one of {', '.join(FORMS)}, got {form!r}")
    episodes = require_trajectories(trajectories)
    groups: dict[Hashable, list[int]] = {}
    for index, trajectory in enumerate(episodes):
        if trajectory.usable:
            if not math.isfinite(trajectory.reward):
                raise ConfigError(
                    f"trajectory {trajectory.id} has the reward {trajectory.reward!r}, which is not finite"
                )
            groups.setdefault(per(trajectory), []).append(index)
    if len(groups) > 1 and max(map(len, groups.values())) == 1:
        log.warning(
            "all %d groups have one trajectory that counts, so all advantages are 0: sample more than one of a task "
            "(group_size)", len(groups),
        )  # fmt: skip
    advantages: list[float | None] = [None] * len(episodes)
    for places in groups.values():
        members = [episodes[index] for index in places]
        known = {member.id for member in members}
        peers = {peer.id: peer.reward for member in members if per is by_group for peer in member.peers}
        others = [reward for id, reward in peers.items() if id not in known]
        rewards = np.array([*(member.reward for member in members), *others], dtype=np.float64)
        for index, advantage in zip(places, _advantages(rewards, form, epsilon).tolist(), strict=False):
            advantages[index] = advantage
    return advantages


def _advantages(rewards: NDArray[np.float64], form: AdvantageForm, epsilon: float) -> NDArray[np.float64]:
    count = len(rewards)
    if count == 1 or (rewards == rewards[0]).all():  # not left to rounding: the mean of equal rewards may differ
        return np.zeros(count)
    better: NDArray[np.float64] = rewards - rewards.mean()
    if form == "grpo":
        better /= rewards.std(ddof=1) + epsilon
    elif form == "rloo":
        better *= count / (count - 1)
    return better
