"""`RemoteSandbox`: runs code on other machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, SandboxClosedError, SandboxUnavailableError, SandboxUnsupportedError
from toolgym.tools.http.addresses import check_address, check_addresses
from toolgym.tools.http.client import CallError, HttpRequest, json_body
from toolgym.tools.http.retries import Retries
from toolgym.tools.http.session import HttpResponse, HttpSession
from toolgym.tools.keywords import named_keywords
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox, Session
from toolgym.tools.sandbox.facts import SandboxFacts
from toolgym.tools.sandbox.names import positive
from toolgym.tools.sandbox.options import RunRequest, SessionRequest
from toolgym.tools.sandbox.protocol.messages import SessionInfo, encode_base64
from toolgym.tools.sandbox.remote.caller import Caller, SandboxReplica, ServerKind
from toolgym.tools.sandbox.remote.response_parsing import read_run_code, read_sessions
from toolgym.tools.sandbox.remote.session import OPENING, Opening, RemoteSession, failing

T = TypeVar("T")

CLOSE_TIMEOUT = 15.0

LAST_ANSWER = 1.0
"""Seconds to wait for the answer when opening a session was cancelled; then the connection is closed."""

MAX_CONNECTIONS = 256
"""Calls at once by default: those for which a server has no slot wait there."""

SPARE = 32
"""Further connections, for health checks and for closing sessions."""

_log = logging.getLogger("toolgym.tools.sandbox")


class RemoteSandbox(Sandbox):
    """Runs code on one or several servers: our own (`toolgym serve sandbox`) or ones with SandboxFusion's API.

    The sandbox asks each address once for its API, unless `kind` says so. With `kind="sandboxfusion"` it uses only
    `/run_code`, so there are no sessions: for SandboxFusion itself, and for gateways that let nothing else through.

    Calls go to the server that has the least to do. A server that fails gets no calls for a growing time, and gets some
    again when it answers a health check. A run is sent again, because it is a clean start (see `Retries`); a cell or
    program that may have begun is not, and its result is then `SANDBOX_ERROR`, with an unknown outcome. `SANDBOX_ERROR`
    is a server's failure, and never a program's. Cancelling a call closes its connection; our own server then kills
    what it ran.

    Several event loops may use it, each with its own connections (`leave` closes those of a loop that is about to end);
    a session belongs to the loop that opened it.

    Args:
        urls: addresses of the servers, as `http://host:port`.
        token: bearer token for the servers.
        kind: the API of all of them. Default: ask.
        memory_mb: memory of each run and session in MiB, for calls that set none. Default: the servers' own.
        max_connections: calls at once, to all servers, from one event loop; more wait for their turn.
        retries: patience with servers.

    Raises ConfigError, which names the argument that cannot be used.
    """

    @named_keywords
    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        kind: ServerKind | str | None = None,
        memory_mb: int | None = None,
        max_connections: int = MAX_CONNECTIONS,
        retries: Retries | None = None,
    ) -> None:
        self.urls = check_addresses(urls, "a RemoteSandbox", check_url)
        if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
            raise ConfigError("a sandbox token must be printable ASCII without spaces, and not empty")
        try:
            self._kind = None if kind is None else ServerKind(kind)
        except ValueError:
            raise ConfigError(f"kind must be one of {[str(known) for known in ServerKind]}, got {kind!r}") from None
        if memory_mb is not None:
            positive("memory_mb", memory_mb)
        self._token = token
        self._memory_mb = memory_mb
        self._max_connections = max_connections
        self._gate = LocalRateLimiter(max_connections)
        self._retries = retries or Retries()
        self._callers: dict[asyncio.AbstractEventLoop, Caller] = {}
        self._open: set[RemoteSession] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.urls)}>"

    async def execute(self, request: RunRequest) -> ExecutionResult:
        """Run a program. Environment variables need our own server; SandboxFusion's API has none."""
        compiling = request.compile_timeout if request.compile_timeout is not None else request.timeout
        body = {
            "code": request.code,
            "language": request.language,
            "run_timeout": request.timeout,
            "compile_timeout": compiling,
            "stdin": request.stdin,
            "memory_limit_MB": self._memory_limit(request.memory_mb),
            "files": _encode(request.files),
            "fetch_files": list(request.fetch_files),
        }
        text = request.code + request.stdin
        has_surrogates = text.encode(errors="ignore").decode() != text
        with contextlib.suppress(SandboxUnavailableError):  # they cannot be asked now
            if has_surrogates and await self._any_kind() is ServerKind.SANDBOXFUSION:
                why = "SyntaxError: the program or its input holds lone surrogates, which are no text\n"
                return ExecutionResult(ExecutionStatus.ERROR, stderr=why, return_code=1)  # its server would fail
        if request.env:
            if await self._any_kind() is not ServerKind.TOOLGYM:
                raise ConfigError("SandboxFusion's API has no environment variables; leave env out")
            body["env"] = dict(request.env)
        asked = HttpRequest("POST", "/run_code", json_body(body), request.timeout + compiling)
        try:
            return (await self.call(asked, read_run_code))[0]
        except CallError as error:
            return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=str(error))

    async def open_session(self, request: SessionRequest) -> Session:
        """Open a session on one of our own servers, where it stays."""
        if not await self.has_sessions():
            raise SandboxUnsupportedError(
                f"{', '.join(self.urls)}: SandboxFusion's API has no sessions; use `toolgym serve sandbox`, or run "
                "each program by itself (stateful: false)"
            )
        if request.image is not None:
            raise SandboxUnsupportedError("sessions on a server have no images: open it on a LocalSandbox")
        body = {
            "memory_limit_MB": self._memory_limit(request.memory_mb),
            "files": _encode(request.files),
            "env": dict(request.env),
        }
        for name in ("file_mb", "disk_mb", "inodes", "network", "folders", "recover", "idle"):
            if (value := getattr(request, name)) not in (None, ()):
                body[name] = value
        asked = HttpRequest("POST", "/sessions", json_body(body), OPENING)
        with failing("a session cannot be opened"):
            (session,) = await self.opened(self.call(asked, read_sessions, for_session=True))
        return session

    @property
    def facts(self) -> SandboxFacts:
        """Facts of the servers that were asked so far, where they agree."""
        facts = {replica.facts for caller in self._callers.values() for replica in caller.replicas if replica.kind}
        return facts.pop() if len(facts) == 1 else SandboxFacts()

    @property
    def sessions_known(self) -> bool | None:
        return None if self._kind is None else self._kind is ServerKind.TOOLGYM

    async def has_sessions(self) -> bool:
        """Return whether one of the servers has them, which are asked the first time."""
        return await self._any_kind() is ServerKind.TOOLGYM

    async def leave(self) -> None:
        """Close the connections of the running event loop, which is about to end; other loops keep theirs."""
        caller = self._callers.pop(asyncio.get_running_loop(), None)
        if caller is not None:
            await caller.close()

    async def close(self) -> None:
        if self._closed:
            return
        left = tuple(self._open)
        if left:
            self.caller()  # it closes the sessions of event loops that have ended
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await asyncio.gather(*(session.close() for session in left))
        except TimeoutError:
            _log.warning("%d remote sessions could not be closed; their servers do when they are idle", len(self._open))
        finally:
            self._open.clear()
            here = asyncio.get_running_loop()
            callers, self._callers = self._callers, {}
            for loop, caller in callers.items():
                if loop is here:
                    await caller.close()
                elif loop.is_running():
                    elsewhere = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(caller.close(), loop))
                    if not (await asyncio.wait({elsewhere}, timeout=CLOSE_TIMEOUT))[0]:
                        _log.warning("the connections of another event loop could not be closed; it does not answer")

    # ------------------------------------------------------------------ for sessions

    async def call(
        self,
        request: HttpRequest,
        read: Callable[[HttpResponse], T],
        at: SandboxReplica | None = None,
        *,
        for_session: bool = False,
    ) -> tuple[T, SandboxReplica]:
        """Call a server when it is this call's turn, see `Caller.call`."""
        caller = self.caller()
        async with self._gate.permit():  # `release` does not await, so no cancellation can lose an answer
            return await caller.call(request, read, at, for_session=for_session)

    def caller(self) -> Caller:
        """Return the caller of the running event loop. Raises SandboxClosedError."""
        loop = asyncio.get_running_loop()
        caller = self._callers.get(loop)
        if caller is None:
            if self._closed:
                raise SandboxClosedError("the sandbox is closed")
            session = HttpSession(self._token, self._max_connections + SPARE, self._retries.connect_timeout)
            replicas = [SandboxReplica(url, self._kind) for url in self.urls]
            caller = self._callers[loop] = Caller(replicas, self._retries, session)
        return caller

    async def opened(self, asking: Opening) -> list[Session]:
        """Return the sessions that a call makes; they are closed with the sandbox.

        A cancelled caller waits `LAST_ANSWER` seconds for the answer, to close sessions that would stay on the server.
        """
        call = asyncio.ensure_future(asking)
        try:
            infos, replica = await asyncio.shield(call)
        except asyncio.CancelledError:
            await shielded(self._undo(call))
            raise
        sessions = [RemoteSession(self, replica, info.id) for info in infos]
        self._open.update(sessions)
        replica.sessions += len(sessions)
        return [*sessions]

    async def _undo(self, call: asyncio.Task[tuple[Sequence[SessionInfo], SandboxReplica]]) -> None:
        """Close the sessions that a call has made; cancel it if it does not end soon."""
        if not (await asyncio.wait({call}, timeout=LAST_ANSWER))[0]:
            call.cancel()
            await asyncio.wait({call})
        if not call.cancelled() and call.exception() is None:
            infos, replica = call.result()
            await asyncio.gather(*(RemoteSession(self, replica, info.id).close() for info in infos))

    def forget(self, session: RemoteSession) -> None:
        if session in self._open:
            self._open.discard(session)
            session.replica.sessions -= 1

    # ------------------------------------------------------------------ inside

    def _memory_limit(self, memory_mb: int | None) -> int:
        limit = memory_mb if memory_mb is not None else self._memory_mb
        return -1 if limit is None else int(limit)

    async def _any_kind(self) -> ServerKind:
        """Return the better of the servers' kinds. Raises SandboxUnavailableError if they cannot be asked now."""
        caller = self.caller()
        if any(replica.kind is ServerKind.TOOLGYM for replica in caller.replicas):
            return ServerKind.TOOLGYM
        asked = await asyncio.gather(*(caller.kind(replica) for replica in caller.replicas), return_exceptions=True)
        for answer in asked:
            if isinstance(answer, BaseException) and not isinstance(answer, CallError):
                raise answer
        kinds = [answer for answer in asked if isinstance(answer, ServerKind)]
        if not kinds:
            raise SandboxUnavailableError(f"the sandbox servers cannot be asked what they are: {asked[0]}")
        return ServerKind.TOOLGYM if ServerKind.TOOLGYM in kinds else ServerKind.SANDBOXFUSION


def check_url(url: object) -> str:
    """Return a server's address without `/run_code` at its end."""
    return check_address(url, "a sandbox server").removesuffix("/run_code").rstrip("/")


def _encode(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: encode_base64(data) for name, data in files.items()}
