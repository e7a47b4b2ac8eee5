"""`RayRateLimiter`: a rate limit that all processes of a Ray cluster share."""

from __future__ import annotations

import contextlib
import threading
import weakref
from functools import partial
from typing import Any

from toolgym.tools.concurrency.cluster.client import LimiterClient, job
from toolgym.tools.concurrency.rate_limit import Lease, RateLimiter
from toolgym.tools.errors import ClusterError, ConfigError, check_seconds

LEASE_SECONDS = 10.0
"""Seconds after a process's last sign of life until its permits are free again. It gives one every two seconds."""


class RayRateLimiter(RateLimiter):
    """Permits of a name, for all processes of a job on a Ray cluster, first come, first served.

    A named actor holds the limit; it starts with the first process that asks, and ends a minute after the last. Permits
    of a process that dies are free after `lease_seconds`; so are those of one that is cut off for that long. A process
    that comes back then keeps what it holds, and the next permits that are given back go to nothing until the limit
    holds again. Where the actor's machine dies, the actor starts on another one, hears from each process what it
    holds, and grants nothing in the first five seconds.

    Args:
        name: of the limit. Limits of different names have nothing to do with each other.
        limit: how many permits there are.
        namespace: Ray's, in which the name is unique; None: the job's, so that other jobs on the cluster have limits of
            their own. Give one to share a limit among jobs.
        lease_seconds: see above; at least 1.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: the limit exists and is another, or an argument is of the wrong kind.
        ClusterError: this process is not connected to Ray, or the actor cannot be started.

    Example:
        limiter = RayRateLimiter("search", 120)
        async with limiter.permit():
            ...
    """

    def __init__(
        self, name: str, limit: int, *, namespace: str | None = None, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a rate limit of a cluster needs a name, got {name!r}")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ConfigError(f"a rate limit must be a whole number of at least 1, got {limit!r}")
        check_seconds(lease_seconds=lease_seconds)
        if lease_seconds < 1:
            raise ConfigError(f"lease_seconds must be at least 1, got {lease_seconds!r}")
        if job() is None:
            raise ClusterError(
                f"the rate limit {name!r} is one of a Ray cluster, and this process is connected to none: call "
                "ray.init first, or use a limit of the process"
            )
        self.name, self.limit, self.namespace, self.lease_seconds = name, limit, namespace, lease_seconds
        self._client, leave = _join(name, namespace, limit, lease_seconds)
        weakref.finalize(self, leave)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is the same limit."""
        return partial(RayRateLimiter, namespace=self.namespace, lease_seconds=self.lease_seconds), (
            self.name,
            self.limit,
        )

    async def acquire(self) -> Lease:
        """See `RateLimiter.acquire`. Raises `ClusterError` where the actor has not answered for half a minute."""
        number = await self._client.acquire()
        return Lease(partial(self._release, number))  # refers to this object: while a permit is held, it lives

    def _release(self, number: int) -> None:
        self._client.release(number)


_Key = tuple[str, str, str]
_clients: dict[_Key, tuple[LimiterClient, int]] = {}
_lock = threading.RLock()


def _join(name: str, namespace: str | None, limit: int, lease_seconds: float) -> tuple[LimiterClient, Any]:
    """This process's client of a limit, and what tells it that one user less is there."""
    job_namespace, job_id = job() or ("", "")
    where = f"toolgym {job_namespace}" if namespace is None else namespace
    key = (name, where, job_id)
    with _lock:
        client, users = _clients.get(key, (None, 0))
        if client is None or client.stopped:
            client = LimiterClient(name, where, limit, lease_seconds)
            client.start()
        elif client.limit != limit:
            raise ConfigError(
                f"the rate limit {name!r} of this cluster is already {client.limit}, and {limit} was asked for; use "
                "the same limit everywhere, or another name"
            )
        _clients[key] = client, users + 1
    return client, partial(_leave, key)


def _leave(key: _Key) -> None:
    with _lock, contextlib.suppress(KeyError):
        client, users = _clients.pop(key)
        if users > 1:
            _clients[key] = client, users - 1
        else:
            client.stop()
