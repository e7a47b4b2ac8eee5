from __future__ import annotations

import contextlib
import json

import aiohttp
import pytest

from tests.actors import until
from tests.envs.served.environments.toy import SumEnv, serving


@pytest.fixture
async def serve():
    """Makes services; at the end no env is left open."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(*names, **settings):
            return await stack.enter_async_context(serving(*names, **settings))

        yield make
    await until(lambda: SumEnv.open == 0)


@pytest.fixture
async def http():
    """A client."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
        yield client


class Ask:
    """Requests of one client, answered by status and JSON."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self.client = client

    async def get(self, url, **headers):
        async with self.client.get(url, headers=_named(headers)) as response:
            return response.status, await response.json()

    async def post(self, url, body=None, **headers):
        async with self.client.post(url, json=body or {}, headers=_named(headers)) as response:
            return response.status, await response.json()

    async def call(self, url, name, arguments, sid, task_id=None):
        """Call a tool; returns the id of the call, and the result, or the error's text."""
        body = {"name": name, "input": arguments} | ({"task_id": task_id} if task_id else {})
        async with self.client.post(f"{url}/call", json=body, headers={"X-Session-ID": sid}) as response:
            if response.status != 200:
                return None, await response.json()
            events = [tuple(block.split("\ndata: ")) for block in (await response.text()).split("\n\n") if block]
        events = [event for event in events if event[0] != ": ping"]
        (first, task_id), *parts = events
        assert first == "event: task_id"
        if parts[0][0] == "event: error":
            return task_id, parts[0][1]
        assert [kind for kind, _ in parts] == ["event: chunk"] * (len(parts) - 1) + ["event: end"]
        return task_id, json.loads("".join(part for _, part in parts))


def _named(headers):
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def ask(http):
    return Ask(http)
