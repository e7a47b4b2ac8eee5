"""`LocalSession`: an interpreter of the local sandbox that keeps its state; and `OpenSessions`, which owns them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import (
    SandboxBusyError,
    SandboxError,
    SandboxUnavailableError,
    SessionForkError,
    SessionLostError,
)
from toolgym.tools.sandbox.base import CellError, CellResult, ExecResult, ExecutionStatus, Limits, Session
from toolgym.tools.sandbox.files import BATCH, FileAction, FileInfo, Row, file_error, read_listing, split
from toolgym.tools.sandbox.local.host.isolation import Level
from toolgym.tools.sandbox.local.host.places import Place, Places
from toolgym.tools.sandbox.local.host.programs import LocalProcess, Programs
from toolgym.tools.sandbox.local.host.template_process import GRACE, TemplateLostError, TemplateProcess
from toolgym.tools.sandbox.local.kernel.harden import MOST_FORKS
from toolgym.tools.sandbox.local.protocol import answer_codec
from toolgym.tools.sandbox.local.protocol.messages import (
    CloseRequest,
    FileRequest,
    FilesRequest,
    PackRequest,
    ReadRequest,
    SessionRequest,
    StartRequest,
    UnpackRequest,
    WriteRequest,
)
from toolgym.tools.sandbox.names import check_path, positive
from toolgym.tools.sandbox.processes import Command

CHUNK = 4 * 1024 * 1024
"""Bytes of a file that are read or written in one step: other sessions have their turn in between."""

START_SESSION = 30.0
"""Seconds that opening or forking a session may take."""

_REPORTED_LIMITS = ("memory_limit", "file_limit", "disk_limit")

_NO_PROCESS = "Resource temporarily unavailable"
"""What the C library calls EAGAIN: `fork` gives it at the limit of processes."""


class OpenSessions:
    """The open sessions of one sandbox, and what they share.

    Args:
        places: admits what runs code.
        level: their isolation level, which decides whether they can be forked.
    """

    def __init__(self, places: Places, level: Level) -> None:
        self.places, self.level = places, level
        self._open: set[LocalSession] = set()
        self._lock = threading.Lock()  # a session may end in another thread than that of the sandbox

    def __len__(self) -> int:
        return len(self._open)

    def add(self, template: TemplateProcess, name: str, limits: Limits) -> LocalSession:
        """Return the session of that name, which is open in a template process."""
        session = LocalSession(self, template, name, limits)
        with self._lock:
            self._open.add(session)
            template.sessions += 1
        return session

    def discard(self, session: LocalSession) -> None:
        """Forget a session that has ended. Doing so twice is fine."""
        with self._lock:
            if session in self._open:
                self._open.remove(session)
                session.template.sessions -= 1

    def end_all(self) -> None:
        """Mark all as ended, for a sandbox whose template processes end."""
        for session in [*self._open]:
            session.end()


class LocalSession(Session):
    """A session of a `LocalSandbox`. Made by `LocalSandbox.session`.

    Attributes:
        template: the process that it lives in.
    """

    def __init__(self, owner: OpenSessions, template: TemplateProcess, name: str, limits: Limits) -> None:
        self._owner, self.template, self._id = owner, template, name
        self._alive = True
        self._closed = False
        self._launched = False
        self._lock = _OneAtATime()
        self._limits = limits
        self._max_file_bytes = limits.file_mb << 20
        self._programs = Programs(self, owner.level, bool(template.layers.get("terminals")), owner.places)
        self._checkpoints: dict[str, LocalSession] = {}

    @property
    def id(self) -> str:
        return self._id

    @property
    def alive(self) -> bool:
        return self._alive and self.template.alive

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return tuple(self._checkpoints)

    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        seconds = positive("timeout", timeout)
        async with self._lock:
            answer = await self._ask({"op": "cell", "session": self._id, "code": code, "timeout": seconds})
        cell = answer.get("answer") or {}
        error = _cell_error(cell.get("error"))
        status = ExecutionStatus(answer["status"])
        if status is ExecutionStatus.OK and (error is not None or "failed" in cell):
            limit = cell.get("why")
            status = ExecutionStatus(limit) if limit in _REPORTED_LIMITS else ExecutionStatus.ERROR
        result = cell.get("result")
        display = cell.get("display")
        return CellResult(
            status=status,
            stdout=answer.get("stdout", ""),
            stderr=answer.get("stderr", ""),
            result=_valid(result) if isinstance(result, str) else None,
            display=tuple(one for one in display if isinstance(one, dict)) if isinstance(display, list) else (),
            error=error,
            duration=float(answer.get("duration", 0.0)),
            alive=self.alive,
            stdout_truncated=bool(answer.get("stdout_truncated")),
            stderr_truncated=bool(answer.get("stderr_truncated")),
            message=str(answer.get("message", "")),
        )

    async def _exec(self, command: Command, stdin: bytes, timeout: float) -> ExecResult:
        return await self._programs.exec(command, stdin, timeout)

    async def _start(self, command: Command) -> LocalProcess:
        return await self._programs.start(command)

    async def launch(self, request: StartRequest) -> dict[str, Any]:
        """Return the answer to starting a program. The first one waits for a cell that runs: see `child.launcher`."""
        if self._launched:
            answer = await self.request(request, START_SESSION + GRACE)
            if answer["status"] != "sandbox_error" or not answer.get("alive"):
                return answer
        async with self._lock:
            answer = await self.request(request, START_SESSION + GRACE, settle=GRACE)
        self._launched = bool(answer.get("alive"))
        return answer

    async def request(
        self, request: SessionRequest, patience: float, *, settle: float = 0.0, place: Place | None = None
    ) -> dict[str, Any]:
        """Return the template's answer. What the session sent is under `answer`."""
        gone = {"status": "sandbox_error", "alive": False, "message": "the session is gone"}
        if not self.alive:
            self.end()
            return gone
        try:
            answer = await self.template.request(request, patience=patience, settle=settle, place=place)
        except TemplateLostError:
            answer = {**gone, "message": "the template process of the session was lost"}
        if answer.get("answered"):
            try:
                answer["answer"] = answer_codec.unpack(answer.pop("raw", b""))
            except (ValueError, RecursionError):
                # The program wrote these bytes in place of the interpreter.
                self.template.send(CloseRequest(op="close", session=self._id))
                answer = {**answer, "status": "killed", "alive": False}
        if not answer.get("alive"):
            self.end()
        return answer

    def send(self, request: SessionRequest) -> None:
        """Send a request without waiting for its answer."""
        if self.alive:
            self.template.send(request)

    async def write_file(self, name: str, data: bytes) -> None:
        check_path(name)
        async with self._lock:
            for at in range(0, max(len(data), 1), CHUNK):
                request: WriteRequest = {
                    "op": "write",
                    "session": self._id,
                    "name": name,
                    "at": at,
                    "data": bytes(data[at : at + CHUNK]),
                    "timeout": START_SESSION,
                }
                await self._ask_files(f"the file {name!r} cannot be written in the session", request)

    async def read_file(self, name: str) -> bytes:
        check_path(name)
        parts: list[bytes] = []
        size = 0
        async with self._lock:
            while True:
                request: ReadRequest = {
                    "op": "read",
                    "session": self._id,
                    "name": name,
                    "at": size,
                    "most": CHUNK,
                    "timeout": START_SESSION,
                }
                what = f"the file {name!r} cannot be read in the session"
                data = (await self._ask_files(what, request)).get("data")
                if not isinstance(data, bytes):
                    raise SandboxError(f"{what}: its program answered in place of its interpreter")
                parts.append(data)
                size += len(data)
                if size > self._max_file_bytes:  # not a file but a device, or the program made the bytes up
                    most = f"{self._max_file_bytes} bytes allowed"
                    raise SandboxError(f"the file {name!r} in the session has more than the {most}")
                if len(data) < CHUNK:
                    return b"".join(parts)

    async def _act(self, action: FileAction, name: str, rest: Mapping[str, Any]) -> Sequence[FileInfo]:
        request: FilesRequest = {
            "op": "files",
            "session": self._id,
            "what": action,
            "name": name,
            "rest": dict(rest),
            "timeout": START_SESSION,
        }
        async with self._lock:
            answer = await self._ask_files(f"{action} {name!r} fails in the session", request)
        try:
            return read_listing(json.loads(answer.get("data") or b"[]"))
        except (TypeError, ValueError, RecursionError) as error:
            raise SandboxError(f"what the session says about its files makes no sense: {error}"[:200]) from None

    async def _pack(self, name: str, names: Sequence[str]) -> Sequence[bytes | None]:
        request: PackRequest = {
            "op": "pack",
            "session": self._id,
            "name": name,
            "names": list(names),
            "most": 2 * BATCH,
            "timeout": START_SESSION,
        }
        async with self._lock:
            answer = await self._ask_files(f"the folder {name!r} cannot be read in the session", request)
        return split(answer.get("sizes"), answer.get("data"), len(names))

    async def _unpack(self, name: str, rows: Sequence[Row], data: bytes) -> None:
        request: UnpackRequest = {
            "op": "unpack",
            "session": self._id,
            "name": name,
            "rows": [(row.name, row.kind, row.mode, row.rest) for row in rows],
            "data": data,
            "timeout": START_SESSION,
        }
        async with self._lock:
            await self._ask_files(f"the folder {name!r} cannot be written in the session", request)

    async def _ask_files(self, what: str, request: FileRequest) -> dict[str, Any]:
        """Return what the session answers to a request about files, while the caller holds the lock."""
        answer = await self._ask(request)
        inner = answer.get("answer") or {}
        failed, number = inner.get("failed"), inner.get("errno")
        if type(number) is int and answer["status"] == "ok":
            raise file_error(f"{what}: {_valid(str(failed))}", code=number)
        if failed or answer["status"] != "ok":
            raise self._error(what, answer, failed)
        return inner

    async def _fork(self, name: str | None, n: int) -> list[Session]:
        """See `Session.fork`. Each fork gets copies of /tmp and /dev/shm, as they are now, in its own file system.

        What is open or mapped of these is the copy's then, in the state that it had; so are shared memory, pipes, and
        the event loop with its tasks. The generators of `random` and `numpy.random` are seeded anew, others go along.
        What does not: threads (a pool of them that was used before takes no more work), timers of `setitimer`, locks
        on files, programs, and sockets: in the fork their other ends are closed, as those of a program's pipes are.
        What is no file, folder or link there, or may not be read, is left out.

        Neither sees the other's processes nor can signal them; a thread or program that the session had started before
        the fork may still signal the fork, and takes no signals from either afterwards. The kernel (with Landlock's ABI
        6 or later) allows about fifteen such partings in the past of one session, and refuses more: each fork is one
        for itself, and all forks made between two cells of their origin are one for that. A checkpoint is a fork.
        """
        origin = self if name is None else self._checkpoints[name]
        if self._owner.level is not Level.NAMESPACES:
            raise SessionForkError(
                f"a session at the level {self._owner.level.value!r} cannot be forked: sessions fork only at the level "
                "'namespaces'; elsewhere both would have the same user and folder"
            )
        forks: list[Session] = []
        try:
            async with origin._lock:  # throughout, so that all forks have the same state
                for _ in range(n):
                    forks.append(await origin._fork_once())
        except BaseException:
            await shielded(asyncio.gather(*(one.close() for one in forks)))
            raise
        return forks

    async def _checkpoint(self, name: str) -> None:
        (kept,) = await self._fork(None, 1)
        assert isinstance(kept, LocalSession)
        if self._closed:  # meanwhile
            await shielded(kept.close())
            raise SessionLostError("the session was closed before the checkpoint was there")
        older = self._checkpoints.pop(name, None)
        self._checkpoints[name] = kept
        if older is not None:
            await older.close()

    async def _drop_checkpoint(self, name: str) -> None:
        await self._checkpoints.pop(name).close()

    async def close(self) -> None:
        self._closed = True
        checkpoints, self._checkpoints = self._checkpoints, {}
        # Shielded: a caller that is cancelled here would cancel tasks that have not begun, and leave the processes.
        await shielded(asyncio.gather(self._close_own(), *(one.close() for one in checkpoints.values())))

    async def _close_own(self) -> None:
        if self._alive:
            self.end()
            if self.template.alive:
                try:
                    await self.template.request(CloseRequest(op="close", session=self._id), patience=GRACE)
                except TemplateLostError:
                    return

    def end(self) -> None:
        """Mark it as ended: its process is gone, or is about to be. Doing so twice is fine."""
        self._alive = False
        self._owner.discard(self)

    async def _fork_once(self) -> LocalSession:
        into = uuid.uuid4().hex
        self._launched = False  # its next program is for a new launcher
        try:
            answer = await self._ask({"op": "fork", "session": self._id, "into": into, "timeout": START_SESSION})
        except asyncio.CancelledError:
            self.template.send(CloseRequest(op="close", session=into))  # it may be there already
            raise
        if answer["status"] != "ok":
            why = f"{answer['status']}: {answer.get('message', '')}".removesuffix(": ")
            raise self._error("the session cannot be forked", answer, why)
        return self._owner.add(self.template, into, self._limits)

    def _error(self, what: str, answer: dict[str, Any], why: object = None) -> SandboxError:
        """Return the error for a request that failed, by what its caller can do."""
        text = f"{what}: {_valid(str(why or answer.get('message') or answer['status']))}"
        if not answer.get("alive"):
            return SessionLostError(text)
        if answer["status"] == "sandbox_error":
            return SandboxUnavailableError(text)
        if _NO_PROCESS not in text:
            return SandboxBusyError(text) if answer.get("busy") else SandboxError(text)
        most = f"at most {self._limits.processes} processes and threads run at once (`Limits.processes`)"
        return SandboxBusyError(f"{text}: in a session with all its forks, {most}, beside {MOST_FORKS} idle forks")

    async def _ask(self, request: SessionRequest) -> dict[str, Any]:
        """As `request`, while the caller holds the lock; a cell waits for a place."""
        async with self._owner.places.permit() if request["op"] == "cell" else contextlib.nullcontext() as place:
            return await self.request(request, request["timeout"] + GRACE, settle=GRACE, place=place)


class _OneAtATime:
    """As `asyncio.Lock`, for tasks of any loops."""

    def __init__(self) -> None:
        self._limiter = LocalRateLimiter(1)

    async def __aenter__(self) -> None:
        self._lease = await self._limiter.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lease.release()


def _cell_error(value: object) -> CellError | None:
    """Return the exception that a session reports. User code may have written it, so every part is checked."""
    if not isinstance(value, dict):
        return None
    lines = value.get("traceback")
    kept = tuple(_valid(str(line)) for line in lines) if isinstance(lines, list) else ()
    return CellError(_valid(str(value.get("name", ""))), _valid(str(value.get("value", ""))), kept)


def _valid(text: str) -> str:
    """Return a text that UTF-8 can hold: lone surrogates become their escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
