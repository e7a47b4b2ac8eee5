"""`SandboxServers`: a sandbox server on each machine of a Ray cluster, for the length of a `RayRunner`."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import ray
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from toolgym.rollout.runner.ray.cluster import WorkerLostError, call, kill, nodes
from toolgym.tools.errors import ClusterError, ConfigError, error_text
from toolgym.tools.sandbox.open import TOKEN_VARIABLE, URLS_VARIABLE

PROGRAM = "toolgym.rollout.runner.ray.sandbox_server"

START_TIMEOUT = 180.0

STOP_TIMEOUT = 15.0
"""Seconds for a server to stop, before it is killed."""

OURS = ("host", "port", "token", "token_file")
"""Settings of a server that are not the user's."""

_log = logging.getLogger("toolgym.rollout")


class SandboxHost:
    """A Ray actor that runs a sandbox server on its machine. The server ends with it, however it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, settings: Mapping[str, Any]) -> str:
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({**settings, "host": get_node_ip_address(), "port": 0}) + "\n")
        process.stdin.flush()
        last = ""
        for line in process.stdout:
            if (match := re.search(r" on (http://\S+)", line)) is not None:
                return match[1]
            last = line.strip() or last
        raise ClusterError(f"a sandbox server did not start: {last}")

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()


class SandboxServers:
    """Starts and stops the servers, each with these settings of `ServerConfig`."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        wrong = sorted(set(settings or {}) & set(OURS))
        if wrong:
            raise ConfigError(
                f"settings of sandbox servers cannot have {', '.join(wrong)}: the runner sets that for its servers"
            )
        self._settings = {"drain_timeout": 5.0, "log_level": "warning", **(settings or {})}
        self._token = secrets.token_urlsafe(24)
        self._hosts: list[Any] = []

    async def start(self) -> dict[str, str]:
        """Start a server on each machine that is there now; one that cannot start is left out, and logged. Returns the
        variables of the environment that lead a process's tools to them. Raises `ClusterError` if none started."""
        kind = ray.remote(SandboxHost)
        for node in nodes():
            where = NodeAffinitySchedulingStrategy(node, soft=False)
            self._hosts.append(kind.options(num_cpus=0, scheduling_strategy=where).remote())
        settings = {**self._settings, "token": self._token}
        calls = (call(host, "start", settings, seconds=START_TIMEOUT) for host in self._hosts)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        urls = [outcome for outcome in outcomes if isinstance(outcome, str)]
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        for error in errors:
            _log.warning("a machine has no sandbox server: %s", error_text(error))
        if not urls:
            await self.close()
            raise ClusterError(f"no sandbox server could be started; one of them: {error_text(errors[0])}")
        return {URLS_VARIABLE: ",".join(urls), TOKEN_VARIABLE: self._token}

    async def close(self) -> None:
        hosts, self._hosts = self._hosts, []
        await asyncio.gather(*map(_close, hosts))


async def _close(host: Any) -> None:
    try:
        await call(host, "close", seconds=2 * STOP_TIMEOUT)
    except WorkerLostError as error:
        _log.debug("a sandbox server ended before it was stopped: %s", error)
    finally:
        kill(host)
