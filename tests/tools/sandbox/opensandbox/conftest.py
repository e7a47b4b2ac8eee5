"""A server with OpenSandbox's API over a real sandbox, and a client that speaks its wire by hand."""

from __future__ import annotations

import contextlib
import json

import aiohttp
import pytest

from tests.tools.sandbox.e2b.conftest import in_thread
from tests.tools.sandbox.image_maker import docker_save, shell_layer
from tests.tools.sandbox.served import serving
from toolgym.tools.sandbox.local import LocalSandbox
from toolgym.tools.sandbox.opensandbox.config import OpenSandboxServerConfig
from toolgym.tools.sandbox.opensandbox.lifecycle import opensandbox_routes


@contextlib.asynccontextmanager
async def opensandbox_serving(**settings):
    settings |= {"config_class": OpenSandboxServerConfig, "opensandbox": "served", "preload": ()}
    async with (
        LocalSandbox(preload=[], warm=0, templates=1) as sandbox,
        serving(sandbox, **settings) as service,
        opensandbox_routes(service.app, service.app._config),
    ):
        yield service.url


@pytest.fixture(scope="session")
def opensandbox_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    docker_save(folder / "shell_1.tar", [shell_layer()], tag="shell:1")
    with in_thread(opensandbox_serving, opensandbox_images=str(folder)) as url:
        yield url


class Client:
    """Speaks to the server as an SDK does, for the owner of one key."""

    def __init__(self, http, url, key="mine"):
        self.http, self.url, self.key = http, url, key

    async def api(self, method, path, body=None, expect=200, **kwargs):
        headers = {"OPEN-SANDBOX-API-KEY": self.key} | kwargs.pop("headers", {})
        return await self.ask(method, f"{self.url}/v1{path}", expect, json=body, headers=headers, **kwargs)

    async def ask(self, method, url, expect=200, **kwargs):
        async with self.http.request(method, url, **kwargs) as response:
            assert response.status == expect, await response.text()
            return await (response.json() if response.content_type == "application/json" else response.read())

    async def create(self, image="opensandbox/code-interpreter:latest", **fields):
        asked = {"image": {"uri": image}, "resourceLimits": {"cpu": "1", "memory": "512Mi"}, "timeout": 120}
        box = await self.api("POST", "/sandboxes", asked | fields, 202)
        endpoint = await self.api("GET", f"/sandboxes/{box['id']}/endpoints/44772")
        return Box(self, box, endpoint)


class Box:
    """One sandbox of a client."""

    def __init__(self, client, about, endpoint):
        self.client, self.about, self.name = client, about, about["id"]
        self.url, self.headers = f"http://{endpoint['endpoint']}", endpoint["headers"]

    async def ask(self, method, path, expect=200, **kwargs):
        headers = self.headers | kwargs.pop("headers", {})
        return await self.client.ask(method, self.url + path, expect, headers=headers, **kwargs)

    async def stream(self, path, **body):
        """Yield the events of an answer; each has a time."""
        async with self.client.http.post(self.url + path, json=body, headers=self.headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            async for line in response.content:
                if line.strip():
                    event = json.loads(line.removeprefix(b"data: "))
                    assert event.pop("timestamp") > 1_600_000_000_000
                    if event["type"] != "ping":
                        yield event

    async def run(self, path="/command", **body):
        """Run something; return what it printed, line by line, and its last event."""
        first, *rest, last = [event async for event in self.stream(path, **body)]
        assert first["type"] == "init"
        return [(event["type"], event.get("text", event.get("results"))) for event in rest], last


@pytest.fixture
async def http():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as client:
        yield client


@pytest.fixture
def client(http, opensandbox_url):
    return Client(http, opensandbox_url)


@pytest.fixture
async def box(client):
    made_box = await client.create()
    yield made_box
    await client.api("DELETE", f"/sandboxes/{made_box.name}", expect=204)
