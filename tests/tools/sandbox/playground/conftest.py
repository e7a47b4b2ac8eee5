"""A service over a sandbox of its own, and a client."""

from __future__ import annotations

import contextlib

import aiohttp
import pytest

from tests.tools.sandbox.served import serving
from toolgym.tools.sandbox.local import LocalSandbox


@pytest.fixture
async def serve():
    async with contextlib.AsyncExitStack() as stack:

        async def make(**settings):
            sandbox = await stack.enter_async_context(LocalSandbox(preload=[], warm=0, templates=1))
            return await stack.enter_async_context(serving(sandbox, **settings))

        yield make


@pytest.fixture
async def http():
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
        yield client
