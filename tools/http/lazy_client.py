"""`LazyClient`: an HTTP client that is made at its first use, for the event loop that uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from toolgym.tools.errors import ConfigError
from toolgym.tools.http.client import ClientClosedError, HttpClient
from toolgym.tools.http.replicas import Replica
from toolgym.tools.http.retries import Retries
from toolgym.tools.http.session import HttpSession


class LazyClient:
    """Gives an object (`owner`, which errors name) its `HttpClient`, so that it can be made without an event loop."""

    def __init__(
        self,
        owner: object,
        urls: Sequence[str],
        retries: Retries,
        *,
        token: str | None,
        max_connections: int,
        max_answer: int,
        health_path: str,
    ) -> None:
        self._owner, self._urls, self._retries = owner, urls, retries
        self._token, self._max_connections, self._max_answer = token, max_connections, max_answer
        self._health_path = health_path
        self._client: HttpClient[Replica] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def connected(self) -> HttpClient[Replica]:
        """Return the client of the running event loop; a new one if the loop of the last one is closed."""
        here = asyncio.get_running_loop()
        if self._closed:
            raise ClientClosedError(f"{self._owner!r} is closed")
        if self._client is None or self._loop is None or self._loop.is_closed():
            session = HttpSession(self._token, self._max_connections, self._retries.connect_timeout, self._max_answer)
            replicas = [Replica(url) for url in self._urls]
            self._client = HttpClient(replicas, self._retries, session, health_path=self._health_path)
            self._loop = here
        if self._loop is not here:
            raise ConfigError(f"{self._owner!r} belongs to another event loop: make one for each")
        return self._client

    async def close(self) -> None:
        self._closed = True
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.close()
