"""`LeaseTable`: who holds a permit of a cluster's rate limit, and who waits for one. It has no clock, and no Ray."""

from __future__ import annotations

from collections.abc import Iterable

Place = tuple[str, int]
"""A client, and the number that it gave to one of its requests."""


class LeaseTable:
    """Permits of clients, strictly first come, first served. A client is one process.

    Args:
        limit: how many permits there are.

    Attributes:
        limit: the same; it may be changed while no client is known.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._queue: dict[Place, None] = {}  # in the order of their coming
        self._held: dict[str, dict[int, None]] = {}  # for each client that is known
        self._in_use = 0

    @property
    def in_use(self) -> int:
        """Number of permits that are held."""
        return self._in_use

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._queue)

    @property
    def clients(self) -> list[str]:
        """The clients that are known."""
        return list(self._held)

    def join(self, client: str) -> None:
        """Know a client from now on."""
        self._held.setdefault(client, {})

    def ask(self, client: str, numbers: Iterable[int]) -> None:
        """Queue requests of a client that is known; one that is queued or held already stays as it is."""
        held = self._held[client]
        for number in numbers:
            if number not in held:
                self._queue.setdefault((client, number), None)

    def end(self, client: str, numbers: Iterable[int]) -> None:
        """Give permits back, or give up places in the queue; what is neither is passed over."""
        held = self._held[client]
        for number in numbers:
            if number in held:
                del held[number]
                self._in_use -= 1
            else:
                self._queue.pop((client, number), None)

    def grant(self) -> list[Place]:
        """Give free permits to those that wait longest. Returns to which requests."""
        granted = []
        while self._in_use < self.limit and self._queue:
            client, number = place = next(iter(self._queue))
            del self._queue[place]
            self._held[client][number] = None
            self._in_use += 1
            granted.append(place)
        return granted

    def restore(self, client: str, waiting: Iterable[int], held: Iterable[int]) -> list[int]:
        """Take over what a client says of itself, after messages were lost.

        What it holds stays held, above the limit if need be. Returns those of `waiting` that were granted already.
        """
        self.join(client)
        waiting, kept = list(waiting), dict.fromkeys(held)
        mine = self._held[client]
        granted = [number for number in waiting if number in mine]
        self._in_use += len(kept) + len(granted) - len(mine)
        self._held[client] = {**kept, **dict.fromkeys(granted)}
        wanted = set(waiting)
        for place in [request for request in self._queue if request[0] == client and request[1] not in wanted]:
            del self._queue[place]
        self.ask(client, waiting)
        return granted

    def leave(self, client: str) -> None:
        """Forget a client; its permits are free, and its requests wait no more."""
        self._in_use -= len(self._held.pop(client, {}))
        for place in [request for request in self._queue if request[0] == client]:
            del self._queue[place]
