"""`toolgym_grpo`: verl's GRPO advantage over episodes, from which failed ones stay out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from toolgym.rollout.adapters.verl.plugin import ADVANTAGE_NAME
from toolgym.rollout.adapters.versions import needs

with needs("verl", "An advantage of verl"):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage


def grpo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    config: Any = None,
    keys: Sequence[str] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute verl's GRPO advantage and returns, with a group's mean and deviation of the episodes that count only.

    A row without a trained token is an episode that failed: verl has to be given some reward of it, and 0 would pull
    the others' up; its advantage is 0. An episode of several rows enters once, with its last one, as in verl's own
    `grpo`, and all of them get its advantage. If every row is an episode with a trained token, this is verl's `grpo` to
    the bit.

    Rewards are float32 `[batch, response]`, as the results, `index` is the group of each row, and `keys`, see
    `with_keys`, are `{uid}_{session}_{number}` of each row; None: each row is an episode.
    """
    advantages = torch.zeros_like(token_level_rewards)
    rows = response_mask.bool().any(dim=-1).nonzero()[:, 0].tolist()
    if rows:
        names = [str(row) if keys is None else keys[row].rpartition("_")[0] for row in rows]
        numbers = [0 if keys is None else int(keys[row].rpartition("_")[2]) for row in rows]
        last = {name: row for _, name, row in sorted(zip(numbers, names, rows, strict=True))}
        chosen = [last[name] for name in dict.fromkeys(names)]
        of_episodes, _ = compute_grpo_outcome_advantage(
            token_level_rewards=token_level_rewards[chosen],
            response_mask=torch.ones_like(response_mask[chosen]),
            index=np.asarray(index)[chosen],
            norm_adv_by_std_in_grpo=True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True)),
        )
        places = {row: place for place, row in enumerate(chosen)}
        advantages[rows] = of_episodes[[places[last[name]] for name in names]] * response_mask[rows]
    return advantages, advantages


def with_keys(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap verl's `compute_advantage_for_multi_trajectories`, which tells no custom estimator whose the rows are."""

    @functools.wraps(compute)
    def computed(data: Any, batch_keys: Sequence[str], adv_estimator: Any, **settings: Any) -> Any:
        if adv_estimator != ADVANTAGE_NAME:
            return compute(data, batch_keys=batch_keys, adv_estimator=adv_estimator, **settings)
        data.batch["advantages"], data.batch["returns"] = grpo_advantage(
            data.batch["token_level_rewards"],
            data.batch["response_mask"],
            data.non_tensor_batch["uid"],
            settings.get("config"),
            keys=batch_keys,
        )
        return data

    return computed
