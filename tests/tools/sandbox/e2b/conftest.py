"""A server with E2B's API over a real sandbox, in a thread of its own, and a client that speaks its wire by hand."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import struct
import threading

import aiohttp
import pytest

from tests.tools.sandbox.served import serving
from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.service import e2b_routes
from toolgym.tools.sandbox.local import LocalSandbox

FRAME = struct.Struct(">BI")


@contextlib.asynccontextmanager
async def e2b_serving(**settings):
    async with (
        LocalSandbox(preload=[], warm=0, templates=1) as sandbox,
        serving(sandbox, config_class=E2bServerConfig, e2b="served", preload=(), **settings) as service,
        e2b_routes(service.app, service.app._config),
    ):
        yield service.url


@contextlib.contextmanager
def in_thread(opening=e2b_serving, **settings):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)  # it ends with the tests, whatever fails below
    thread.start()
    stack = contextlib.AsyncExitStack()

    async def start():
        return await stack.enter_async_context(opening(**settings))

    yield asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


@pytest.fixture(scope="session")
def e2b_url():
    with in_thread() as url:
        yield url


class Client:
    """Speaks to the server as an SDK does, for the owner of one key."""

    def __init__(self, http, url, key="e2b_00"):
        self.http, self.url, self.key = http, url, key

    async def api(self, method, path, body=None, expect=200, **kwargs):
        return await self.ask(method, path, expect, json=body, headers={"X-API-KEY": self.key}, **kwargs)

    async def ask(self, method, path, expect=200, **kwargs):
        async with self.http.request(method, self.url + path, **kwargs) as response:
            assert response.status == expect, await response.text()
            return await (response.json() if response.content_type == "application/json" else response.read())

    async def create(self, path="/sandboxes", **fields):
        made = await self.api("POST", path, {"templateID": "base", "timeout": 120, **fields}, 201)
        return Box(self, made)


class Box:
    """One sandbox of a client."""

    def __init__(self, client, made):
        self.client, self.made, self.name = client, made, made["sandboxID"]
        self.headers = {"E2b-Sandbox-Id": self.name, "X-Access-Token": made.get("envdAccessToken", "")}

    async def rpc(self, method, expect=200, **message):
        service = "filesystem.Filesystem" if method in FILES else "process.Process"
        return await self.client.ask("POST", f"/{service}/{method}", expect, json=message, headers=self.headers)

    @contextlib.asynccontextmanager
    async def streaming(self, method, timeout_ms=None, **message):
        """Gives an iterator over the frames of an answer, each (flag, message)."""
        service = "filesystem.Filesystem" if method in FILES else "process.Process"
        data = json.dumps(message).encode()
        headers = self.headers | {"Content-Type": "application/connect+json"}
        headers |= {"connect-timeout-ms": str(timeout_ms)} if timeout_ms else {}
        posting = self.client.http.post(
            f"{self.client.url}/{service}/{method}", data=FRAME.pack(0, len(data)) + data, headers=headers
        )
        async with posting as response:
            assert response.status == 200, await response.text()
            yield frames(response)

    async def events(self, method, **message):
        async with self.streaming(method, **message) as stream:
            return [event async for event in stream]

    async def run(self, command, timeout_ms=20_000, **config):
        """Run a command; return output, error output and the end."""
        process = {"cmd": "/bin/bash", "args": ["-l", "-c", command], **config}
        rows = await self.events("Start", process=process, stdin=False, timeout_ms=timeout_ms)
        out, err, end = b"", b"", None
        for _, message in rows:
            event = message.get("event", message)
            out += base64.b64decode(event.get("data", {}).get("stdout", ""))
            err += base64.b64decode(event.get("data", {}).get("stderr", ""))
            end = event.get("end", end) if "error" not in message else message["error"]
        return out.decode(), err.decode(), end

    async def write(self, path, data, expect=200, **kwargs):
        headers = self.headers | {"Content-Type": "application/octet-stream"} | kwargs.pop("headers", {})
        return await self.client.ask(
            "POST", "/files", expect, params={"path": path, **kwargs}, data=data, headers=headers
        )

    async def read(self, path, expect=200, **headers):
        return await self.client.ask("GET", "/files", expect, params={"path": path}, headers=self.headers | headers)

    async def cell(self, code, **fields):
        """Run a cell; return its lines without those that every answer has at its end."""
        body = {"code": code, "context_id": None, "language": None, "env_vars": None, **fields}
        text = await self.client.ask("POST", "/execute", json=body, headers=self.headers)
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["type"] for line in lines[-2:]] == ["number_of_executions", "end_of_execution"]
        return lines[:-2]


FILES = {"Stat", "MakeDir", "Move", "Remove", "ListDir", "WatchDir", "CreateWatcher", "GetWatcherEvents",
         "RemoveWatcher"}  # fmt: skip


async def frames(response):
    while True:
        try:
            flag, size = FRAME.unpack(await response.content.readexactly(FRAME.size))
        except asyncio.IncompleteReadError:
            return
        yield flag, json.loads(await response.content.readexactly(size))


def printed(lines, name="stdout"):
    return "".join(line["text"] for line in lines if line["type"] == name)


@pytest.fixture
async def http():
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as client:
        yield client


@pytest.fixture
def client(http, e2b_url):
    return Client(http, e2b_url)


@pytest.fixture
async def box(client):
    made = await client.create()
    yield made
    await client.http.delete(f"{client.url}/sandboxes/{made.name}", headers={"X-API-KEY": client.key})
