"""`RateLimitActor`: the one process that holds a cluster's rate limit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import ray

from toolgym.tools.concurrency.cluster.lease_table import LeaseTable

LISTEN = 2.0
"""Most seconds that `listen` waits for permits. Its call is the client's sign of life."""

LINGER = 60.0
"""Seconds without clients after which the actor ends."""

RECOVERY = 5.0
"""Seconds after a restart in which nothing is granted, so that clients can say first what they hold."""


class RateLimitActor:
    """Gives out permits. An actor of Ray's with async methods; each changes the table in one go, then waits if at all.

    Args:
        limit: how many permits there are.
    """

    def __init__(self, limit: int) -> None:
        self._table = LeaseTable(limit)
        self._granted: dict[str, list[int]] = {}  # to be fetched by their clients
        self._news: dict[str, asyncio.Event] = {}
        self._heard: dict[str, float] = {}
        self._lease_seconds: dict[str, float] = {}
        self._used_at = time.monotonic()
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._grants_from = time.monotonic() + (RECOVERY if restarted else 0.0)
        self._sweeping: asyncio.Task[None] | None = None

    async def join(
        self, client: str, limit: int, lease_seconds: float, waiting: Sequence[int] = (), held: Sequence[int] = ()
    ) -> int:
        """Know a client, with what it says of itself. Returns the limit; where it is another, nothing was done.

        Args:
            client: unique among processes.
            limit: what it takes the limit for. The first client's is the limit, until there are no clients.
            lease_seconds: how long after its last sign of life its permits are free.
            waiting: requests that it made, in their order.
            held: permits that it has.
        """
        table = self._table
        if not table.clients:
            table.limit = limit
        if table.limit != limit:
            return table.limit
        self._lease_seconds[client] = lease_seconds
        self._news.setdefault(client, asyncio.Event())
        self._granted[client] = table.restore(client, waiting, held)
        self._hear(client)
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())
        self._grant()
        return limit

    async def tell(self, client: str, asked: Sequence[int], ended: Sequence[int]) -> list[int] | None:
        """Take new requests, and those that ended. Returns what was granted; None: the client must join again."""
        if client not in self._news:
            return None
        self._hear(client)
        self._table.end(client, ended)
        self._table.ask(client, asked)
        self._grant()
        return self._fetch(client)

    async def listen(self, client: str) -> list[int] | None:
        """As `tell` without news; waits `LISTEN` seconds for a permit."""
        news = self._news.get(client)
        if news is None:
            return None
        self._hear(client)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(LISTEN, self._lease_seconds[client] / 4)):
                await news.wait()
        return self._fetch(client) if client in self._news else None

    async def leave(self, client: str) -> None:
        """Forget a client; its permits are free."""
        self._forget(client)
        self._grant()

    async def status(self) -> dict[str, Any]:
        """The limit, and how many permits are held, requests wait, and clients there are."""
        table = self._table
        return {
            "limit": table.limit,
            "in_use": table.in_use,
            "waiting": table.waiting,
            "clients": len(table.clients),
        }

    def _grant(self) -> None:
        if time.monotonic() >= self._grants_from:
            for client, number in self._table.grant():
                self._granted[client].append(number)
                self._news[client].set()

    def _fetch(self, client: str) -> list[int]:
        self._news[client].clear()
        granted, self._granted[client] = self._granted[client], []
        return granted

    def _hear(self, client: str) -> None:
        self._heard[client] = self._used_at = time.monotonic()

    def _forget(self, client: str) -> None:
        self._table.leave(client)
        news = self._news.pop(client, None)
        for kept in (self._granted, self._heard, self._lease_seconds):
            kept.pop(client, None)
        if news is not None:
            news.set()

    async def _sweep(self) -> None:
        """Free what dead clients hold; and end the actor when it has had no client for a while."""
        while True:
            await asyncio.sleep(max(0.1, min([1.0, *(each / 4 for each in self._lease_seconds.values())])))
            now = time.monotonic()
            for client, heard in list(self._heard.items()):
                if now - heard > self._lease_seconds[client]:
                    self._forget(client)
            self._grant()
            if not self._heard and now - self._used_at > LINGER:
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
