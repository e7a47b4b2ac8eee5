"""Rewards on tokens, rewards of a group, and advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.advantages.advantages import group_advantages as group_advantages
    from toolgym.rollout.advantages.gdpo import gdpo_advantages as gdpo_advantages
    from toolgym.rollout.advantages.group_rewards import add_group_reward as add_group_reward
    from toolgym.rollout.advantages.group_rewards import diversity_reward as diversity_reward
    from toolgym.rollout.advantages.group_rewards import pairwise_reward as pairwise_reward
    from toolgym.rollout.advantages.reward_placement import token_rewards as token_rewards
else:
    __getattr__, __dir__ = lazy_names(__name__)
