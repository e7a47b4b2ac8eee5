"""`RemoteSession`: an interpreter on a server of ours that keeps its state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox.base import CellResult, ExecutionResult, ExecutionStatus, Session
from toolgym.tools.sandbox.names import check_name, positive
from toolgym.tools.sandbox.remote.answers import (
    NO_SESSION,
    NoFileError,
    SessionGoneError,
    read_cell,
    read_content,
    read_exec,
    read_nothing,
    read_session,
)
from toolgym.tools.sandbox.remote.caller import CallError, Request, json_body
from toolgym.tools.sandbox.remote.replicas import Replica
from toolgym.tools.sandbox.remote.transport import Reply
from toolgym.tools.sandbox.server.wire import SessionInfo

if TYPE_CHECKING:
    from toolgym.tools.sandbox.remote.sandbox import RemoteSandbox

T = TypeVar("T")

OPENING = 60.0
"""Seconds for opening or forking a session, or for a file to be read or written, once its turn has come."""

CLOSING = 10.0
"""Seconds for closing one."""

_log = logging.getLogger("toolgym.tools.sandbox")


class RemoteSession(Session):
    """A session of a `RemoteSandbox`. Made by `RemoteSandbox.session`; lives on one server, to which all calls go.

    A cell or program that may have begun is never sent again. One whose server cannot be reached any more, or does not
    know it, counts as ended (`alive` false).
    """

    def __init__(self, sandbox: RemoteSandbox, replica: Replica, name: str) -> None:
        self._sandbox, self.replica, self._id = sandbox, replica, name
        self._alive = True
        self._closed = self._gone = False
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
            self._alive, self._gone = False, True
        return result

    async def exec(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: str = "") -> ExecutionResult:
        if not argv or isinstance(argv, str) or not all(isinstance(word, str) for word in argv):
            raise ConfigError(f"argv must be a list of words, got {argv!r}")
        body = json_body({"argv": list(argv), "timeout": positive("timeout", timeout), "stdin": stdin})
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
            raise SandboxError(f"the file {name!r} cannot be written in the session: {error}") from None

    async def read_file(self, name: str) -> bytes:
        path = f"/files/{quote(check_name(name), safe='')}"
        try:
            return await self._ask(Request("GET", path, own=OPENING), read_content)
        except NoFileError:
            raise FileNotFoundError(f"the session has no file {name!r}") from None
        except CallError as error:
            raise SandboxError(f"the file {name!r} cannot be read in the session: {error}") from None

    async def fork(self) -> RemoteSession:
        """See `Session.fork`. The new session lives on the same server."""

        async def asking() -> tuple[SessionInfo, Replica]:
            return await self._ask(Request("POST", "/fork", b"", OPENING), read_session), self.replica

        try:
            return await self._sandbox.opened(asking())
        except CallError as error:
            raise SandboxError(f"the session cannot be forked: {error}") from None

    async def close(self) -> None:
        """See `Session.close`. Where the server cannot be told, it ends the session itself when it is idle."""
        if self._closed:
            return
        self._closed = True
        self._sandbox.forget(self)
        reachable, self._alive = self._alive, False
        if self._gone:
            return
        request = Request("DELETE", f"/sessions/{self._id}")
        try:
            async with asyncio.timeout(CLOSING):  # not in the queue of calls: it is what makes room
                await self._sandbox.caller().call(
                    request, read_nothing, self.replica, attempts=None if reachable else 1
                )
        except SessionGoneError:
            return
        except (CallError, SandboxError, ConfigError, TimeoutError) as error:
            # One that is known to be lost was told of when it was; its server may have taken hundreds along.
            level = logging.WARNING if reachable else logging.DEBUG
            _log.log(level, "a remote session could not be closed, its server will: %s", error or "it took too long")

    async def _ask(self, request: Request, read: Callable[[Reply], T]) -> T:
        async with self._lock:
            if not self._alive:
                raise CallError(NO_SESSION)
            request = request._replace(path=f"/sessions/{self._id}{request.path}")
            try:
                found, _ = await self._sandbox.call(request, read, self.replica)
            except CallError as error:
                if error.unreached or isinstance(error, SessionGoneError):
                    self._alive, self._gone = False, not error.unreached
                raise
            return found
