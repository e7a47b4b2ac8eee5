"""A small backend to serve, whose instances count, and the session server over it in this process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from pathlib import Path

from aiohttp import web

from toolgym.envs.served.sessions.app import SessionApp
from toolgym.envs.served.sessions.backends.base import ActionReply, Instance, SessionBackend
from toolgym.envs.served.sessions.config import SessionServerConfig
from toolgym.envs.served.sessions.store import Store
from toolgym.tools.errors import SandboxError, UnknownNameError


class Counter(Instance):
    """Carries out these actions; the reward is the count.

    "add N" adds. "die FILE" ends this process unless the file exists. "fail" breaks, and "fail once" does the first
    time. "wait" waits for `CountingBackend.go_on`. "long N" answers N characters. "end" ends the episode.
    """

    def __init__(self, backend, count):
        self.greeting = "Count."
        self._backend, self.count = backend, count
        backend.open_instances += 1

    async def process_action(self, content):
        word, _, number = content.partition(" ")
        if word == "add":
            self._backend.ran += 1
            self.count += int(number)
        elif word == "die":
            self.count += 1
            if not Path(number).exists():
                Path(number).touch()
                os._exit(9)
        elif content == "fail" or (content == "fail once" and self._backend.failures.pop("once", True)):
            self.count += 1000
            self._backend.failures["once"] = False
            raise SandboxError("lost at 10.1.2.3")
        elif word == "wait":
            self._backend.waiting.set()
            await self._backend.go_on.wait()
            self._backend.ran += 1
            self.count += 1
        elif word == "long":
            return ActionReply("x" * int(number))
        return ActionReply(str(self.count), content == "end")

    async def state(self):
        return str(self.count).encode()

    async def compute_reward(self):
        self._backend.rewards += 1
        if self.count < 0:
            raise SandboxError("no tests at 10.1.2.3")
        return {"f2p_count": self.count, "f2p_total": 10}

    async def close(self):
        self._backend.open_instances -= 1


class CountingBackend(SessionBackend):
    """Instances by the hash `count:N`, which begin at N."""

    def __init__(self):
        self.open_instances = self.ran = self.rewards = 0
        self.failures = {}
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()

    async def open(self, instance_hash, state=None):
        name, _, number = instance_hash.partition(":")
        if name != "count":
            raise UnknownNameError(f"there is no task {instance_hash!r}")
        if number == "broken":
            raise SandboxError("cannot open at 10.1.2.3")
        return Counter(self, int(number) if state is None else int(state))


@dataclasses.dataclass
class Service:
    """A running service."""

    url: str
    app: SessionApp
    backend: CountingBackend


@contextlib.asynccontextmanager
async def serving(database: Path, backend=None, **settings):
    """The session server over a database, with these settings."""
    backend = backend or CountingBackend()
    async with contextlib.AsyncExitStack() as stack:
        store = Store(database)
        stack.push_async_callback(store.close)
        await stack.enter_async_context(backend)
        await backend.start()
        app = SessionApp(backend, store, SessionServerConfig(**settings))
        stack.push_async_callback(app.close)
        await app.start()
        runner = web.ServerRunner(app.listener(), shutdown_timeout=0.5)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Service(f"http://127.0.0.1:{runner.addresses[0][1]}", app, backend)
