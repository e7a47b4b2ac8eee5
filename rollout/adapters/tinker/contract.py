"""What the adapter uses of tinker-cookbook, and the error where that is not installed."""

from __future__ import annotations

from toolgym.tools.errors import missing_package

try:
    import chz as chz
    import tinker as tinker
    from tinker_cookbook.completers import TokensWithLogprobs as TokensWithLogprobs
    from tinker_cookbook.rl import types as types
    from tinker_cookbook.rl.rollout_limits import RolloutLimits as RolloutLimits
except ImportError as error:
    raise missing_package("tinker-cookbook", "The adapter for tinker-cookbook", error) from error
