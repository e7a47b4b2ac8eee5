"""Answers of `/sessions`: interpreters that keep their state from call to call, and programs beside them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from toolgym.tools.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxError,
    SandboxFileError,
    SandboxUnsupportedError,
    SessionLostError,
    UnknownNameError,
)
from toolgym.tools.sandbox.base import Sandbox, Session
from toolgym.tools.sandbox.files import FileRow, reason_of
from toolgym.tools.sandbox.names import OptionError, check_path
from toolgym.tools.sandbox.processes import Command, Process, ProcessRequest, check_size
from toolgym.tools.sandbox.protocol import messages
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.execute import (
    FILE_DEADLINE,
    GRACE,
    SandboxMetrics,
    check_limits,
    session_request,
)
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.json_bodies import InvalidRequestError, parse, problem
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.session_table import SessionTable, TableSession, new_name
from toolgym.tools.serving.transport import RequestRefusedError, answer

MAX_WAITING = 32  # calls for one session
MAX_BESIDE = 128  # calls about programs of one session
CLOSE_DEADLINE = 10.0

RAW = "application/octet-stream"

PACK = (
    "Read several small files: 4 bytes of length (little endian), their sizes in JSON (-1: it cannot be read), and "
    "their contents"
)
UNPACK = (
    'Write several small files: 4 bytes of length (little endian), {"path": folder, "rows": [[name, "file" | "folder" '
    '| "link" | "mode", mode, size | 0 | target | 0], ...]} in JSON, and their contents'
)
"""The API's descriptions of bodies that are no JSON."""


class SessionEntry(TableSession):
    """An open session, which has run `cells` cells, with its programs in the background by their ids.

    Its name begins with the number of its worker, so that every worker knows where it lives.
    """

    def __init__(self, worker: int, session: Session, patience: float, cells: int = 0) -> None:
        super().__init__(f"w{worker}-{new_name()}", patience=patience, max_waiting=MAX_WAITING)
        self.session, self.cells = session, cells
        self.processes: dict[str, Process] = {}

    @property
    def size(self) -> int:
        """One place for the session, and one for each checkpoint."""
        return 1 + len(self.session.checkpoints)

    @property
    def over(self) -> bool:
        return not self.session.alive and not self.session.checkpoints

    async def close(self) -> None:
        """Close the session. Raises SandboxError if it does not close in time."""
        try:
            async with asyncio.timeout(CLOSE_DEADLINE):
                await self.session.close()
        except TimeoutError:
            raise SandboxError(f"it did not close within {CLOSE_DEADLINE:g} s") from None

    def info(self, idle_timeout: float) -> messages.SessionInfo:
        now = time.monotonic()
        return messages.SessionInfo(
            id=self.name,
            alive=self.session.alive,
            cells=self.cells,
            age=now - self.opened,
            idle=0.0 if self.busy else now - self.used,
            idle_timeout=idle_timeout,
        )


@dataclass(eq=False)
class SessionApi:
    """Answers calls of this worker's sessions. A session's id is the part `id` of a call's path."""

    sandbox: Sandbox
    config: ServerConfig
    gate: Gate
    metrics: SandboxMetrics
    sessions: SessionTable[SessionEntry]
    worker: int

    def routes(self) -> list[Route]:
        session = "/sessions/{id}"
        cannot_fork = "It is in a state that cannot be forked"
        cannot_do = "It cannot be done; `reason` says why"
        info = Operation(self.info, "Tell about a session", None, messages.SessionInfo)
        fork_summary = "Fork a session, or one of its checkpoints; an empty body asks for one fork of the session"
        fork = Operation(
            self.fork, fork_summary, messages.ForkRequest, messages.ForkResponse, status=201, conflict=cannot_fork
        )
        names = Operation(self.checkpoints, "List the checkpoints of a session", None, messages.CheckpointNames)
        keep = Operation(self.checkpoint, "Keep the state of a session under a name", status=204, conflict=cannot_fork)
        drop = Operation(self.drop_checkpoint, "Free a checkpoint", status=204)
        write = Operation(self.write_file, "Write a file", RAW, status=204, conflict="It cannot be written")
        read = Operation(self.read_file, "Read a file", None, RAW, conflict="It cannot be read")
        files_summary = "List, describe, make, move or remove files and folders"
        files = Operation(self.files, files_summary, messages.FilesRequest, messages.FilesResponse, conflict=cannot_do)
        run = Operation(self.run_cell, "Run a cell", messages.CellRequest, messages.CellResponse)
        pack = Operation(self.pack, PACK, messages.PackRequest, RAW, conflict=cannot_do)
        unpack = Operation(self.unpack, UNPACK, RAW, status=204, conflict=cannot_do)
        conflict = "It cannot be started"
        exec_ = Operation(
            self.exec, "Run a program in it", messages.ExecRequest, messages.ExecResponse, conflict=conflict
        )
        summary = "Start a program in the background"
        start = Operation(self.start, summary, messages.StartProcessRequest, messages.ProcessInfo, conflict=conflict)
        ask_summary = "Write to a program, signal it, wait for it, and read what it has printed"
        ask = Operation(self.ask, ask_summary, messages.AskProcessRequest, messages.AskProcessResponse)
        end = Operation(self.end, "Kill a program and forget it", status=204)
        return [
            Route(session, {"GET": info, "DELETE": Operation(self.delete, "Close a session", status=204)}),
            Route(f"{session}/cells", {"POST": run}),
            Route(f"{session}/fork", {"POST": fork}),
            Route(f"{session}/checkpoints", {"GET": names}),
            Route(f"{session}/checkpoints/{{name}}", {"PUT": keep, "DELETE": drop}),
            Route(f"{session}/files/{{name:path}}", {"PUT": write, "GET": read}),
            Route(f"{session}/files", {"POST": files}),
            Route(f"{session}/pack", {"POST": pack}),
            Route(f"{session}/unpack", {"POST": unpack}),
            Route(f"{session}/exec", {"POST": exec_}),
            Route(f"{session}/processes", {"POST": start}),
            Route(f"{session}/processes/{{process}}", {"POST": ask, "DELETE": end}),
        ]

    async def create(self, call: Call) -> web.Response:
        request = session_request(parse(messages.CreateSessionRequest, call.body or b"{}"), self.config)

        async def opening() -> list[Session]:
            async with self.gate.slot(), asyncio.timeout(FILE_DEADLINE):
                return [await self.sandbox.open_session(request)]

        (entry,) = await self._add(opening)
        return answer(self._info(entry), 201, {"Location": f"/sessions/{entry.name}"})

    async def fork(self, call: Call) -> web.Response:
        request = parse(messages.ForkRequest, call.body or b"{}")
        async with self.sessions.use(call.params["id"]) as entry:

            async def opening() -> list[Session]:
                async with self._forking():
                    return await entry.session.fork(request.checkpoint, n=request.n)

            infos = [self._info(fork) for fork in await self._add(opening, request.n, entry.cells)]
        response = messages.ForkResponse(**infos[0].model_dump(), sessions=infos)
        return answer(response, 201, {"Location": f"/sessions/{response.id}"})

    async def checkpoint(self, call: Call) -> web.Response:
        label = _unquoted(call.params["name"])
        async with self.sessions.use(call.params["id"]) as entry:
            with self.sessions.room():
                async with self._forking():
                    await entry.session.checkpoint(label)
        return web.Response(status=204)

    async def checkpoints(self, call: Call) -> web.Response:
        """List the checkpoints. That is no call: the session goes on being idle."""
        session = self.sessions.find(call.params["id"]).session
        return answer(messages.CheckpointNames(checkpoints=list(session.checkpoints)))

    async def drop_checkpoint(self, call: Call) -> web.Response:
        """Free a checkpoint; an unknown name is fine."""
        label = _unquoted(call.params["name"])
        async with self.sessions.use(call.params["id"]) as entry:
            if label in entry.session.checkpoints:
                async with self._answering(entry, FILE_DEADLINE):
                    await entry.session.drop_checkpoint(label)
        return web.Response(status=204)

    @contextlib.asynccontextmanager
    async def _forking(self) -> AsyncIterator[None]:
        """Hold a slot for a fork. The answer to a fork that fails tells clients not to try again."""
        try:
            async with self.gate.slot(), asyncio.timeout(FILE_DEADLINE):
                yield
        except OptionError as error:
            raise _bad_name(str(error)) from None
        except UnknownNameError as error:
            raise RequestRefusedError(404, str(error), reason="no_checkpoint") from None
        except SandboxError as error:
            raise _refusal(error) from None
        except (OSError, TimeoutError) as error:
            raise _try_again(str(error) or "a fork did not come about in time") from None

    async def _add(
        self, opening: Callable[[], Awaitable[Sequence[Session]]], n: int = 1, cells: int = 0
    ) -> list[SessionEntry]:
        try:
            with self.sessions.room(n):
                sessions = await opening()
        except SandboxUnsupportedError as error:
            raise _refusal(error) from None
        except (SandboxError, OSError, TimeoutError) as error:
            raise _try_again(str(error) or "a session did not open in time") from None
        patience = self.config.queue_timeout
        return [self.sessions.add(SessionEntry(self.worker, session, patience, cells)) for session in sessions]

    async def run_cell(self, call: Call) -> web.Response:
        request = parse(messages.CellRequest, call.body)
        check_limits(request, self.config, "timeout")
        async with self.sessions.use(call.params["id"]) as entry, self.gate.slot() as waited:
            self.metrics.queue_seconds.observe(waited)
            entry.cells += 1
            async with self._answering(entry, request.timeout + GRACE):
                result = await entry.session.run_cell(request.code, timeout=request.timeout)
        self.metrics.ran("/sessions/{id}/cells", result.status.value)
        return answer(messages.CellResponse(result))

    async def write_file(self, call: Call) -> web.Response:
        name = _unquoted(call.params["name"])
        async with self._using_files(call) as session:
            await session.write_file(name, call.body)
        return web.Response(status=204)

    async def read_file(self, call: Call) -> web.Response:
        name = _unquoted(call.params["name"])
        async with self._using_files(call) as session:
            content = await session.read_file(name)
        return web.Response(body=content, content_type=RAW)

    async def files(self, call: Call) -> web.Response:
        request = parse(messages.FilesRequest, call.body)
        by_action: dict[str, dict[str, Any]] = {
            "move": {"to": check_path(request.to or "", field=("to",)) if request.action == "move" else None},
            "mkdir": {"parents": request.parents, "exist_ok": request.exist_ok},
            "remove": {"recursive": request.recursive},
        }
        rest = by_action.get(request.action, {})
        path = check_path(request.path, field=("path",))
        async with self._using_files(call) as session:
            files = await session._act(request.action, path, rest)
        return answer(messages.FilesResponse(files=list(files)))

    async def pack(self, call: Call) -> web.Response:
        request = parse(messages.PackRequest, call.body)
        path = check_path(request.path, field=("path",))
        async with self._using_files(call) as session:
            contents = await session._pack(path, request.names)
        sizes = [-1 if content is None else len(content) for content in contents]
        data = b"".join(content for content in contents if content is not None)
        return web.Response(body=messages.framed(sizes, data), content_type=RAW)

    async def unpack(self, call: Call) -> web.Response:
        path, rows, data = _rows(call.body)
        async with self._using_files(call) as session:
            await session._unpack(path, rows, data)
        return web.Response(status=204)

    @contextlib.asynccontextmanager
    async def _using_files(self, call: Call) -> AsyncIterator[Session]:
        async with self.sessions.use(call.params["id"]) as entry, self._answering(entry, FILE_DEADLINE, of_file=True):
            yield entry.session

    async def exec(self, call: Call) -> web.Response:
        request = parse(messages.ExecRequest, call.body)
        check_limits(request, self.config, "timeout")
        command = _command(request)
        async with self._using_beside(call, request.timeout) as entry, self.gate.slot() as waited:
            self.metrics.queue_seconds.observe(waited)
            result = await entry.session._exec(command, request.input, request.timeout)
        self.metrics.ran("/sessions/{id}/exec", result.status.value)
        return answer(messages.ExecResponse.of(result))

    async def start(self, call: Call) -> web.Response:
        request = parse(messages.StartProcessRequest, call.body)
        command = _command(request)
        async with self._using_beside(call, FILE_DEADLINE) as entry, self.gate.slot():
            process = await entry.session._start(command)
            name = secrets.token_hex(8)
            entry.processes[name] = process
        return answer(messages.ProcessInfo(process=name, pid=process.pid))

    async def ask(self, call: Call) -> web.Response:
        request = parse(messages.AskProcessRequest, call.body)
        check_limits(request, self.config, "wait")
        if request.size is not None:
            check_size(request.size, "size")
        asked = ProcessRequest(request.input, **request.model_dump(exclude={"stdin", "stdin_base64"}))
        async with self._using_beside(call, request.wait) as entry:
            state = await _process(entry, call).ask(asked)
        return answer(messages.AskProcessResponse.of(state))

    async def end(self, call: Call) -> web.Response:
        """Kill and forget a program; an unknown id is fine."""
        async with self._using_beside(call, FILE_DEADLINE) as entry:
            process = entry.processes.pop(call.params["process"], None)
            if process is not None:
                await process.close()
        return web.Response(status=204)

    @contextlib.asynccontextmanager
    async def _using_beside(self, call: Call, seconds: float) -> AsyncIterator[SessionEntry]:
        seconds += GRACE + self.config.queue_timeout
        async with self.sessions.use_beside(call.params["id"], MAX_BESIDE) as entry, self._answering(entry, seconds):
            yield entry

    @contextlib.asynccontextmanager
    async def _answering(self, entry: SessionEntry, seconds: float, *, of_file: bool = False) -> AsyncIterator[None]:
        """Give the session so many seconds, and turn its failures into answers."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except SandboxFileError as error:
            status = 404 if of_file and isinstance(error, FileNotFoundError) else 409
            raise RequestRefusedError(status, str(error), reason=reason_of(error)) from None
        except ConfigError as error:
            raise (_bad_name(str(error)) if of_file else problem(("argv",), str(error))) from None
        except (SandboxError, OSError, TimeoutError) as error:
            raise await self.failed(entry, error, of_file=of_file) from None

    async def info(self, call: Call) -> web.Response:
        """Tell about a session. That is no call: it goes on being idle."""
        return answer(self._info(self.sessions.find(call.params["id"])))

    def _info(self, entry: SessionEntry) -> messages.SessionInfo:
        return entry.info(self.sessions.idle_timeout)

    async def delete(self, call: Call) -> web.Response:
        await self.sessions.remove(call.params["id"])
        return web.Response(status=204)

    async def failed(self, entry: SessionEntry, error: Exception, *, of_file: bool = False) -> RequestRefusedError:
        """Make the answer for a failure, which clients do not retry, and close a session that does not answer.

        If the session goes on, the file is to blame for a failure `of_file`.
        """
        if isinstance(error, SandboxUnsupportedError | SandboxBusyError):
            return _refusal(error)
        if isinstance(error, SessionLostError):
            return RequestRefusedError(404, str(error), reason="no_session")
        if isinstance(error, TimeoutError):
            await self.sessions.discard(entry.name)
            return RequestRefusedError(500, "the sandbox did not answer in time; the session is closed")
        if of_file and entry.session.alive:
            return RequestRefusedError(409, str(error))
        detail = f"{type(error).__name__}: {error}"
        return RequestRefusedError(404, detail, reason="no_session") if of_file else RequestRefusedError(500, detail)


def _refusal(error: SandboxError) -> RequestRefusedError:
    """Make the answer for a thing that the sandbox cannot do, or not now."""
    reasons = {SandboxUnsupportedError: "unsupported", SandboxBusyError: "no_room"}
    reason = next((reason for kind, reason in reasons.items() if isinstance(error, kind)), None)
    return RequestRefusedError(409, str(error), reason=reason)


def _try_again(detail: str) -> RequestRefusedError:
    return RequestRefusedError(503, detail, {"Retry-After": "1"})


def _unquoted(raw: str) -> str:
    try:
        return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise _bad_name("A name should be valid UTF-8") from None


def _rows(body: bytes) -> tuple[str, list[FileRow], bytes]:
    try:
        head, data = messages.unframed(body)
        path, rows = head["path"], [_row(*row) for row in head["rows"]]
    except (KeyError, TypeError, ValueError) as error:
        raise problem((), f"The body should be a head and contents: {error}"[:500]) from None
    if sum(row.rest for row in rows if row.kind == "file" and isinstance(row.rest, int)) != len(data):
        raise problem((), "The contents should have the sizes that the head says")
    return check_path(path, field=("path",)), rows, data


def _row(name: Any, kind: Any, mode: Any, rest: Any) -> FileRow:
    check_path(name)
    fine = kind in ("file", "folder", "link", "mode") and type(mode) is int and 0 <= mode <= 0o7777
    if not fine or not (isinstance(rest, str) if kind == "link" else type(rest) is int and rest >= 0):
        raise ValueError(f"no row: {name!r}")
    return FileRow(name, kind, mode, rest)


def _bad_name(message: str) -> InvalidRequestError:
    return InvalidRequestError([{"type": "value_error", "loc": ["path", "name"], "msg": message}])


def _process(entry: SessionEntry, call: Call) -> Process:
    process = entry.processes.get(call.params["process"])
    if process is None:
        raise RequestRefusedError(404, "the session has no such process, or it was ended", reason="no_process")
    return process


def _command(request: messages.ExecRequest | messages.StartProcessRequest) -> Command:
    pty = request.pty if isinstance(request, messages.StartProcessRequest) else None
    return Command.of(request.argv, request.cwd, request.env, request.user, pty)
