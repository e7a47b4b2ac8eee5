"""Functions for slime's own hooks, which keep episodes without a reward out of slime's statistics."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolgym.rollout.adapters.slime.samples import METADATA
from toolgym.tools.errors import BatchError

if TYPE_CHECKING:
    from argparse import Namespace

    from slime.utils.types import Sample

log = logging.getLogger("toolgym.rollout.adapters.slime")

_DIVIDED = ("grpo", "gspo", "cispo")
_CENTRED = (*_DIVIDED, "reinforce_plus_plus_baseline")
EPSILON = 1e-6
"""slime's own, below the standard deviation."""


def post_process_rewards(args: Namespace, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Return the rewards as they are, and as slime trains on them: for `--custom-reward-post-process-path`.

    The same numbers as slime's own (`RolloutManager._post_process_rewards`), but that an episode counts once however
    many samples it has, and one that the infrastructure broke off does not count: it gets 0, and among the raw rewards,
    of which slime plots the mean, the mean of the others. If all rewards that count in a group are equal, they become
    0. Raises BatchError, with field and row, if a sample has no group, or no number.
    """
    rewards = [float(sample.get_reward_value(args)) for sample in samples]
    counted = [reward for reward, sample in zip(rewards, samples, strict=True) if is_usable(sample)]
    mean = sum(counted) / max(len(counted), 1)
    raw = [reward if is_usable(sample) else mean for reward, sample in zip(rewards, samples, strict=True)]
    if not (args.rewards_normalization and args.advantage_estimator in _CENTRED):
        return raw, rewards
    groups: dict[int, dict[Any, list[int]]] = {}
    for row, sample in enumerate(samples):
        for name in ("group_index", "index"):
            if getattr(sample, name) is None:
                raise BatchError(f"field {name} of row {row} is None, so it is not known what its reward belongs to")
        episode = sample.index if sample.rollout_id is None else sample.rollout_id
        if is_usable(sample):
            groups.setdefault(sample.group_index, {}).setdefault(episode, []).append(row)
    rewards = [0.0] * len(samples)
    for episodes in groups.values():
        values = np.array([raw[rows[0]] for rows in episodes.values()])
        if (values == values[0]).all():
            continue
        better = values - values.mean()
        if args.grpo_std_normalization and args.advantage_estimator in _DIVIDED:
            better /= values.std(ddof=1) + EPSILON
        for rows, value in zip(episodes.values(), better.tolist(), strict=True):
            for row in rows:
                rewards[row] = value
    return raw, rewards


def log_eval_rollout(
    rollout_id: int, args: Namespace, data: dict[str, dict[str, Any]], extra_metrics: Mapping[str, Any] | None
) -> bool:
    """Take what has no reward out of an evaluation, with a warning, and let slime log the rest; returns False.

    For `--custom-eval-rollout-log-function-path`. If slime computes pass@k, which needs whole groups, the whole group
    of such an episode is taken out. Of an episode with several samples the first one stays.
    """
    for name in list(data):
        samples: list[Sample] = data[name]["samples"]
        size = args.n_samples_per_eval_prompt if getattr(args, "log_passrate", False) else 1
        out = {sample.index // size for sample in samples if not is_usable(sample)}
        first = {sample.index: row for row, sample in reversed(list(enumerate(samples)))}
        kept = sorted(row for index, row in first.items() if index // size not in out)
        if out:
            log.warning(
                "eval %s, rollout %s: %d of %d episodes have no reward or belong to a group with one that has none, "
                "and are left out", name, rollout_id, len(first) - len(kept), len(first),
            )  # fmt: skip
        if not kept:
            del data[name]
        else:
            data[name] = {field: [values[row] for row in kept] for field, values in data[name].items()}
    return False


def is_usable(sample: Sample) -> bool:
    """See `Trajectory.usable`; samples that were made elsewhere are, unless they were aborted."""
    about = (sample.metadata or {}).get(METADATA)
    return about["usable"] if isinstance(about, Mapping) else sample.status is not type(sample).Status.ABORTED
