"""One worker process of a server.

`serve` writes one line of settings to its standard input, whose end is the parent's and ends the worker. The worker
writes JSON lines: that it is ready, or why it cannot start, and a heartbeat every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

from aiohttp import web

from toolgym.tools.errors import ToolgymError
from toolgym.tools.serving.app import HttpApp
from toolgym.tools.serving.config import ServingConfig
from toolgym.tools.serving.peers import socket_path
from toolgym.tools.serving.process_secrets import hide_secrets

BACKLOG = 4096
"""Connections that the kernel keeps for a worker that is busy."""

ACCEPTED = 8
"""Connections that the event loop accepts in one turn."""

IN_TRANSIT = 4 * ACCEPTED
"""Connections beyond `max_connections` that can be open for a moment: the event loop makes, refuses and closes each in
three turns, and accepts further ones in each turn."""

OWN_FILES = 64
"""Descriptors of a worker beside those of connections and executions."""

HEARTBEAT = 1.0
START_DEADLINE = 120.0
CANCEL_GRACE = 5.0
CUT = 0.05
"""Seconds between two steps of cutting a connection."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_log = logging.getLogger("toolgym.tools.serving")

C = TypeVar("C", bound=ServingConfig)

OpenApp = Callable[[C, int, Path | None], AbstractAsyncContextManager[tuple[HttpApp, str]]]
"""Opens the service of one worker, from the settings, the worker's number and the folder of the workers' sockets (None
for the only worker). Gives the service, and its part of the announcement."""


class ServerWorker(Generic[C]):
    """Serves until it is stopped, as the line of settings says that the parent sends."""

    def __init__(self, model: type[C], open_app: OpenApp[C], setup: Mapping[str, Any]) -> None:
        self._open_app, self._config = open_app, model.model_validate(setup["config"])
        self._number, self._restarts = setup["worker"], setup["restarts"]
        self._folder = Path(setup["folder"]) if setup["folder"] else None
        self._family, self._address = setup["family"], tuple(setup["address"])
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._orphaned = False

    def stop(self) -> None:
        """Stop: at the first call after the drain, at the second call at once."""
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    def abandon(self) -> None:
        """Stop at once: the parent has ended."""
        self._orphaned = True
        self._force.set()
        self._stop.set()

    async def run(self) -> None:
        """Start, tell the parent, serve, drain. Raises ToolgymError if it cannot start, OSError if it cannot listen."""
        heartbeat = asyncio.create_task(self._send_heartbeats())
        try:
            async with self._open_app(_affordable(self._config), self._number, self._folder) as (app, about):
                app.metrics.restarts.inc(self._restarts)
                await app.start()
                try:
                    await self._serve(app, about)
                finally:
                    await app.close()
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    async def _serve(self, app: HttpApp, about: str) -> None:
        # After the drain aiohttp does not wait: it cuts the connections, which cancels what runs.
        public = web.ServerRunner(app.listener(), shutdown_timeout=CUT, handle_signals=False)
        internal = web.ServerRunner(app.listener(internal=True), shutdown_timeout=CUT, handle_signals=False)
        try:
            await public.setup()
            await internal.setup()
            if self._folder is not None:
                path = socket_path(self._folder, self._number)
                path.unlink(missing_ok=True)  # of a predecessor that was killed
                await web.UnixSite(internal, str(path), backlog=BACKLOG).start()
            with listening_socket(self._family, self._address) as listening:
                site = web.SockSite(public, listening, backlog=ACCEPTED)
                await site.start()
                listening.listen(BACKLOG)
                gc.collect()
                gc.freeze()
                tell_parent({"ready": True, "about": about})
                await self._stop.wait()
                await site.stop()
                app.drain()
                await self._drain(app)
        finally:
            await public.cleanup()
            await internal.cleanup()
            with contextlib.suppress(OSError):
                if self._folder is not None:
                    socket_path(self._folder, self._number).unlink(missing_ok=True)
                    if self._orphaned:  # else the parent removes the folder
                        self._folder.rmdir()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_GRACE):
                    await app.quiet()

    async def _send_heartbeats(self) -> None:
        while True:
            tell_parent({"alive": True})
            await asyncio.sleep(HEARTBEAT)

    async def _drain(self, app: HttpApp) -> None:
        """Wait for in-flight requests, `drain_timeout`, or a second stop signal."""
        waits = [asyncio.create_task(app.quiet()), asyncio.create_task(self._force.wait())]
        try:
            await asyncio.wait(waits, timeout=self._config.drain_timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def listening_socket(family: int, address: tuple[Any, ...]) -> socket.socket:
    """Make a socket at an address that other workers have too; the kernel gives each connection to one of them."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
    except BaseException:
        listening.close()
        raise
    return listening


def tell_parent(message: dict[str, Any]) -> None:
    """Write a line to the parent, unless its pipe is full or closed."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


def allow_many_files() -> None:
    """Raise this process's limit of descriptors as far as allowed: connections and executions need some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _affordable(config: C) -> C:
    """Reduce the connections to those for which there are descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return config
    most = max(IN_TRANSIT, soft - OWN_FILES - IN_TRANSIT - 2 * config.share(config.max_concurrency))
    if most >= config.max_connections:
        return config
    _log.warning("max_connections: %d at once, for only %d open files are allowed here (ulimit -Hn)", most, soft)
    return config.model_copy(update={"max_connections": most})


async def _main(model: type[C], open_app: OpenApp[C], setup: dict[str, Any]) -> None:
    worker = ServerWorker(model, open_app, setup)
    loop = asyncio.get_running_loop()

    def stop(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker ends already
            loop.call_soon_threadsafe(worker.stop)

    def on_parent() -> None:
        if not os.read(0, 4096):  # it has ended
            loop.remove_reader(0)
            worker.abandon()

    # Not the loop's own handler: Python complains of a signal that comes while the loop is being closed.
    signal.signal(signal.SIGTERM, stop)
    loop.add_reader(0, on_parent)
    await worker.run()


def run_worker(model: type[C], open_app: OpenApp[C]) -> None:
    """Be a worker process. Exit status: 0 it was stopped, 1 it could not start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which then stops all workers
    setup = json.loads(sys.stdin.buffer.readline())
    logging.basicConfig(level=setup["config"]["log_level"].upper(), format=LOG_FORMAT)
    os.set_blocking(1, False)
    if model.spec.hides_memory:
        hide_secrets(())
    allow_many_files()
    try:
        asyncio.run(_main(model, open_app, setup))
    except (ToolgymError, OSError) as error:
        tell_parent({"failed": str(error)})
        sys.exit(1)
