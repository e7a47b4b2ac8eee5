"""`RateLimitActor`: the one process that holds a cluster's rate limit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import ray

from toolgym.tools.concurrency.cluster.lease_table import LeaseTable

LINGER = 60.0

RECOVERY = 5.0
"""Seconds after a restart in which nothing is granted, so that clients can first tell what they hold."""


@dataclass
class _Client:
    lease_seconds: float
    version: int = -1
    heard_at: float = 0.0
    granted: asyncio.Event = field(default_factory=asyncio.Event)


class RateLimitActor:
    """Gives out permits. Each async method of this Ray actor changes the table in one go, then waits if at all."""

    def __init__(self) -> None:
        self._table = LeaseTable(0)
        self._clients: dict[str, _Client] = {}
        self._used_at = time.monotonic()
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._grants_from = time.monotonic() + (RECOVERY if restarted else 0.0)
        self._sweeping: asyncio.Task[None] | None = None

    async def sync(
        self,
        name: str,
        limit: int,
        lease_seconds: float,
        version: int,
        waiting: Sequence[int],
        held: Sequence[int],
        patience: float,
    ) -> tuple[int, list[int]]:
        """Take a client's state; return the limit, and the numbers of its requests that have a permit.

        The first client's `limit` holds until there are no clients; nothing is done for another one. A state with an
        older `version` that comes late is passed over. The call waits at most `patience` seconds for a permit that the
        client does not know of.
        """
        if not self._clients:
            self._table.limit = limit
        if self._table.limit != limit:
            return self._table.limit, []
        client = self._clients.setdefault(name, _Client(lease_seconds))
        client.heard_at = time.monotonic()
        if version > client.version:
            client.version = version
            self._table.sync(name, waiting, held)
            self._grant()
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await client.granted.wait()
        client.heard_at = self._used_at = time.monotonic()
        client.granted.clear()
        return limit, sorted(self._table.held_by(name))

    async def leave(self, name: str) -> None:
        client = self._clients.pop(name, None)
        if client is not None:
            client.granted.set()
            self._table.leave(name)
            self._grant()

    async def status(self) -> dict[str, int]:
        table = self._table
        return {
            "limit": table.limit,
            "in_use": table.in_use,
            "waiting": table.waiting,
            "clients": len(table.clients),
        }

    def _grant(self) -> None:
        if time.monotonic() >= self._grants_from:
            for name in self._table.grant():
                self._clients[name].granted.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(max(0.1, min([1.0, *(each.lease_seconds / 4 for each in self._clients.values())])))
            now = time.monotonic()
            for name, client in list(self._clients.items()):
                if now - client.heard_at > client.lease_seconds:
                    await self.leave(name)
            self._grant()
            if not self._clients and now - self._used_at > LINGER:
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
