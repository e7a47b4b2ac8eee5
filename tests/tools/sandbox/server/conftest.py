"""A service over a real sandbox on a real socket, one for all tests of this folder, and servers as users start them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading

import aiohttp
import pytest

from tests.processes import end_with_the_tests
from tests.tools.sandbox.served import serving
from toolgym.tools.sandbox.local import LocalSandbox


@pytest.fixture(scope="session")
def shared_url():
    """A service with default settings in a thread of its own, for tests that need nothing special."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = contextlib.AsyncExitStack()

    async def start():
        sandbox = await stack.enter_async_context(LocalSandbox(preload=[]))
        return (await stack.enter_async_context(serving(sandbox))).url

    yield asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
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
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as client:
        yield client


@dataclasses.dataclass
class Command:
    """`toolgym serve sandbox`, running."""

    url: str
    process: subprocess.Popen

    def stop(self, number=signal.SIGTERM):
        """Send a signal and wait for the end. Returns the exit status and what was logged."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=30)
        return self.process.returncode, log


@pytest.fixture
def command():
    """Starts `toolgym serve sandbox` with flags, on any free port; with at most `nofile` open files, if it is given."""
    running = []

    def start(*flags, nofile=None, **variables):
        limited = ["sh", "-c", f'ulimit -n {nofile}; exec "$@"', "-"] if nofile else []
        process = subprocess.Popen(
            [*limited, sys.executable, "-m", "toolgym", "serve", "sandbox", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            preexec_fn=end_with_the_tests,
        )
        running.append(process)
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise AssertionError(process.communicate(timeout=10)[1])
        return Command(found[0], process)

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)
