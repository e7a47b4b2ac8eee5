"""Answering `/sessions`: interpreters that keep their state from call to call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from aiohttp import web

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox.base import Session
from toolgym.tools.sandbox.server.admission import Gate
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.convert import cell_response, check_env, check_name, exec_response
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE, GRACE, Executor, ServedSandbox
from toolgym.tools.sandbox.server.metrics import Metrics
from toolgym.tools.sandbox.server.sessions import Entry, Sessions
from toolgym.tools.sandbox.server.transport import Refused, answer
from toolgym.tools.sandbox.server.wire import (
    CellRequest,
    CreateSessionRequest,
    ExecRequest,
    InvalidRequest,
    parse,
    problem,
)


class SessionApi:
    """Calls of sessions that live in this worker.

    Args:
        sandbox: has them.
        config: limits.
        executor: checks what requests ask for.
        gate: gives places to run.
        metrics: counts.
        sessions: those that are open.
    """

    def __init__(
        self,
        sandbox: ServedSandbox,
        config: ServerConfig,
        executor: Executor,
        gate: Gate,
        metrics: Metrics,
        sessions: Sessions,
    ) -> None:
        self._sandbox = sandbox
        self._config = config
        self._executor = executor
        self._gate = gate
        self._metrics = metrics
        self._sessions = sessions

    async def create(self, body: bytes) -> web.Response:
        """Open a session."""
        request = parse(CreateSessionRequest, body or b"{}")
        memory = self._executor.memory(request.memory_limit_MB)
        check_env(request.env)
        files = self._executor.files(request.files)

        async def opening() -> Session:
            async with self._gate.place(), asyncio.timeout(FILE_DEADLINE):
                return await self._sandbox.session(files=files, env=request.env, memory_mb=memory)

        return self._made(await self._add(opening))

    async def fork(self, name: str) -> web.Response:
        """Make an independent session in the same state."""
        async with self._sessions.use(name) as entry:

            async def opening() -> Session:
                async with self._gate.place(), asyncio.timeout(FILE_DEADLINE):
                    try:
                        return await entry.session.fork()
                    except SandboxError as error:  # another try would not go better
                        raise Refused(409, str(error)) from None

            return self._made(await self._add(opening, entry.cells))

    async def _add(self, opening: Callable[[], Awaitable[Session]], cells: int = 0) -> Entry:
        try:
            return await self._sessions.add(opening, cells)
        except ConfigError as error:
            raise problem((), str(error)) from None
        except (SandboxError, OSError, TimeoutError) as error:
            raise Refused(503, str(error) or "a session did not open in time", {"Retry-After": "1"}) from None

    def _made(self, entry: Entry) -> web.Response:
        return answer(self._sessions.info(entry), 201, {"Location": f"/sessions/{entry.name}"})

    async def run_cell(self, name: str, body: bytes) -> web.Response:
        """Run a cell."""
        request = parse(CellRequest, body)
        self._executor.check_timeout("timeout", request.timeout)
        async with self._sessions.use(name) as entry, self._gate.place() as place:
            self._metrics.queued(place.waited)
            entry.cells += 1
            try:
                async with asyncio.timeout(request.timeout + GRACE):
                    result = await entry.session.run_cell(request.code, timeout=request.timeout)
            except (SandboxError, OSError, TimeoutError) as error:
                raise await self._failed(name, error) from None
        self._metrics.ran("/sessions/{id}/cells", result.status.value)
        return answer(cell_response(result))

    async def exec(self, name: str, body: bytes) -> web.Response:
        """Run a program beside the interpreter."""
        request = parse(ExecRequest, body)
        self._executor.check_timeout("timeout", request.timeout)
        async with self._sessions.use(name) as entry, self._gate.place() as place:
            self._metrics.queued(place.waited)
            try:
                async with asyncio.timeout(request.timeout + GRACE):
                    result = await entry.session.exec(request.argv, timeout=request.timeout, stdin=request.stdin)
            except ConfigError as error:
                raise problem(("argv",), str(error)) from None
            except (SandboxError, OSError, TimeoutError) as error:
                raise await self._failed(name, error) from None
        self._metrics.ran("/sessions/{id}/exec", result.status.value)
        return answer(exec_response(result))

    async def write_file(self, name: str, raw: str, body: bytes) -> web.Response:
        """Write a file: the body is its content."""
        file = _file_name(raw)
        async with self._sessions.use(name) as entry:
            try:
                async with asyncio.timeout(FILE_DEADLINE):
                    await entry.session.write_file(file, body)
            except ConfigError as error:
                raise _bad_name(str(error)) from None
            except (SandboxError, OSError, TimeoutError) as error:
                raise await self._failed(name, error, entry) from None
        return web.Response(status=204)

    async def read_file(self, name: str, raw: str) -> web.Response:
        """Read a file: the answer is its content."""
        file = _file_name(raw)
        async with self._sessions.use(name) as entry:
            try:
                async with asyncio.timeout(FILE_DEADLINE):
                    content = await entry.session.read_file(file)
            except FileNotFoundError:
                raise Refused(404, f"the session has no file {file!r}", reason="no_file") from None
            except ConfigError as error:
                raise _bad_name(str(error)) from None
            except (SandboxError, OSError, TimeoutError) as error:
                raise await self._failed(name, error, entry) from None
        return web.Response(body=content, content_type="application/octet-stream")

    async def info(self, name: str) -> web.Response:
        """Tell about a session. That is no call: it goes on being idle."""
        return answer(self._sessions.info(self._sessions.find(name)))

    async def delete(self, name: str) -> web.Response:
        """Close a session."""
        await self._sessions.remove(name)
        return web.Response(status=204)

    async def _failed(self, name: str, error: Exception, entry: Entry | None = None) -> Refused:
        """What the sandbox, not the program, got wrong. A session that does not answer is given up.

        Nobody knows how far the call came, so the status is one that clients do not retry.

        Args:
            name: the session's id.
            error: what happened.
            entry: the session, for a file of it: where it goes on, it is the file that stands in the way.
        """
        if isinstance(error, TimeoutError):
            await self._sessions.remove(name)
            return Refused(500, "the sandbox did not answer in time; the session is closed")
        if entry is not None and entry.session.alive:
            return Refused(409, str(error))
        if entry is not None:
            return Refused(404, f"{type(error).__name__}: {error}", reason="no_session")
        return Refused(500, f"{type(error).__name__}: {error}")


def _file_name(raw: str) -> str:
    """The name in a path, still percent-encoded there."""
    try:
        name = unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise _bad_name("A file's name should be valid UTF-8") from None
    try:
        check_name(name, ())
    except InvalidRequest as error:
        raise _bad_name(error.problems[0]["msg"]) from None
    return name


def _bad_name(message: str) -> InvalidRequest:
    return InvalidRequest([{"type": "value_error", "loc": ["path", "name"], "msg": message}])
