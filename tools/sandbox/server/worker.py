"""One worker process of the server.

Started by `serve`, which writes one line of settings to its standard input and keeps that open: when it closes, the
parent is gone and the worker ends too. On standard output the worker says, one JSON line each, that it is ready or why
it cannot be, and then every second that it is alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.metadata
import json
import logging
import os
import resource
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiohttp import web

from toolgym.tools.errors import SandboxError, ToolgymError
from toolgym.tools.sandbox.server.app import SandboxApp
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.factory import make_sandbox, offered_languages
from toolgym.tools.sandbox.server.peers import socket_path

BACKLOG = 4096
"""Connections that the kernel keeps for a worker that is busy."""

ACCEPTED = 32
"""Connections that are taken in one go. (The event loop takes them all before it closes the first that is too many.)"""

OWN_FILES = 64
"""Descriptors that a worker needs beside those of connections and of what runs."""

BEAT = 1.0
"""Seconds between two signs of life."""

START_DEADLINE = 120.0
"""Seconds for the sandbox to start."""

CANCEL_GRACE = 5.0
"""Seconds for what runs to be killed after the drain."""

CUT = 0.05
"""Seconds between two steps of cutting a connection."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


_log = logging.getLogger("toolgym.tools.sandbox.server")


class Worker:
    """Serves until told to stop.

    Args:
        config: settings.
        number: number of this worker.
        folder: folder of the workers' sockets; None: this is the only one.
        family: address family of the public socket.
        address: address of the public socket.
    """

    def __init__(
        self, config: ServerConfig, number: int, folder: Path | None, family: int, address: tuple[Any, ...]
    ) -> None:
        self._config = config
        self._number = number
        self._folder = folder
        self._family = family
        self._address = address
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._level = ""
        self._orphaned = False

    def stop(self) -> None:
        """Stop: the first time after what runs has finished, the second time at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def abandon(self) -> None:
        """Stop at once: the parent is gone."""
        self._orphaned = True
        self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Start, say so, serve, drain.

        Raises:
            ToolgymError: it cannot start.
            OSError: it cannot listen.
        """
        sandbox = make_sandbox(self._config)
        beating = asyncio.create_task(self._beat())
        try:
            try:
                async with asyncio.timeout(START_DEADLINE):
                    await sandbox.start()
                    # The first request should not wait for the libraries to load.
                    await (await sandbox.session()).close()
            except TimeoutError:
                raise SandboxError(f"the sandbox did not start within {START_DEADLINE:g} s") from None
            self._level = sandbox.level.value
            app = SandboxApp(
                sandbox,
                _affordable(self._config),
                languages=offered_languages(self._config, sandbox.level),
                version=importlib.metadata.version("toolgym"),
                about={"isolation": asdict(sandbox.isolation)},
                worker=self._number,
                folder=self._folder,
            )
            await app.start()
            try:
                await self._serve(app)
            finally:
                await app.close()
        finally:
            await sandbox.close()
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _serve(self, app: SandboxApp) -> None:
        # After the drain there is nothing to wait for: aiohttp cuts the connections, which cancels what runs.
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
                say({"ready": True, "isolation": self._level})
                await self._stop.wait()
                await site.stop()
                app.drain()
                await self._drain(app)
        finally:
            await public.cleanup()
            await internal.cleanup()
            if self._folder is not None:
                self._tidy(self._folder)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_GRACE):
                    await app.quiet()

    def _tidy(self, folder: Path) -> None:
        """Remove the socket; where the parent is gone, who would remove the folder, the last worker does."""
        with contextlib.suppress(OSError):
            socket_path(folder, self._number).unlink(missing_ok=True)
            if self._orphaned:
                folder.rmdir()

    async def _beat(self) -> None:
        while True:
            say({"alive": True})
            await asyncio.sleep(BEAT)

    async def _drain(self, app: SandboxApp) -> None:
        """Wait until what runs has finished, the time for that is over, or somebody is in a hurry."""
        waits = [asyncio.create_task(app.quiet()), asyncio.create_task(self._hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=self._config.drain_timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def listening_socket(family: int, address: tuple[Any, ...]) -> socket.socket:
    """A socket at an address that other workers have too: the kernel shares connections out."""
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
    except BaseException:
        listening.close()
        raise
    return listening


def say(message: dict[str, Any]) -> None:
    """Tell the parent. One that does not listen is not waited for."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


def allow_many_files() -> None:
    """Let this process have as many descriptors as it may: each connection and each session needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _affordable(config: ServerConfig) -> ServerConfig:
    """The settings with no more connections than there are descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return config
    most = max(ACCEPTED, soft - OWN_FILES - ACCEPTED - 2 * config.share(config.max_concurrency))
    if most >= config.max_connections:
        return config
    _log.warning("max_connections: %d at once, for only %d open files are allowed here (ulimit -Hn)", most, soft)
    return config.model_copy(update={"max_connections": most})


async def _main(setup: dict[str, Any]) -> None:
    config = ServerConfig.model_validate(setup["config"])
    folder = Path(setup["folder"]) if setup["folder"] else None
    worker = Worker(config, setup["worker"], folder, setup["family"], tuple(setup["address"]))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_reader(0, _parent_gone, loop, worker)
    await worker.run()


def _parent_gone(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    if not os.read(0, 4096):
        loop.remove_reader(0)
        worker.abandon()


def main() -> None:
    """Run a worker. Exit status: 0 stopped as told, 1 could not start."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then tells all workers
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    setup = json.loads(sys.stdin.buffer.readline())
    os.set_blocking(1, False)
    allow_many_files()
    try:
        asyncio.run(_main(setup))
    except (ToolgymError, OSError) as error:
        say({"failed": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
