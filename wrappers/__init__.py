"""Layer 3: one change to an env each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.wrappers.base import Compose as Compose
    from toolgym.wrappers.base import Wrapper as Wrapper
    from toolgym.wrappers.compact import Compact as Compact
    from toolgym.wrappers.limits import Limit as Limit
    from toolgym.wrappers.limits import TimeLimit as TimeLimit
    from toolgym.wrappers.limits import TokenBudget as TokenBudget
    from toolgym.wrappers.limits import TurnLimit as TurnLimit
    from toolgym.wrappers.observations import RewriteObservations as RewriteObservations
    from toolgym.wrappers.observations import TruncateResults as TruncateResults
    from toolgym.wrappers.rate_limit import RateLimit as RateLimit
    from toolgym.wrappers.record import Record as Record
    from toolgym.wrappers.retry_on_infra_error import RetryOnInfraError as RetryOnInfraError
    from toolgym.wrappers.rewards import FormatPenalty as FormatPenalty
    from toolgym.wrappers.rewards import ShapeReward as ShapeReward
else:
    __getattr__, __dir__ = lazy_names(__name__)
