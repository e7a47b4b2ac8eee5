"""`FusionSandbox`: runs code through SandboxFusion's `/run_code` alone, whoever serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolgym.tools.sandbox.base import ExecutionResult, Sandbox
from toolgym.tools.sandbox.remote.kinds import ServerKind
from toolgym.tools.sandbox.remote.retries import Retries
from toolgym.tools.sandbox.remote.sandbox import RemoteSandbox


class FusionSandbox(Sandbox):
    """A `RemoteSandbox` for servers of which nothing but SandboxFusion's API is used: no sessions, and no questions.

    For configurations written for SandboxFusion, and for gateways that let nothing but `/run_code` through. Our own
    server has more to offer as a `RemoteSandbox`.

    Args:
        urls: addresses of the servers, with or without the `/run_code` path.
        memory_limit_mb: memory limit that the servers are asked to set, in MiB; -1 for their own.
        token: bearer token that they want.
        retries: how patient to be.

    Raises:
        ConfigError: an argument cannot be used; says which.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        memory_limit_mb: int = -1,
        token: str | None = None,
        retries: Retries | None = None,
    ) -> None:
        self.memory_limit_mb = memory_limit_mb
        self._remote = RemoteSandbox(
            urls,
            token=token,
            kind=ServerKind.SANDBOXFUSION,
            memory_mb=memory_limit_mb if memory_limit_mb > 0 else None,
            retries=retries,
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers."""
        return self._remote.urls

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
        return await self._remote.run(
            code,
            language=language,
            timeout=timeout,
            memory_mb=memory_mb,
            stdin=stdin,
            files=files,
            fetch_files=fetch_files,
            env=env,
        )

    async def close(self) -> None:
        await self._remote.close()
