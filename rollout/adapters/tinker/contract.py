"""Names of tinker-cookbook, and the error if it is not installed."""

from __future__ import annotations

from toolgym.rollout.adapters.versions import needs

with needs("tinker-cookbook", "The adapter for tinker-cookbook"):
    import chz as chz
    import tinker as tinker
    from tinker_cookbook.completers import TokensWithLogprobs as TokensWithLogprobs
    from tinker_cookbook.rl import types as types
    from tinker_cookbook.rl.rollout_limits import RolloutLimits as RolloutLimits
