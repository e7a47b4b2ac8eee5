"""`RemoteSession`: an interpreter on a server of ours that keeps its state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from toolgym.tools.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxError,
    SandboxUnavailableError,
    SandboxUnsupportedError,
    SessionForkError,
    SessionLostError,
)
from toolgym.tools.http.client import CallError, HttpRequest, json_body
from toolgym.tools.http.session import HttpResponse
from toolgym.tools.sandbox.base import CellResult, ExecResult, ExecutionStatus, Session
from toolgym.tools.sandbox.files import FileAction, FileInfo, FileRow, file_error, split
from toolgym.tools.sandbox.names import check_path, positive
from toolgym.tools.sandbox.processes import MAX_INPUT, Command, Process, ProcessRequest, ProcessState
from toolgym.tools.sandbox.protocol.messages import ProcessInfo, SessionInfo, encode_base64, framed
from toolgym.tools.sandbox.remote import response_parsing as answers
from toolgym.tools.sandbox.remote.caller import Caller, SandboxReplica
from toolgym.tools.sandbox.remote.response_parsing import NO_SESSION, REFUSALS, RefusedCallError, SessionGoneError

T = TypeVar("T")

Opening = Coroutine[Any, Any, tuple[Sequence[SessionInfo], SandboxReplica]]

OPENING = 60.0
"""Seconds for opening or forking a session, or for a file, once its turn has come."""

CLOSING = 10.0

RAW = "application/octet-stream"

_log = logging.getLogger("toolgym.tools.sandbox")


class SessionOwner(Protocol):
    """The part of a sandbox that its remote sessions need."""

    async def call(
        self, request: HttpRequest, read: Callable[[HttpResponse], T], at: SandboxReplica | None = None
    ) -> tuple[T, SandboxReplica]: ...

    def caller(self) -> Caller: ...

    async def opened(self, asking: Opening) -> list[Session]: ...

    def forget(self, session: RemoteSession) -> None: ...


class RemoteSession(Session):
    """A session of a `RemoteSandbox`, on one server, which gets all its calls.

    A cell or program that may have begun is never sent again. A session whose server cannot be reached any more, or
    does not know it, counts as ended (`alive` false).
    """

    def __init__(self, owner: SessionOwner, replica: SandboxReplica, name: str) -> None:
        self._owner, self.replica, self.id = owner, replica, name
        self._checkpoints: dict[str, None] = {}
        self._alive = True
        self._closed = self._gone = self._unreached = self._closed_alive = False
        self._lock = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def lost_to_sandbox(self) -> bool:
        return self._unreached or self._closed_alive

    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        body = json_body({"code": code, "timeout": positive("timeout", timeout)})
        try:
            result = await self._ask(HttpRequest("POST", "/cells", body, timeout, repeatable=False), answers.read_cell)
        except CallError as error:
            return CellResult(ExecutionStatus.SANDBOX_ERROR, message=str(error), alive=self._alive)
        if not result.alive:
            self._alive, self._gone = False, not self._checkpoints
        return result

    async def _exec(self, command: Command, stdin: bytes, timeout: float) -> ExecResult:
        if len(stdin) > MAX_INPUT:
            return await self._exec_fed(command, stdin, timeout)
        body = json_body({**vars(command), **_input(stdin), "timeout": timeout})
        request = HttpRequest("POST", "/exec", body, timeout, repeatable=False)
        with failing("no program can be started"):
            try:
                return await self.call(request, answers.read_exec)
            except CallError as error:
                if isinstance(error, RefusedCallError) and error.reason in REFUSALS:
                    raise
                return ExecResult(ExecutionStatus.SANDBOX_ERROR, message=str(error))

    async def _exec_fed(self, command: Command, stdin: bytes, timeout: float) -> ExecResult:
        """Run a program with more input than one request may have."""
        began = time.monotonic()
        async with await self._start(command) as process:
            try:
                async with asyncio.timeout(timeout):
                    await process.write_stdin(stdin, timeout=timeout)
                    await process.close_stdin()
                    state = await process.ask(ProcessRequest(until="exit", wait=timeout))
            except TimeoutError:
                state = await process.ask(ProcessRequest())
            except SandboxError as error:
                return ExecResult(ExecutionStatus.SANDBOX_ERROR, message=str(error))
            output = (await process.ask(ProcessRequest(read=True))).output
        status = ExecutionStatus.TIMEOUT if state.running else ExecutionStatus.OK
        if state.code:
            status = ExecutionStatus.KILLED if state.code < 0 else ExecutionStatus.ERROR
        return ExecResult(
            status,
            stdout=output.text,
            stderr=output.stderr.decode("utf-8", "replace"),
            return_code=state.code,
            duration=time.monotonic() - began,
            stdout_truncated=output.stdout_truncated,
            stderr_truncated=output.stderr_truncated,
            stdout_bytes=output.stdout,
            stderr_bytes=output.stderr,
        )

    async def _start(self, command: Command) -> RemoteProcess:
        request = HttpRequest("POST", "/processes", json_body(vars(command)), OPENING, repeatable=False)
        with failing("the program cannot be started"):
            return RemoteProcess(self, await self.call(request, answers.read_started))

    async def write_file(self, name: str, data: bytes) -> None:
        path = f"/files/{quote(check_path(name), safe='')}"
        request = HttpRequest("PUT", path, bytes(data), OPENING, content_type=RAW)
        with failing(f"the file {name!r} cannot be written in the session"):
            await self._ask(request, answers.read_nothing)

    async def read_file(self, name: str) -> bytes:
        request = HttpRequest("GET", f"/files/{quote(check_path(name), safe='')}", timeout=OPENING)
        with failing(f"the file {name!r} cannot be read in the session"):
            return await self._ask(request, answers.read_content)

    async def _act(self, action: FileAction, name: str, rest: Mapping[str, Any]) -> Sequence[FileInfo]:
        repeatable = action in ("list", "stat", "walk")
        body = json_body({"action": action, "path": name, **rest})
        request = HttpRequest("POST", "/files", body, OPENING, repeatable=repeatable)
        with failing(f"{action} {name!r} fails in the session"):
            return await self._ask(request, answers.read_files)

    async def _pack(self, name: str, names: Sequence[str]) -> Sequence[bytes | None]:
        request = HttpRequest("POST", "/pack", json_body({"path": name, "names": list(names)}), OPENING)
        with failing(f"the folder {name!r} cannot be read in the session"):
            sizes, data = await self._ask(request, answers.read_contents)
        return split(sizes, data, len(names))

    async def _unpack(self, name: str, rows: Sequence[FileRow], data: bytes) -> None:
        body = framed({"path": name, "rows": rows}, data)
        request = HttpRequest("POST", "/unpack", body, OPENING, content_type=RAW)
        with failing(f"the folder {name!r} cannot be written in the session"):
            await self._ask(request, answers.read_nothing)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return tuple(self._checkpoints)

    async def _fork(self, name: str | None, n: int) -> list[Session]:
        """Make forks, on the same server."""
        body = b"" if name is None and n == 1 else json_body({"checkpoint": name, "n": n})
        request = HttpRequest("POST", "/fork", body, OPENING)

        async def asking() -> tuple[Sequence[SessionInfo], SandboxReplica]:
            return await self._ask(request, answers.read_sessions, dead_too=name is not None), self.replica

        with failing("the session cannot be forked", SessionForkError):
            forks = await self._owner.opened(asking())
        if len(forks) != n:
            await asyncio.gather(*(fork.close() for fork in forks))
            raise SandboxError(f"the session cannot be forked: the server made {len(forks)} forks instead of {n}")
        return forks

    async def _checkpoint(self, name: str) -> None:
        with failing("the session cannot be forked", SessionForkError):
            await self._ask(HttpRequest("PUT", _checkpoint_path(name), b"", OPENING), answers.read_nothing)
        self._checkpoints.pop(name, None)
        self._checkpoints[name] = None

    async def _drop_checkpoint(self, name: str) -> None:
        self._checkpoints.pop(name)
        request = HttpRequest("DELETE", _checkpoint_path(name), timeout=OPENING)
        with contextlib.suppress(SessionLostError), failing(f"the checkpoint {name!r} cannot be dropped"):
            await self._ask(request, answers.read_nothing, dead_too=True)

    async def close(self) -> None:
        """Close the session. A server that cannot be reached ends the session itself when it is idle."""
        if self._closed:
            return
        self._closed, self._closed_alive = True, self._alive
        self._owner.forget(self)
        reachable, self._alive = not self._unreached, False
        self._checkpoints.clear()
        if self._gone:
            return
        request = HttpRequest("DELETE", f"/sessions/{self.id}")
        try:
            async with asyncio.timeout(CLOSING):  # it waits for no turn, because closing makes room
                await self._owner.caller().call(
                    request, answers.read_nothing, self.replica, attempts=None if reachable else 1
                )
        except SessionGoneError:
            return
        except (CallError, SandboxError, ConfigError, TimeoutError) as error:
            # The call that lost the server has reported it already, and hundreds of sessions may be lost with it.
            level = logging.WARNING if reachable else logging.DEBUG
            _log.log(level, "a remote session could not be closed, its server will: %s", error or "it took too long")

    async def _ask(self, request: HttpRequest, read: Callable[[HttpResponse], T], *, dead_too: bool = False) -> T:
        """Return the server's answer when it is this call's turn."""
        async with self._lock:
            return await self.call(request, read, dead_too=dead_too)

    async def call(self, request: HttpRequest, read: Callable[[HttpResponse], T], *, dead_too: bool = False) -> T:
        """Return the server's answer, with `dead_too` also if only checkpoints of the session are there."""
        if self._closed or self._gone or not (self._alive or (dead_too and not self._unreached)):
            raise SessionGoneError(NO_SESSION)
        request = request._replace(path=f"/sessions/{self.id}{request.path}")
        try:
            result, _ = await self._owner.call(request, read, self.replica)
        except CallError as error:
            if error.unreached:
                self._alive, self._unreached = False, True
                raise SessionGoneError(str(error), unreached=True) from None
            if isinstance(error, SessionGoneError):
                self._alive, self._gone = False, True
            raise
        return result


class RemoteProcess(Process):
    """A program in the background of a `RemoteSession`."""

    def __init__(self, session: RemoteSession, info: ProcessInfo) -> None:
        super().__init__(info.pid)
        self._session, self._path = session, f"/processes/{info.process}"

    async def _ask(self, request: ProcessRequest) -> ProcessState:
        fields = {name: value for name, value in asdict(request).items() if name not in ("data", "forget")}
        body = json_body({**fields, **_input(request.data)})
        # What was read is gone, and what was written would be written twice.
        repeatable = not (request.data or request.read or request.signal)
        asked = HttpRequest("POST", self._path, body, OPENING + request.wait, repeatable=repeatable)
        with failing("the process cannot be asked"):
            return await self._session.call(asked, answers.read_process)

    async def _end(self) -> None:
        with contextlib.suppress(SessionLostError), failing("the process cannot be ended"):
            await self._session.call(HttpRequest("DELETE", self._path, timeout=OPENING), answers.read_nothing)


def _input(data: bytes) -> dict[str, str]:
    """Make the fields of a program's input: a text, or base64 for other bytes."""
    try:
        return {"stdin": data.decode()}
    except UnicodeDecodeError:
        return {"stdin_base64": encode_base64(data)}


@contextlib.contextmanager
def failing(what: str, unsupported: type[SandboxUnsupportedError] = SandboxUnsupportedError) -> Iterator[None]:
    """Raise another error for a call that fails, by its remedy."""
    try:
        yield
    except CallError as error:
        text = f"{what}: {error}"
        if isinstance(error, SessionGoneError):
            raise SessionLostError(text) from None
        reason = error.reason if isinstance(error, RefusedCallError) else None
        if reason == "unsupported":
            raise unsupported(text) from None
        if reason == "no_room" or error.busy:
            raise SandboxBusyError(text) from None
        if reason is not None:
            raise file_error(str(error), reason=reason) from None  # the server has said what
        raise (SandboxUnavailableError(text) if error.unreached else SandboxError(text)) from None


def _checkpoint_path(name: str) -> str:
    return f"/checkpoints/{quote(name, safe='')}"
