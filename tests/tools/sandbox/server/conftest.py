"""A service over a real sandbox on a real socket, one for all tests of this folder, and servers as users start them."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import aiohttp
import pytest

from tests.serve_command import running
from tests.tools.sandbox.served import serving
from toolgym.tools.sandbox.local import LocalSandbox


@pytest.fixture(scope="session")
def shared_url():
    """A service with default settings in a thread of its own, for tests that need nothing special."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)  # it ends with the tests, whatever fails below
    thread.start()
    stack = contextlib.AsyncExitStack()

    async def start():
        sandbox = await stack.enter_async_context(LocalSandbox(preload=[]))
        return (await stack.enter_async_context(serving(sandbox))).url

    yield asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


@pytest.fixture
async def serve():
    """Makes services with settings of their own, each over a sandbox of its own."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**settings):
            computing = settings.get("max_computing")
            sandbox = LocalSandbox(preload=[], warm=0, templates=1, max_running="unlimited", max_computing=computing)
            await stack.enter_async_context(sandbox)
            return await stack.enter_async_context(serving(sandbox, **settings))

        yield make


@pytest.fixture
async def http():
    """A client."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as client:
        yield client


@pytest.fixture
def command():
    """Starts `toolgym serve sandbox`, see `running`."""
    with contextlib.ExitStack() as stack:
        yield lambda *flags, **options: stack.enter_context(running("sandbox", *flags, **options))
