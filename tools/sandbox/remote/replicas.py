"""Which server a call goes to, and which ones are left alone for a while."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Collection, Iterator, Sequence

from toolgym.tools.sandbox.remote.kinds import ServerKind

FIRST_OUT = 0.5
"""Seconds that a server is left alone after its first failure; twice as long after each further one."""

LONGEST_OUT = 30.0
"""The most that this grows to."""


class Replica:
    """One server.

    Attributes:
        url: its address, without a slash at the end.
        kind: which API it has; None until it was asked.
        in_flight: calls that it works on for this client.
        sessions: sessions that this client has open there.
        strikes: failures since it last answered a call properly.
        out: whether it is left alone until a health check says otherwise.
        check_after: when that check is due, by the event loop's clock.
        busy_until: before that it wants no more calls, by the event loop's clock.
        trouble: what the last health check found.
        check: the last health check.
        question: the question for its kind.
    """

    def __init__(self, url: str, kind: ServerKind | None = None) -> None:
        self.url = url
        self.kind = kind
        self.in_flight = 0
        self.sessions = 0
        self.strikes = 0
        self.out = False
        self.check_after = 0.0
        self.busy_until = 0.0
        self.trouble = ""
        self.check: asyncio.Task[None] | None = None
        self.question: asyncio.Task[ServerKind] | None = None

    def failed(self, now: float) -> None:
        """It did not answer properly. Calls that fail together are one failure."""
        if self.out and now < self.check_after:
            return
        self.strikes += 1
        self.out = True
        self.check_after = now + min(LONGEST_OUT, FIRST_OUT * 2.0 ** min(self.strikes - 1, 30))

    def answered(self) -> None:
        """It answered a call properly."""
        self.strikes = 0
        self.out = False

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """While it works on a call."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


def choose(
    replicas: Sequence[Replica], now: float, tried: Collection[Replica], *, for_session: bool = False
) -> Replica | None:
    """The server for a call: of those in use one that this call has not tried, that is not busy, and does least.

    Args:
        replicas: the servers.
        now: by the event loop's clock.
        tried: servers that failed or refused this call before.
        for_session: count open sessions before calls, since a session stays.

    Returns:
        None where none is in use.
    """
    ready = [one for one in replicas if not one.out]
    if not ready:
        return None

    def order(one: Replica) -> tuple[bool, bool, int, int, float]:
        sessions = one.sessions if for_session else 0
        return one in tried, one.busy_until > now, sessions, one.in_flight, random.random()

    return min(ready, key=order)
