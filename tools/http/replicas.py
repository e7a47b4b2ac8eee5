"""A pool of equal servers: which one takes a call, and which ones are left alone for a while."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, Generic, TypeVar

from toolgym.tools.http.retries import AttemptError

FIRST_OUT = 0.5
"""Seconds that a server is left alone after its first failure; twice as long after each further one."""

LONGEST_OUT = 30.0

BAD_CHECKS = 3
"""Failed checks in a row after which a server that can be reached leaves, while another one is healthy."""

MAX_AFFINITIES = 65_536

log = logging.getLogger("toolgym.tools.http")


class ReplicaState(enum.StrEnum):
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    SUSPENDED = "suspended"
    """It answers, but takes no calls until a probe says so, for example because its weights are old."""


class Replica:
    """One server, its state and its load. Times are those of the running event loop's clock.

    `weight` is that of the calls in flight together, for example in tokens. `failures` counts since it last answered a
    call, or a check while it was healthy. `left` is set, and replaced, when it becomes unhealthy.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.state = ReplicaState.HEALTHY
        self.trouble = ""
        self.in_flight = 0
        self.weight = 0
        self.assigned = 0
        self.failures = 0
        self.bad_checks = 0
        self.probe_at = 0.0
        self.busy_until = 0.0
        self.left = asyncio.Event()
        self.probe: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> bool:
        return self.state is ReplicaState.HEALTHY

    @contextlib.contextmanager
    def working(self, weight: int = 0) -> Iterator[None]:
        self.in_flight += 1
        self.weight += weight
        try:
            yield
        finally:
            self.in_flight -= 1
            self.weight -= weight

    def failed(self, trouble: str) -> None:
        """Leave it alone for a while. Calls that fail together are one failure."""
        now = asyncio.get_running_loop().time()
        if self.state is ReplicaState.UNHEALTHY:
            if now < self.probe_at:
                return
        else:
            log.warning("%s leaves: %s", self.url, trouble)
        self.failures += 1
        self.trouble = trouble
        self.state = ReplicaState.UNHEALTHY
        self.probe_at = now + min(LONGEST_OUT, FIRST_OUT * 2.0 ** min(self.failures - 1, 30))
        left, self.left = self.left, asyncio.Event()
        left.set()

    def answered(self) -> None:
        self.failures = 0
        if self.state is ReplicaState.UNHEALTHY:
            self.state = ReplicaState.HEALTHY

    def suspend(self, trouble: str) -> None:
        self.state = ReplicaState.SUSPENDED
        self.trouble = trouble

    def full(self, seconds: float) -> None:
        self.busy_until = asyncio.get_running_loop().time() + seconds


R = TypeVar("R", bound=Replica)


def least_loaded(replica: Replica) -> tuple[Any, ...]:
    return replica.in_flight, replica.weight, replica.assigned


class ReplicaPool(Generic[R]):
    """Chooses among replicas. Belongs to the event loop that it is used on; `close` ends its probes.

    Either `take` probes an unhealthy replica when a call needs one, or `watch` checks all of them at an interval, and
    `wait` gives calls a healthy one. A probe has its own deadline; it returns the state that a replica is to have, or
    raises `AttemptError`.

    An affinity moves when its replica has more than `balance_abs_threshold` calls in flight beyond the least loaded
    one's, and more than `balance_rel_threshold` times as many, as in `sglang-router`.
    """

    def __init__(
        self,
        replicas: Sequence[R],
        probe: Callable[[R], Awaitable[ReplicaState]],
        *,
        balance_abs_threshold: int = 64,
        balance_rel_threshold: float = 1.5,
    ) -> None:
        self.all = list(replicas)
        self._probe = probe
        self._abs, self._rel = balance_abs_threshold, balance_rel_threshold
        self._affinities: OrderedDict[str, R] = OrderedDict()
        self._watchers: list[asyncio.Task[None]] = []
        self._returned = asyncio.Event()

    def watch(self, interval: float) -> None:
        """Probe every replica each `interval` seconds until `close`; one that left, sooner.

        A replica that cannot be reached leaves at once. One that can be reached and does not answer properly leaves
        after `BAD_CHECKS` in a row, and only while another one is healthy: the last one is not given up for being slow.
        """
        self._watchers = [
            asyncio.create_task(self._watch(replica, interval), name=f"check {replica.url}") for replica in self.all
        ]

    async def close(self) -> None:
        tasks = [*self._watchers, *(replica.probe for replica in self.all if replica.probe is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def reachable(self) -> list[R]:
        return [replica for replica in self.all if replica.state is not ReplicaState.UNHEALTHY]

    def has_room(self, tried: Collection[R] = ()) -> bool:
        now = asyncio.get_running_loop().time()
        return any(replica.healthy and replica.busy_until <= now and replica not in tried for replica in self.all)

    def choose(
        self,
        *,
        among: Sequence[R] | None = None,
        tried: Collection[R] = (),
        load: Callable[[R], tuple[Any, ...]] = least_loaded,
        affinity: str | None = None,
    ) -> R | None:
        """Return the healthy replica that is preferably untried, not busy and least loaded; None if none is healthy.

        Calls of one affinity stay with one server, for its caches, while it is healthy, untried and not overloaded.
        """
        ready = [replica for replica in (self.all if among is None else among) if replica.healthy]
        if not ready:
            return None
        now = asyncio.get_running_loop().time()
        least = min(
            ready, key=lambda replica: (replica in tried, replica.busy_until > now, *load(replica), random.random())
        )
        return least if affinity is None else self._sticky(affinity, ready, tried, least)

    async def take(
        self,
        *,
        among: Sequence[R] | None = None,
        tried: Collection[R] = (),
        load: Callable[[R], tuple[Any, ...]] = least_loaded,
    ) -> R:
        """Choose as `choose` does. If none is healthy, the one whose probe is due first is probed now, or
        `AttemptError` is raised."""
        able = self.all if among is None else among
        chosen = self.choose(among=able, tried=tried, load=load)
        if chosen is not None:
            now = asyncio.get_running_loop().time()
            for replica in able:
                if replica.state is ReplicaState.UNHEALTHY and replica.probe_at <= now:
                    self.begin_probe(replica)
            return chosen
        replica = min(able, key=lambda replica: replica.probe_at)
        await asyncio.wait({self.begin_probe(replica)})
        if not replica.healthy:
            raise AttemptError(f"{replica.url} does not answer properly: {replica.trouble}", sent=False)
        return replica

    async def wait(self, patience: float, *, affinity: str | None = None) -> R:
        """Choose as `choose` does. If none is healthy, wait so many seconds until one of a watched pool is, or raise
        `AttemptError`."""
        try:
            async with asyncio.timeout(patience):
                while (chosen := self.choose(affinity=affinity)) is None:
                    await self._returned.wait()
                return chosen
        except TimeoutError:
            reasons = "; ".join(replica.trouble or f"{replica.url} is {replica.state}" for replica in self.all)
            raise AttemptError(
                f"no server became available within {patience:g} seconds: {reasons}", sent=False
            ) from None

    def begin_probe(self, replica: R) -> asyncio.Task[None]:
        if replica.probe is None or replica.probe.done():
            replica.probe = asyncio.create_task(self._run_probe(replica))
        return replica.probe

    async def _watch(self, replica: R, interval: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause = interval
            if replica.state is ReplicaState.UNHEALTHY:
                pause = min(interval, max(0.0, replica.probe_at - loop.time()))
            try:
                async with asyncio.timeout(pause):
                    await replica.left.wait()  # then the pause is shorter
            except TimeoutError:
                await asyncio.wait({self.begin_probe(replica)})

    async def _run_probe(self, replica: R) -> None:
        try:
            state = await self._probe(replica)
        except AttemptError as error:
            replica.bad_checks += 1
            if error.sent and replica.state is not ReplicaState.UNHEALTHY:
                others = any(other.healthy for other in self.all if other is not replica)
                if replica.bad_checks < BAD_CHECKS or not others:
                    return
            replica.probe_at = 0.0
            replica.failed(str(error))
        except Exception:
            log.exception("the probe of %s failed", replica.url)
        else:
            replica.bad_checks = 0
            before, replica.state = replica.state, state
            if before is ReplicaState.HEALTHY:
                replica.failures = 0
            elif replica.healthy:
                log.warning("%s is back", replica.url)
                returned, self._returned = self._returned, asyncio.Event()
                returned.set()

    def _sticky(self, affinity: str, ready: Sequence[R], tried: Collection[R], least: R) -> R:
        chosen = self._affinities.get(affinity)
        if chosen is None or chosen not in ready or chosen in tried or self._overloaded(chosen, least):
            chosen = least
            chosen.assigned += 1
        self._affinities[affinity] = chosen
        self._affinities.move_to_end(affinity)
        if len(self._affinities) > MAX_AFFINITIES:
            self._affinities.popitem(last=False)
        return chosen

    def _overloaded(self, chosen: R, least: R) -> bool:
        return chosen.in_flight - least.in_flight > self._abs and chosen.in_flight > self._rel * least.in_flight
