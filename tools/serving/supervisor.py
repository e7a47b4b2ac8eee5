"""A whole server: worker processes that share a port. A supervisor replaces those that end, and stops them all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, ToolgymError
from toolgym.tools.serving.config import ServingConfig
from toolgym.tools.serving.worker import CANCEL_GRACE, HEARTBEAT, START_DEADLINE, listening_socket

SILENCE = 30 * HEARTBEAT
"""Seconds without a heartbeat after which a worker is killed and replaced."""

MAX_FAILURES = 5
BACKOFF = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Seconds before a worker is started again, by the number of failures."""

_log = logging.getLogger("toolgym.tools.serving")


class ServerStartError(ToolgymError, RuntimeError):
    """The workers of a server cannot start."""


async def serve(config: ServingConfig, announce: Callable[[str], None]) -> None:
    """Run a server until SIGTERM, SIGINT or SIGHUP; then drain it. A second signal ends the drain.

    `announce` is called once all workers serve. Raises ConfigError for an unusable address, and ServerStartError.
    """
    family, address = resolve(config)
    reserved = listening_socket(family, address)  # it never listens; it keeps the port while workers are replaced
    # Not where TMPDIR says: a UNIX socket's path has at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="toolgym-serve-", dir="/tmp") if config.workers > 1 else ""
    try:
        server = _Supervisor(config, folder, family, reserved.getsockname())
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        for number in signals:
            loop.add_signal_handler(number, server.stop)
        try:
            await server.run(announce)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
    finally:
        reserved.close()
        if folder:
            await in_thread(shutil.rmtree, folder, ignore_errors=True)


def resolve(config: ServingConfig) -> tuple[int, tuple[Any, ...]]:
    """Return the family and address to listen on. Raises ConfigError if it does not exist here, or is taken."""
    try:
        addresses = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host: {config.host!r} is no address of this machine: {error}") from None
    family, _, _, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
    # The workers share the port, so they could share it with another server too. This socket shares it with none.
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(address)
        except OSError as error:
            raise ConfigError(f"port: cannot listen on {config.host}:{config.port}: {error.strerror}") from error
    return family, address


class _Supervisor:
    def __init__(self, config: ServingConfig, folder: str, family: int, address: tuple[Any, ...]) -> None:
        self._config, self._folder, self._family, self._address = config, folder, family, address
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: set[int] = set()
        self._restarts = dict.fromkeys(range(config.workers), 0)
        self._all_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._about = ""

    def stop(self) -> None:
        self._stopping.set()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def run(self, announce: Callable[[str], None]) -> None:
        tasks = [asyncio.create_task(self._keep(number)) for number in range(self._config.workers)]
        ready = asyncio.create_task(self._announce(announce))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            self.stop()
            ready.cancel()
            # When one worker fails for good, the others drain too, each within its own deadline.
            await asyncio.gather(*tasks, ready, return_exceptions=True)

    async def _announce(self, announce: Callable[[str], None]) -> None:
        await self._all_ready.wait()
        host, port = self._address[:2]
        where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        count = self._config.workers
        about = f", {self._about}" if self._about else ""
        announce(f"{self._config.spec.name} on {where} ({count} worker{'s'[: count > 1]}{about})")

    async def _keep(self, number: int) -> None:
        failures = 0
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BACKOFF[min(failures, len(BACKOFF) - 1)] or 0.001):
                    await self._stopping.wait()
            if self._stopping.is_set():
                return
            was_ready, why = await self._run_once(number)
            self._restarts[number] += 1
            if self._stopping.is_set():
                return
            if was_ready:
                failures = 0
                _log.error("worker %d ended (%s) and is replaced; what it held is lost", number, why)
                continue
            failures += 1
            if not self._all_ready.is_set() or failures >= MAX_FAILURES:
                raise ServerStartError(f"the server cannot start worker {number}: {why}")
            _log.error("worker %d cannot start (%s); trying again", number, why)

    async def _run_once(self, number: int) -> tuple[bool, str]:
        """Run a worker until it ends. Returns whether it was ever ready, and the reason of its end."""
        setup = {
            "config": self._config.model_dump(mode="json") | self._config.secrets() | {"token_file": None},
            "worker": number,
            "restarts": self._restarts[number],
            "folder": self._folder,
            "family": int(self._family),
            "address": list(self._address),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                self._config.spec.worker,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if name != self._config.spec.token_variable},
                start_new_session=True,
            )
        except OSError as error:  # no more processes or descriptors now; the other workers go on
            return False, str(error)
        self._processes[number] = process
        was_ready, why = False, ""
        killer: asyncio.Task[None] | None = None
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(setup).encode() + b"\n")
            if self._stopping.is_set():
                process.terminate()
            killer = asyncio.create_task(self._kill_when_late(process))
            while True:
                try:
                    async with asyncio.timeout(SILENCE if was_ready else START_DEADLINE + SILENCE):
                        line = await process.stdout.readline()
                except TimeoutError:
                    why = "it gave no sign of life"
                    break
                if not line:
                    break
                message = json.loads(line)
                why = message.get("failed", why)
                if message.get("ready"):
                    was_ready = True
                    self._about = message["about"]
                    self._ready.add(number)
                    if len(self._ready) == self._config.workers:
                        self._all_ready.set()
        finally:
            if killer is not None:
                killer.cancel()
            code = await _end(process)
            del self._processes[number]
        return was_ready, why or f"exit status {code}"

    async def _kill_when_late(self, process: asyncio.subprocess.Process) -> None:
        """Kill a worker that does not end in time once the server is stopping."""
        await self._stopping.wait()
        await asyncio.sleep(self._config.drain_timeout + 4 * CANCEL_GRACE)
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _end(process: asyncio.subprocess.Process) -> int:
    """Return a process's exit status; kill it if it does not end in time."""
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_GRACE):
                await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return await process.wait()
