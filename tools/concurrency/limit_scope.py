"""How far a named rate limit reaches: this process, or the Ray cluster that it belongs to."""

from __future__ import annotations

from typing import Literal

from toolgym.tools.concurrency.rate_limit import RateLimiter, global_limiter

LimitScope = Literal["process", "cluster"]
"""`process`: this one. `cluster`: all processes of the job on its Ray cluster, see `RayRateLimiter`."""


def named_limiter(name: str, limit: int, scope: LimitScope) -> RateLimiter:
    """The limiter of that name that all callers in the scope share.

    Raises:
        ConfigError: it exists with another limit.
        ClusterError: the scope is a cluster, and this process is connected to none.
        MissingExtraError: the scope is a cluster, and Ray is not installed.
    """
    if scope == "process":
        return global_limiter(name, limit)
    from toolgym.tools.concurrency.cluster.rate_limit import RayRateLimiter

    return RayRateLimiter(name, limit)
