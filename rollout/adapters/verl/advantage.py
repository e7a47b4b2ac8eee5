"""`toolgym_grpo`: verl's GRPO advantage, from which failed episodes stay out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from toolgym.rollout.adapters.versions import needs

with needs("verl", "An advantage of verl"):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage


def grpo_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's GRPO advantage and returns, where rows without a trained token enter no group's mean and deviation.

    Such a row is an episode that failed: verl has to be given some reward of it, and 0 would pull the others' up.
    Where every row has a trained token, this is verl's `grpo` to the bit.

    Args:
        token_level_rewards: float32 `[batch, response]`.
        response_mask: `[batch, response]`.
        index: `[batch]`, the group of each row.
        config: verl's `algorithm`; `norm_adv_by_std_in_grpo` is read.

    Returns:
        Advantages and returns, both float32 `[batch, response]`; 0 in the rows that were left out.
    """
    counts = response_mask.bool().any(dim=-1)
    advantages, returns = torch.zeros_like(token_level_rewards), torch.zeros_like(token_level_rewards)
    if counts.any():
        normalised = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
        advantages[counts], returns[counts] = compute_grpo_outcome_advantage(
            token_level_rewards=token_level_rewards[counts],
            response_mask=response_mask[counts],
            index=np.asarray(index)[counts.numpy(force=True)],
            norm_adv_by_std_in_grpo=normalised,
        )
    return advantages, returns
