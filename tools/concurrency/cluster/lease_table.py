"""`LeaseTable`: clients that hold permits of a cluster's rate limit, or wait. It has no clock, and no Ray."""

from __future__ import annotations

import itertools
from collections.abc import Iterable


class LeaseTable:
    """Permits of clients, strictly first come, first served. A client is one process. The limit may be changed while no
    client is known."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._queue: dict[tuple[str, int], None] = {}  # clients and numbers of their requests, in the order of coming
        self._held: dict[str, set[int]] = {}

    @property
    def in_use(self) -> int:
        return sum(map(len, self._held.values()))

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def clients(self) -> list[str]:
        return list(self._held)

    def held_by(self, client: str) -> set[int]:
        return self._held.get(client, set())

    def sync(self, client: str, waiting: Iterable[int], held: Iterable[int]) -> None:
        """Take over a client's state, which it knows best; a client that is not known is from now on.

        Permits that it holds stay held, above the limit if need be; so do those of `waiting` that were granted and of
        which it does not know yet. Requests that it does not name are over.
        """
        wanted = dict.fromkeys(waiting)
        mine = self._held[client] = set(held) | (self.held_by(client) & wanted.keys())
        for request in [request for request in self._queue if request[0] == client and request[1] not in wanted]:
            del self._queue[request]
        self._queue |= {(client, number): None for number in wanted if number not in mine}

    def grant(self) -> set[str]:
        """Give free permits to the requests that wait longest. Returns the clients of these."""
        clients = set()
        for client, number in list(itertools.islice(self._queue, max(0, self.limit - self.in_use))):
            del self._queue[client, number]
            self._held[client].add(number)
            clients.add(client)
        return clients

    def leave(self, client: str) -> None:
        self.sync(client, (), ())
        del self._held[client]
