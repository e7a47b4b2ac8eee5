from __future__ import annotations

import aiohttp
import pytest

from tests.envs.served.sessions.counting import serving


@pytest.fixture
def database(tmp_path):
    return tmp_path / "folder" / "sessions.db"


@pytest.fixture
async def service(database):
    """A running service with the defaults; at the end nothing of the backend is left open."""
    async with serving(database) as made:
        yield made
    assert made.backend.open_instances == 0


@pytest.fixture
async def post():
    """Asks a service; answered by status and JSON."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:

        async def ask(url, path, token=None, **body):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with client.post(url + path, json=body, headers=headers) as response:
                return response.status, await response.json()

        yield ask
