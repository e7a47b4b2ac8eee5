"""Which of several equal servers takes a request, and which of them answer.

A trajectory's requests share an affinity and stick to one replica, for its prefix cache. A new affinity goes to the
replica with the least in flight, of what this client knows. Stickiness breaks when a trajectory's own replica is
overloaded (the thresholds of `sglang-router` by the same names) or is not healthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence

from toolgym.rollout.engines.sglang.http import HttpAddress, NoAnswerError, ServerLostError
from toolgym.tools.errors import EngineError, EngineUnavailableError

log = logging.getLogger(__name__)

MAX_AFFINITIES = 65_536
"""Most affinities remembered; the one that was used longest ago is forgotten first, and costs one prefill."""
HEALTH_FAILURES = 3
"""Health checks in a row without a good answer that take a replica out, while another is healthy. One refused
connection is enough."""
FIRST_RETRY = 0.25
"""Seconds until a lost replica is asked for the first time; doubles each time, up to the interval."""


class ReplicaState(enum.StrEnum):
    """Whether a replica takes requests."""

    HEALTHY = "healthy"
    """It does."""
    UNHEALTHY = "unhealthy"
    """It does not answer; health checks find out when it does again."""
    OUTDATED = "outdated"
    """It answers, but came back with other weights than the rest; it waits for the next update of the weights."""


class SGLangReplica(HttpAddress):
    """One server, its state and its load.

    Attributes:
        state: whether it takes requests.
        why: what made it leave, for error messages.
        requests: requests in flight that this client sent there.
        tokens: their prompt tokens and most new tokens.
        assigned: affinities that were ever sent there.
    """

    def __init__(self, url: str, connect_timeout: float) -> None:
        super().__init__(url, connect_timeout)
        self.state = ReplicaState.HEALTHY
        self.why = ""
        self.requests = 0
        self.tokens = 0
        self.assigned = 0
        self.failures = 0
        self.wake = asyncio.Event()
        self.gone = asyncio.Event()

    @contextlib.contextmanager
    def carrying(self, tokens: int) -> Iterator[None]:
        """Count a request while it is in flight."""
        self.requests += 1
        self.tokens += tokens
        try:
            yield
        finally:
            self.requests -= 1
            self.tokens -= tokens


class SGLangReplicas:
    """The replicas of one engine.

    Args:
        replicas: at least one.
        check: asks a replica whether it is healthy; raises EngineError where it is not.
        readmit: prepares a replica that answers again, and returns the state that it comes back with.
        health_interval: seconds between two checks of a replica.
        unavailable_timeout: seconds that a request waits for a healthy replica.
        balance_abs_threshold: requests that a trajectory's replica may have in flight beyond the least loaded one's.
        balance_rel_threshold: how many times the least loaded one's requests it may have; both must be exceeded.
    """

    def __init__(
        self,
        replicas: Sequence[SGLangReplica],
        *,
        check: Callable[[SGLangReplica], Awaitable[None]],
        readmit: Callable[[SGLangReplica], Awaitable[ReplicaState]],
        health_interval: float,
        unavailable_timeout: float,
        balance_abs_threshold: int,
        balance_rel_threshold: float,
    ) -> None:
        self.all = list(replicas)
        self._check, self._readmit = check, readmit
        self._health_interval = health_interval
        self._unavailable_timeout = unavailable_timeout
        self._abs, self._rel = balance_abs_threshold, balance_rel_threshold
        self._assignments: OrderedDict[str, SGLangReplica] = OrderedDict()
        self._changed = asyncio.Condition()
        self._watchers: list[asyncio.Task[None]] = []
        self._notifications: set[asyncio.Task[None]] = set()

    @property
    def healthy(self) -> list[SGLangReplica]:
        return [replica for replica in self.all if replica.state is ReplicaState.HEALTHY]

    @property
    def reachable(self) -> list[SGLangReplica]:
        return [replica for replica in self.all if replica.state is not ReplicaState.UNHEALTHY]

    def start(self) -> None:
        """Begin to check health in the background; `close` ends it."""
        self._watchers = [
            asyncio.create_task(self._watch(replica), name=f"health {replica.url}") for replica in self.all
        ]

    async def close(self) -> None:
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, *self._notifications, return_exceptions=True)

    def pick(self, affinity: str | None) -> SGLangReplica | None:
        """Choose a healthy replica; None when there is none."""
        healthy = self.healthy
        if not healthy:
            return None
        least = min(healthy, key=lambda one: (one.requests, one.tokens, one.assigned))
        if affinity is None:
            return least
        home = self._assignments.get(affinity)
        if home is None or home.state is not ReplicaState.HEALTHY or self._overloaded(home, least):
            home = least
            home.assigned += 1
        self._assignments[affinity] = home
        self._assignments.move_to_end(affinity)
        if len(self._assignments) > MAX_AFFINITIES:
            self._assignments.popitem(last=False)
        return home

    async def take(self, affinity: str | None) -> SGLangReplica:
        """Choose a healthy replica, waiting for one to come back.

        Raises:
            EngineUnavailableError: none did in time.
        """
        chosen = self.pick(affinity)
        if chosen is not None:
            return chosen
        try:
            async with asyncio.timeout(self._unavailable_timeout), self._changed:
                while (chosen := self.pick(affinity)) is None:
                    await self._changed.wait()
                return chosen
        except TimeoutError as error:
            reasons = "; ".join(one.why or f"{one.url} is {one.state}" for one in self.all)
            raise EngineUnavailableError(
                f"no server became available within {self._unavailable_timeout:g} seconds: {reasons}"
            ) from error

    def lost(self, replica: SGLangReplica, why: str) -> None:
        """Take a replica out. Its health checks begin at once, and requests that wait for its answer are given up."""
        if replica.state is not ReplicaState.UNHEALTHY:
            log.warning("%s leaves: %s", replica.url, why)
        replica.state = ReplicaState.UNHEALTHY
        replica.why = why
        gone, replica.gone = replica.gone, asyncio.Event()
        gone.set()
        replica.wake.set()

    def readmitted(self, replica: SGLangReplica) -> None:
        """Let a replica take requests (again)."""
        replica.failures = 0
        if replica.state is not ReplicaState.HEALTHY:
            log.warning("%s is back", replica.url)
            replica.state, replica.why = ReplicaState.HEALTHY, ""
            notification = asyncio.create_task(self._notify())
            self._notifications.add(notification)
            notification.add_done_callback(self._notifications.discard)

    def _overloaded(self, home: SGLangReplica, least: SGLangReplica) -> bool:
        return home.requests - least.requests > self._abs and home.requests > self._rel * least.requests

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _watch(self, replica: SGLangReplica) -> None:
        retries = itertools.count()
        while True:
            pause = self._health_interval
            if replica.state is ReplicaState.UNHEALTHY:
                pause = min(pause, FIRST_RETRY * 2 ** min(next(retries), 20))
            else:
                retries = itertools.count()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await replica.wake.wait()
                    replica.wake.clear()
                    continue  # it was just lost: wait the short time
            try:
                await self._visit(replica)
            except Exception:
                log.exception("the health check of %s failed", replica.url)

    async def _visit(self, replica: SGLangReplica) -> None:
        try:
            await self._check(replica)
            if replica.state is ReplicaState.HEALTHY:
                replica.failures = 0
                return
            state = await self._readmit(replica)
        except ServerLostError as error:
            self.lost(replica, str(error))
        except (EngineError, NoAnswerError) as error:
            replica.failures += 1
            # The last one is not given up for being slow: no other could take over its requests.
            others = [one for one in self.healthy if one is not replica]
            if replica.state is ReplicaState.HEALTHY and others and replica.failures >= HEALTH_FAILURES:
                self.lost(replica, f"{replica.failures} health checks in a row failed, the last one: {error}")
        else:
            if state is ReplicaState.HEALTHY:
                self.readmitted(replica)
            else:
                replica.state = state
