"""`FusionSandbox`: runs code on a server that speaks SandboxFusion's `/run_code`.

Request and response fields as in SandboxFusion's OpenAPI description (`RunCodeRequest`, `RunCodeResponse`).
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from toolgym.tools.errors import ConfigError
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox
from toolgym.tools.sandbox.names import check_name

NETWORK_GRACE = 10.0
"""Seconds beyond the program's own deadline until the HTTP request is given up."""


class FusionSandbox(Sandbox):
    """A remote sandbox.

    Args:
        url: the server's address, with or without the `/run_code` path.
        memory_limit_mb: memory limit that the server is asked to set, in MiB; -1 for the server's own.

    The connection pool belongs to the event loop that runs first; use one instance per event loop.
    """

    def __init__(self, url: str, *, memory_limit_mb: int = -1) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"sandbox_fusion_url must begin with http:// or https://, got {url!r}")
        base = url.rstrip("/")
        self.url = base if base.endswith("/run_code") else f"{base}/run_code"
        self.memory_limit_mb = memory_limit_mb
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    async def run(
        self,
        code: str,
        *,
        language: str = "python",
        timeout: float = 30.0,
        memory_mb: int | None = None,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch_files: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> ExecutionResult:
        if not timeout > 0:
            raise ConfigError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if env:
            raise ConfigError("SandboxFusion's API has no environment variables; leave env out")
        body = {
            "code": code,
            "language": language,
            "run_timeout": timeout,
            "compile_timeout": timeout,
            "stdin": stdin,
            "memory_limit_MB": self.memory_limit_mb if memory_mb is None else memory_mb,
            "files": {check_name(name): base64.b64encode(data).decode() for name, data in (files or {}).items()},
            "fetch_files": [check_name(name, absolute=True) for name in fetch_files],
        }
        started = time.monotonic()
        limit = aiohttp.ClientTimeout(total=2 * timeout + NETWORK_GRACE, connect=NETWORK_GRACE)
        try:
            async with self._session().post(self.url, json=body, timeout=limit) as response:
                if response.status != 200:
                    return _failed(f"{self.url} answered {response.status}: {(await response.text())[:500]}", started)
                answer = await response.json()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return _failed(f"{self.url} did not answer: {type(error).__name__}: {error}", started)
        return _read(answer, started)

    async def close(self) -> None:
        """Close the connections of the running event loop, and drop those of loops that have ended."""
        here = asyncio.get_running_loop()
        for loop, session in list(self._sessions.items()):
            if loop is here or loop.is_closed():
                del self._sessions[loop]
                if loop is here:
                    await session.close()

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            session = self._sessions[loop] = aiohttp.ClientSession()
        return session


def _failed(message: str, started: float) -> ExecutionResult:
    return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=message, duration=time.monotonic() - started)


def _read(answer: Any, started: float) -> ExecutionResult:
    """Turn a `RunCodeResponse` into our result. A failed compilation counts as the program's own failure."""
    if not isinstance(answer, dict):
        return _failed(f"the server's answer is not a JSON object: {answer!r}", started)
    if answer.get("status") == "SandboxError":
        return _failed(str(answer.get("message") or "the server reported SandboxError"), started)
    result = answer.get("run_result") or answer.get("compile_result")
    if not isinstance(result, dict):
        return _failed(f"the server's answer has neither run_result nor compile_result: {answer!r}"[:500], started)
    code = result.get("return_code")
    if result.get("status") == "TimeLimitExceeded":
        status = ExecutionStatus.TIMEOUT
    elif result.get("status") != "Finished":
        return _failed(str(answer.get("message") or result.get("stderr") or result.get("status")), started)
    elif code is not None and code < 0:
        status = ExecutionStatus.KILLED
    else:
        status = ExecutionStatus.OK if code == 0 else ExecutionStatus.ERROR
    return ExecutionResult(
        status=status,
        stdout=result.get("stdout") or "",
        stderr=result.get("stderr") or "",
        return_code=code,
        duration=float(result.get("execution_time") or 0.0),
        message=str(answer.get("message") or ""),
        files={name: base64.b64decode(data) for name, data in (answer.get("files") or {}).items()},
    )
