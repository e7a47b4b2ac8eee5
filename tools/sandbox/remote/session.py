"""`RemoteSession`: an interpreter on a server of ours that keeps its state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from toolgym.tools.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxError,
    SandboxUnavailableError,
    SessionForkError,
    SessionLostError,
)
from toolgym.tools.http.client import CallError, Request, json_body
from toolgym.tools.http.session import Reply
from toolgym.tools.sandbox.base import CellResult, ExecutionResult, ExecutionStatus, Session
from toolgym.tools.sandbox.names import check_argv, check_name, positive
from toolgym.tools.sandbox.protocol.messages import SessionInfo
from toolgym.tools.sandbox.remote.caller import Caller, SandboxReplica
from toolgym.tools.sandbox.remote.response_parsing import (
    NO_SESSION,
    NoFileError,
    NoRoomError,
    SessionGoneError,
    UnsupportedError,
    read_cell,
    read_content,
    read_exec,
    read_nothing,
    read_sessions,
)

T = TypeVar("T")

OPENING = 60.0
"""Seconds for opening or forking a session, or for a file to be read or written, once its turn has come."""

CLOSING = 10.0
"""Seconds for closing one."""

_log = logging.getLogger("toolgym.tools.sandbox")


class SessionOwner(Protocol):
    """What a remote session needs of the sandbox that it belongs to."""

    async def call(
        self,
        request: Request,
        read: Callable[[Reply], T],
        at: SandboxReplica | None = None,
    ) -> tuple[T, SandboxReplica]:
        """Send a call to a server when its turn has come."""

    def caller(self) -> Caller:
        """Return what sends calls from the running event loop at once."""

    async def opened(self, asking: Coroutine[Any, Any, tuple[Sequence[SessionInfo], SandboxReplica]]) -> list[Session]:
        """Return the sessions that a call makes."""

    def forget(self, session: RemoteSession) -> None:
        """Remove a session that is closed."""


class RemoteSession(Session):
    """A session of a `RemoteSandbox`. Made by `RemoteSandbox.session`; lives on one server, to which all calls go.

    A cell or program that may have begun is never sent again. A session whose server cannot be reached any more, or
    does not know it, counts as ended (`alive` false).
    """

    def __init__(self, owner: SessionOwner, replica: SandboxReplica, name: str) -> None:
        self._owner, self.replica, self._id = owner, replica, name
        self._checkpoints: dict[str, None] = {}
        self._alive = True
        self._closed = self._gone = self._unreached = False
        self._lock = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._id

    @property
    def alive(self) -> bool:
        return self._alive

    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        body = json_body({"code": code, "timeout": positive("timeout", timeout)})
        try:
            result = await self._ask(Request("POST", "/cells", body, timeout, repeatable=False), read_cell)
        except CallError as error:
            return CellResult(ExecutionStatus.SANDBOX_ERROR, message=str(error), alive=self._alive)
        if not result.alive:
            self._alive, self._gone = False, not self._checkpoints
        return result

    async def exec(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: str = "") -> ExecutionResult:
        body = json_body({"argv": check_argv(argv), "timeout": positive("timeout", timeout), "stdin": stdin})
        try:
            return await self._ask(Request("POST", "/exec", body, timeout, repeatable=False), read_exec)
        except CallError as error:
            return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=str(error))

    async def write_file(self, name: str, data: bytes) -> None:
        path = f"/files/{quote(check_name(name), safe='')}"
        request = Request("PUT", path, bytes(data), OPENING, content_type="application/octet-stream")
        try:
            await self._ask(request, read_nothing)
        except CallError as error:
            raise error_for(f"the file {name!r} cannot be written in the session", error) from None

    async def read_file(self, name: str) -> bytes:
        path = f"/files/{quote(check_name(name), safe='')}"
        try:
            return await self._ask(Request("GET", path, own=OPENING), read_content)
        except NoFileError:
            raise FileNotFoundError(f"the session has no file {name!r}") from None
        except CallError as error:
            raise error_for(f"the file {name!r} cannot be read in the session", error) from None

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return tuple(self._checkpoints)

    async def _fork(self, name: str | None, n: int) -> list[Session]:
        """See `Session.fork`. The new sessions live on the same server."""
        body = b"" if name is None and n == 1 else json_body({"checkpoint": name, "n": n})
        request = Request("POST", "/fork", body, OPENING)

        async def asking() -> tuple[Sequence[SessionInfo], SandboxReplica]:
            return await self._ask(request, read_sessions, dead_too=name is not None), self.replica

        try:
            forks = await self._owner.opened(asking())
        except CallError as error:
            raise error_for("the session cannot be forked", error) from None
        if len(forks) != n:
            await asyncio.gather(*(one.close() for one in forks))
            raise SandboxError(f"the session cannot be forked: the server made {len(forks)} forks instead of {n}")
        return forks

    async def _checkpoint(self, name: str) -> None:
        try:
            await self._ask(Request("PUT", _checkpoint_path(name), b"", OPENING), read_nothing)
        except CallError as error:
            raise error_for("the session cannot be forked", error) from None
        self._checkpoints.pop(name, None)
        self._checkpoints[name] = None

    async def _drop_checkpoint(self, name: str) -> None:
        self._checkpoints.pop(name)
        try:
            await self._ask(Request("DELETE", _checkpoint_path(name), own=OPENING), read_nothing, dead_too=True)
        except SessionGoneError:
            return
        except CallError as error:
            raise error_for(f"the checkpoint {name!r} cannot be dropped", error) from None

    async def close(self) -> None:
        """See `Session.close`. A server that cannot be reached ends the session itself when it is idle."""
        if self._closed:
            return
        self._closed = True
        self._owner.forget(self)
        reachable, self._alive = not self._unreached, False
        self._checkpoints.clear()
        if self._gone:
            return
        request = Request("DELETE", f"/sessions/{self._id}")
        try:
            async with asyncio.timeout(CLOSING):  # it waits for no turn, because closing makes room
                await self._owner.caller().call(request, read_nothing, self.replica, attempts=None if reachable else 1)
        except SessionGoneError:
            return
        except (CallError, SandboxError, ConfigError, TimeoutError) as error:
            # The call that lost the server has reported it already, and hundreds of sessions may be lost with it.
            level = logging.WARNING if reachable else logging.DEBUG
            _log.log(level, "a remote session could not be closed, its server will: %s", error or "it took too long")

    async def _ask(self, request: Request, read: Callable[[Reply], T], *, dead_too: bool = False) -> T:
        """Return the server's answer. `dead_too`: also if the session has died, whose checkpoints are still there."""
        async with self._lock:
            if self._closed or self._gone or not (self._alive or (dead_too and not self._unreached)):
                raise SessionGoneError(NO_SESSION)
            request = request._replace(path=f"/sessions/{self._id}{request.path}")
            try:
                found, _ = await self._owner.call(request, read, self.replica)
            except CallError as error:
                if error.unreached:
                    self._alive, self._unreached = False, True
                    raise SessionGoneError(str(error), unreached=True) from None
                if isinstance(error, SessionGoneError):
                    self._alive, self._gone = False, True
                raise
            return found


def error_for(what: str, error: CallError) -> SandboxError:
    """Return the error for a call that failed, by what its caller can do."""
    text = f"{what}: {error}"
    if isinstance(error, SessionGoneError):
        return SessionLostError(text)
    if isinstance(error, UnsupportedError):
        return SessionForkError(text)
    if isinstance(error, NoRoomError) or error.busy:
        return SandboxBusyError(text)
    return SandboxUnavailableError(text) if error.unreached else SandboxError(text)


def _checkpoint_path(name: str) -> str:
    return f"/checkpoints/{quote(name, safe='')}"
