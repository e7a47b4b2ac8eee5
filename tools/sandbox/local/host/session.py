"""`LocalSession`: an interpreter of the local sandbox that keeps its state."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import (
    SandboxBusyError,
    SandboxClosedError,
    SandboxError,
    SandboxUnavailableError,
    SessionForkError,
    SessionLostError,
)
from toolgym.tools.sandbox.base import CellError, CellResult, ExecResult, ExecutionStatus, Limits, Session
from toolgym.tools.sandbox.files import BATCH, FileAction, FileInfo, FileRow, file_error, read_listing, split
from toolgym.tools.sandbox.local.host.cpu_slots import CpuSlot, CpuSlots
from toolgym.tools.sandbox.local.host.isolation import Level
from toolgym.tools.sandbox.local.host.programs import LocalProcess, Programs
from toolgym.tools.sandbox.local.host.stack_dumps import HEADER, take_dump
from toolgym.tools.sandbox.local.host.template_process import GRACE, TemplateLostError, TemplateProcess
from toolgym.tools.sandbox.local.kernel.harden import MOST_FORKS
from toolgym.tools.sandbox.local.protocol import answer_codec, marks
from toolgym.tools.sandbox.local.protocol.capture import FLOOD_FACTOR
from toolgym.tools.sandbox.local.protocol.frames import REPORTED_LIMITS
from toolgym.tools.sandbox.local.protocol.messages import (
    CellMessage,
    CloseMessage,
    FileMessage,
    SessionMessage,
    StartMessage,
)
from toolgym.tools.sandbox.names import check_path, positive
from toolgym.tools.sandbox.processes import Command

CHUNK = 4 * 1024 * 1024
"""Bytes of a file that are read or written in one step, between which other sessions have their turn."""

START_SESSION = 30.0
"""Seconds that opening or forking a session may take, and each of its steps with files."""

FORKS_AT_ONCE = 4
"""Forks of a session that are under way at a time: it makes the next one while the last ones find their place."""

MOST_LINES = 1 << 31
"""Line numbers from here on are not believed."""

_NO_PROCESS = "Resource temporarily unavailable"  # EAGAIN, which `fork` gives at the limit of processes


class SessionUser(Protocol):
    """A user of a shared sandbox, whose `sessions` end with it; then `check_open` raises SandboxClosedError."""

    sessions: set[LocalSession]

    def check_open(self) -> object: ...


class OpenSessions:
    """The names of a sandbox's open sessions, and what the sessions share.

    It does not refer to the sessions: one that is forgotten takes its user along, see `SharedSandbox`.
    """

    def __init__(self, cpu_slots: CpuSlots, level: Level) -> None:
        self.cpu_slots, self.level = cpu_slots, level
        self._templates: dict[str, TemplateProcess] = {}
        self._lock = threading.Lock()  # a session may end in another thread than that of the sandbox
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._templates)

    def __contains__(self, name: str) -> bool:
        return name in self._templates and self._pid == os.getpid()  # a forked child must not write to the sockets

    def add(self, name: str, template: TemplateProcess) -> None:
        with self._lock:
            self._templates[name] = template
            template.sessions += 1

    def discard(self, name: str) -> None:
        """Forget a session; twice is fine."""
        with self._lock:
            template = self._templates.pop(name, None)
            if template is not None:
                template.sessions -= 1

    def clear(self) -> None:
        for name in [*self._templates]:
            self.discard(name)


class LocalSession(Session):
    """A session of a `LocalSandbox`, for callers on any event loop. It ends with its user, if it has one."""

    def __init__(
        self,
        opened: OpenSessions,
        template: TemplateProcess,
        name: str,
        limits: Limits,
        user: SessionUser | None,
    ) -> None:
        self._opened, self._template, self.id, self._limits, self._user = opened, template, name, limits, user
        self._closed = self._lost = False
        self._has_launcher = False
        self._lock = _OneAtATime()
        self._programs = Programs(self, opened.level, bool(template.layers.get("terminals")), opened.cpu_slots)
        self._checkpoints: dict[str, LocalSession] = {}
        opened.add(name, template)
        if user is not None:
            user.sessions.add(self)

    @property
    def alive(self) -> bool:
        return self.id in self._opened and self._template.alive

    @property
    def lost_to_sandbox(self) -> bool:
        return self._lost or (not self._closed and not self._template.alive)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return tuple(self._checkpoints)

    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        seconds = positive("timeout", timeout)
        async with self._lock, self._opened.cpu_slots.permit() as slot:
            token = secrets.token_hex(8)
            message: CellMessage = {"op": "cell", "code": code, "timeout": seconds, "marks": token}
            answer = await self.request(message, slot=slot, settle=GRACE)
        cell = answer.get("answer") or {}
        error, exit_status = _cell_error(cell.get("error")), cell.get("exit")
        status = ExecutionStatus(answer["status"])
        exits = error is not None and type(exit_status) is int and 0 <= exit_status < 256
        if (
            status is ExecutionStatus.OK
            and not (exits and exit_status == 0)
            and (error is not None or "failed" in cell)
        ):
            limit = cell.get("why")
            status = ExecutionStatus(limit) if limit in REPORTED_LIMITS else ExecutionStatus.ERROR
        result = cell.get("result")
        texts = printed(answer)
        stopped = status in (ExecutionStatus.TIMEOUT, ExecutionStatus.KILLED)
        dump = take_dump(texts["stderr"], "<cell ", code) if stopped else None
        if dump is not None:
            texts["stderr"] = dump.stderr
            if error is None:
                name = f"Fatal Python error: {dump.why}" if dump.why else "KeyboardInterrupt"
                error = CellError(name, "", (HEADER, *dump.frames, f"{name}\n")) if dump.frames else None
        output = marks.read(answer.get("stdout", ""), token)
        display, offsets = _displayed(cell, output)
        return CellResult(
            status=status,
            **{**texts, "stdout": output.text},
            result=_valid(result) if isinstance(result, str) else None,
            display=display,
            display_offsets=offsets,
            cleared=output.cleared,
            error=error,
            alive=self.alive,
            message=str(answer.get("message", "")),
            recovered=bool(answer.get("recovered")),
            return_code=exit_status if exits else answer.get("code"),
            line=_line_number(cell.get("line")),
            limit=self._limits.exceeded(status, flood_factor=FLOOD_FACTOR),
        )

    async def _exec(self, command: Command, stdin: bytes, timeout: float) -> ExecResult:
        return await self._programs.exec(command, stdin, timeout)

    async def _start(self, command: Command) -> LocalProcess:
        return await self._programs.start(command)

    async def launch(self, request: StartMessage) -> dict[str, Any]:
        """Start a program. The first one waits for a cell that runs: see `child.launcher`."""
        if self._has_launcher:
            answer = await self.request(request)
            if answer["status"] != "sandbox_error" or not answer.get("alive"):
                return answer
        async with self._lock:
            answer = await self.request(request, settle=GRACE)
        self._has_launcher = bool(answer.get("alive"))
        return answer

    async def request(
        self, request: SessionMessage, *, slot: CpuSlot | None = None, settle: float = 0.0
    ) -> dict[str, Any]:
        """Return the template's answer, before the request's `timeout` and `GRACE` are over.

        The session's own part is under `answer`. Raises SandboxClosedError if the session's user has gone, or goes.
        """
        if self._user is not None:
            self._user.check_open()
        request["session"] = self.id
        request.setdefault("timeout", START_SESSION)
        answer: dict[str, Any] = {"status": "sandbox_error", "alive": False, "message": "the session is gone"}
        if self.alive:
            patience = request["timeout"] + GRACE
            try:
                answer = await self._template.request(request, patience=patience, settle=settle, slot=slot)
            except TemplateLostError:
                self._lost = True
                answer["message"] = "the template process of the session was lost"
        if answer.get("answered"):
            try:
                answer["answer"] = answer_codec.unpack(answer.pop("raw", b""))
            except (ValueError, RecursionError):
                # The program wrote these bytes in place of the interpreter.
                self._template.send(CloseMessage(op="close", session=self.id))
                answer = {**answer, "status": "killed", "alive": False}
        if not answer.get("alive"):
            self._end()
        if self._user is not None:
            self._user.check_open()
        return answer

    def send(self, request: SessionMessage) -> None:
        if self.alive:
            request["session"] = self.id
            self._template.send(request)

    async def write_file(self, name: str, data: bytes) -> None:
        check_path(name)
        async with self._lock:
            for at in range(0, max(len(data), 1), CHUNK):
                await self._ask_files(
                    f"the file {name!r} cannot be written in the session",
                    {"op": "write", "name": name, "at": at, "data": bytes(data[at : at + CHUNK])},
                )

    async def read_file(self, name: str) -> bytes:
        check_path(name)
        parts: list[bytes] = []
        size, most = 0, self._limits.file_mb << 20
        async with self._lock:
            while True:
                what = f"the file {name!r} cannot be read in the session"
                answer = await self._ask_files(what, {"op": "read", "name": name, "at": size, "most": CHUNK})
                data = answer.get("data")
                if not isinstance(data, bytes):
                    raise SandboxError(f"{what}: its program answered in place of its interpreter")
                parts.append(data)
                size += len(data)
                if size > most:  # not a file but a device, or the program made the bytes up
                    raise SandboxError(f"the file {name!r} in the session has more than the {most} bytes allowed")
                if len(data) < CHUNK:
                    return b"".join(parts)

    async def _act(self, action: FileAction, name: str, rest: Mapping[str, Any]) -> Sequence[FileInfo]:
        async with self._lock:
            answer = await self._ask_files(
                f"{action} {name!r} fails in the session",
                {"op": "files", "what": action, "name": name, "rest": dict(rest)},
            )
        return read_listing(answer.get("data") or b"[]")

    async def _pack(self, name: str, names: Sequence[str]) -> Sequence[bytes | None]:
        async with self._lock:
            answer = await self._ask_files(
                f"the folder {name!r} cannot be read in the session",
                {"op": "pack", "name": name, "names": list(names), "most": 2 * BATCH},
            )
        return split(answer.get("sizes"), answer.get("data"), len(names))

    async def _unpack(self, name: str, rows: Sequence[FileRow], data: bytes) -> None:
        async with self._lock:
            await self._ask_files(
                f"the folder {name!r} cannot be written in the session",
                {"op": "unpack", "name": name, "rows": [*rows], "data": data},
            )

    async def _ask_files(self, what: str, request: FileMessage) -> dict[str, Any]:
        """Return the session's answer to a request about files; the caller holds the lock."""
        answer = await self.request(request, settle=GRACE)
        inner: dict[str, Any] = answer.get("answer") or {}
        failed, number = inner.get("failed"), inner.get("errno")
        if type(number) is int and answer["status"] == "ok":
            raise file_error(f"{what}: {_valid(str(failed))}", code=number)
        if failed or answer["status"] != "ok":
            raise self._error(what, answer, failed)
        return inner

    async def _fork(self, name: str | None, n: int) -> list[Session]:
        """Make forks, each with copies of /tmp and /dev/shm in a file system of its own.

        Open and mapped files there are then the copy's, in the same state; so are shared memory, pipes, and the event
        loop with its tasks. `random` and `numpy.random` are seeded again, other generators go along. Not copied are
        threads (a used pool of them takes no more work), timers of `setitimer`, locks on files, programs, and sockets:
        in the fork their other ends are closed, as are those of a program's pipes.

        Neither sees or signals the other's processes (with Landlock's ABI 6 or later). There is no limit on how often a
        session is forked or on generations, with one exception: while the session has threads, or on a processor
        other than x86_64, each state that is forked uses up one of 14 layers of Landlock, and so does each recovery.
        All forks made between two cells are one state. A thread or program that such a session had started before may
        still signal the fork, and takes no signals from either afterwards.
        """
        origin = self if name is None else self._checkpoints[name]
        if self._opened.level is not Level.NAMESPACES:
            raise SessionForkError(
                f"a session at the level {self._opened.level.value!r} cannot be forked: sessions fork only at the "
                "level 'namespaces'; elsewhere both would have the same user and folder"
            )
        forks: list[Session] = []
        left = n

        async def make() -> None:
            nonlocal left
            while left:
                left -= 1
                try:
                    forks.append(await origin._fork_once())
                except BaseException:
                    left = 0  # those under way come to their end: to break them off would endanger the session
                    raise

        try:
            async with origin._lock:  # throughout, so that all forks have the same state
                ends = await asyncio.gather(*(make() for _ in range(min(n, FORKS_AT_ONCE))), return_exceptions=True)
            for failure in filter(None, ends):
                raise failure
            if self._user is not None:
                self._user.check_open()  # else it went without seeing the last of them
        except BaseException:
            await shielded(asyncio.gather(*(fork.close() for fork in forks)))
            raise
        return forks

    async def _fork_once(self) -> LocalSession:
        into = uuid.uuid4().hex
        self._has_launcher = False  # its next program is for a new launcher
        try:
            answer = await self.request({"op": "fork", "into": into}, settle=GRACE)
        except (asyncio.CancelledError, SandboxClosedError):
            self._template.send(CloseMessage(op="close", session=into))  # it may be there already
            raise
        if answer["status"] != "ok":
            why = f"{answer['status']}: {answer.get('message', '')}".removesuffix(": ")
            raise self._error("the session cannot be forked", answer, why)
        return LocalSession(self._opened, self._template, into, self._limits, self._user)

    async def _checkpoint(self, name: str) -> None:
        (kept,) = await self._fork(None, 1)
        assert isinstance(kept, LocalSession)
        older = self._checkpoints.pop(name, None)
        self._checkpoints[name] = kept
        if older is not None:
            await older.close()
        if self._closed:  # before it was kept
            await shielded(kept.close())
            raise SessionLostError("the session was closed before the checkpoint was there")

    async def _drop_checkpoint(self, name: str) -> None:
        await self._checkpoints.pop(name).close()

    async def close(self) -> None:
        self._lost = self.lost_to_sandbox or self.alive
        self._closed = True
        checkpoints, self._checkpoints = self._checkpoints, {}
        # Shielded: a caller that is cancelled here would cancel tasks that have not begun, and leave the processes.
        await shielded(asyncio.gather(self._close_interpreter(), *(kept.close() for kept in checkpoints.values())))

    async def _close_interpreter(self) -> None:
        was_alive = self.alive
        self._end()
        if was_alive:
            try:
                await self._template.request(CloseMessage(op="close", session=self.id), patience=GRACE)
            except TemplateLostError:
                return

    def _end(self) -> None:
        self._opened.discard(self.id)
        if self._user is not None:
            self._user.sessions.discard(self)

    def _error(self, what: str, answer: dict[str, Any], why: object = None) -> SandboxError:
        """Make the error for a request that failed, by its remedy."""
        text = f"{what}: {_valid(str(why or answer.get('message') or answer['status']))}"
        if not answer.get("alive"):
            return SessionLostError(text)
        if answer["status"] == "sandbox_error":
            return SandboxUnavailableError(text)
        if _NO_PROCESS not in text:
            return SandboxBusyError(text) if answer.get("busy") else SandboxError(text)
        most = f"at most {self._limits.processes} processes and threads run at once (`Limits.processes`)"
        return SandboxBusyError(f"{text}: in a session with all its forks, {most}, beside {MOST_FORKS} idle forks")


class _OneAtATime:
    """As `asyncio.Lock`, for tasks of any loops."""

    def __init__(self) -> None:
        self._limiter = LocalRateLimiter(1)

    async def __aenter__(self) -> None:
        self._lease = await self._limiter.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lease.release()


def printed(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a broker's answer and every result have."""
    texts = {name: answer.get(name, "") for name in ("stdout", "stderr")}
    truncated = {name: bool(answer.get(name)) for name in ("stdout_truncated", "stderr_truncated")}
    return {**texts, **truncated, "duration": float(answer.get("duration", 0.0))}


def _displayed(
    cell: Mapping[str, Any], output: marks.UnmarkedOutput
) -> tuple[tuple[dict[str, Any], ...], tuple[int | None, ...]]:
    """Return the values that a cell showed, and the places in its output where it did. Of a cell without an answer,
    they are the texts between its marks. User code may have written the answer, so every part is checked."""
    display, serials = cell.get("display"), cell.get("serials")
    shown: list[tuple[dict[str, Any], int | None]]
    if not isinstance(display, list):
        shown = [({"text/plain": value.text}, value.offset) for value in output.shown]
    else:
        places: dict[Any, int | None] = {value.serial: value.offset for value in output.shown}
        places[marks.ECHO] = None
        numbers = serials if isinstance(serials, list) and len(serials) == len(display) else [0] * len(display)
        end = len(output.text)
        pairs = [(form, number) for form, number in zip(display, numbers, strict=True) if isinstance(form, dict)]
        shown = [(form, places.get(number, end) if type(number) is int else end) for form, number in pairs]
    return tuple(form for form, _ in shown), tuple(offset for _, offset in shown)


def _cell_error(value: object) -> CellError | None:
    """Return the exception that a session reports. User code may have written it, so every part is checked."""
    if not isinstance(value, dict):
        return None
    lines = value.get("traceback")
    kept = tuple(_valid(str(line)) for line in lines) if isinstance(lines, list) else ()
    return CellError(_valid(str(value.get("name", ""))), _valid(str(value.get("value", ""))), kept)


def _line_number(value: object) -> int | None:
    """Return a line number that a session reports, if it can be one. User code may have written it."""
    return value if type(value) is int and 0 < value < MOST_LINES else None


def _valid(text: str) -> str:
    """Make a text valid for UTF-8: lone surrogates become their escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
