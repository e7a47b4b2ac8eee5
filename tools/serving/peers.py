"""The other workers of the same server, each on a UNIX socket that only this server's user can reach.

All workers share a port, and a session lives in one: a worker that gets another's call passes it on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from toolgym.tools.errors import ToolgymError

PASSED_ON = ("Authorization", "Content-Type")
PASSED_BACK = ("Content-Type", "Location", "Retry-After")

WORKER_METRICS = "/worker/metrics"
METRICS_TIMEOUT = 2.0


class PeerGoneError(ToolgymError):
    """The worker does not exist (any more); all that it held is lost."""


def socket_path(folder: Path, worker: int) -> Path:
    return folder / f"w{worker}.sock"


class Peers:
    """The other workers, with their sockets in a folder, if there are any. `deadline` is a call's most seconds."""

    def __init__(self, folder: Path | None, others: Iterable[int], deadline: float) -> None:
        self._folder = folder
        self._deadline = deadline
        self._clients: dict[int, aiohttp.ClientSession | None] = dict.fromkeys(others) if folder else {}
        self.others = list(self._clients)

    async def forward(self, worker: int, request: web.BaseRequest, body: bytes) -> web.Response:
        """Return another worker's answer to a request. Raises PeerGoneError."""
        return await self.ask(worker, request.method, request.raw_path, request, body)

    async def ask(self, worker: int, method: str, path: str, request: web.BaseRequest, body: bytes) -> web.Response:
        """Return another worker's answer; it gets the token of the client's request. Raises PeerGoneError."""
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        timeout, url = aiohttp.ClientTimeout(total=self._deadline), URL(f"http://worker{path}", encoded=True)
        try:
            asking = self._client(worker).request(method, url, data=body or None, headers=headers, timeout=timeout)
            async with asking as response:
                content = await response.read()
                back = {name: response.headers[name] for name in PASSED_BACK if name in response.headers}
                return web.Response(status=response.status, body=content, headers=back)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
            raise PeerGoneError(f"worker {worker} is gone: {type(error).__name__}") from None

    async def metrics(self) -> list[tuple[int, list[Any]]]:
        """Return the figures of the workers that answer in time, each with its number."""
        answers = await asyncio.gather(*(self._figures(worker) for worker in self.others))
        return [(worker, figures) for worker, figures in zip(self.others, answers, strict=True) if figures is not None]

    async def close(self) -> None:
        clients = [client for client in self._clients.values() if client is not None]
        self._clients = dict.fromkeys(self._clients)
        await asyncio.gather(*(client.close() for client in clients))

    async def _figures(self, worker: int) -> list[Any] | None:
        timeout = aiohttp.ClientTimeout(total=METRICS_TIMEOUT)
        try:
            async with self._client(worker).get(f"http://worker{WORKER_METRICS}", timeout=timeout) as response:
                figures = json.loads(await response.read()) if response.status == 200 else None
                return figures if isinstance(figures, list) else None
        except (aiohttp.ClientError, TimeoutError, ValueError, PeerGoneError):
            return None

    def _client(self, worker: int) -> aiohttp.ClientSession:
        if self._folder is None or worker not in self._clients:
            raise PeerGoneError(f"there is no worker {worker}")
        client = self._clients[worker]
        if client is None:
            connector = aiohttp.UnixConnector(path=str(socket_path(self._folder, worker)), limit=0)
            client = self._clients[worker] = aiohttp.ClientSession(connector=connector)
        return client
