"""The runner on several machines: episodes in Ray actors, trajectories as they finish. See docs/ray.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolgym.tools.lazy import lazy_names

if TYPE_CHECKING:
    from toolgym.rollout.runner.ray.engine import EngineActor as EngineActor
    from toolgym.rollout.runner.ray.engine import RayEngine as RayEngine
    from toolgym.rollout.runner.ray.runner import RayRunner as RayRunner
    from toolgym.tools.concurrency.cluster.rate_limit import RayRateLimiter as RayRateLimiter
else:
    __getattr__, __dir__ = lazy_names(__name__)
