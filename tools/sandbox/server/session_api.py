"""Answering `/sessions`: interpreters that keep their state from call to call."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from urllib.parse import unquote

from aiohttp import web

from toolgym.tools.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxError,
    SandboxUnsupportedError,
    UnknownNameError,
)
from toolgym.tools.sandbox.base import Sandbox, Session
from toolgym.tools.sandbox.names import OptionError, check_name
from toolgym.tools.sandbox.options import SessionRequest
from toolgym.tools.sandbox.protocol.conversions import cell_response, exec_response
from toolgym.tools.sandbox.protocol.messages import (
    CellRequest,
    CheckpointNames,
    CreateSessionRequest,
    ExecRequest,
    ForkRequest,
    ForkResponse,
)
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE, GRACE, Executor, valid
from toolgym.tools.sandbox.server.metrics import SandboxMetrics
from toolgym.tools.sandbox.server.sessions import Entry, Sessions
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.json_bodies import InvalidRequestError, parse, problem
from toolgym.tools.serving.transport import RefusedError, answer


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
        sandbox: Sandbox,
        config: ServerConfig,
        executor: Executor,
        gate: Gate,
        metrics: SandboxMetrics,
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
        files = self._executor.files(request.files)
        wanted = valid(lambda: SessionRequest(files=files, env=request.env, memory_mb=memory))

        async def opening() -> list[Session]:
            async with self._gate.slot(), asyncio.timeout(FILE_DEADLINE):
                return [await self._sandbox.open_session(wanted)]

        (entry,) = await self._add(opening)
        return answer(self._sessions.info(entry), 201, {"Location": f"/sessions/{entry.name}"})

    async def fork(self, name: str, body: bytes) -> web.Response:
        """Make independent sessions in the same state, or in that of a checkpoint."""
        request = parse(ForkRequest, body or b"{}")
        async with self._sessions.use(name) as entry:

            async def opening() -> list[Session]:
                async with self._forking():
                    return await entry.session.fork(request.checkpoint, n=request.n)

            infos = [self._sessions.info(one) for one in await self._add(opening, request.n, entry.cells)]
        response = ForkResponse(**infos[0].model_dump(), sessions=infos)
        return answer(response, 201, {"Location": f"/sessions/{response.id}"})

    async def checkpoint(self, name: str, raw: str) -> web.Response:
        """Keep the state as it is now, under a name."""
        label = _unquoted(raw)
        async with self._sessions.use(name) as entry, self._sessions.room(), self._forking():
            await entry.session.checkpoint(label)
        return web.Response(status=204)

    async def checkpoints(self, name: str) -> web.Response:
        """List the checkpoints. That is no call: the session goes on being idle."""
        return answer(CheckpointNames(checkpoints=list(self._sessions.find(name).session.checkpoints)))

    async def drop_checkpoint(self, name: str, raw: str) -> web.Response:
        """Free a checkpoint; that there is none of that name is fine."""
        label = _unquoted(raw)
        async with self._sessions.use(name) as entry:
            if label in entry.session.checkpoints:
                try:
                    async with asyncio.timeout(FILE_DEADLINE):
                        await entry.session.drop_checkpoint(label)
                except (SandboxError, OSError, TimeoutError) as error:
                    raise await self._failed(name, error) from None
        return web.Response(status=204)

    @contextlib.asynccontextmanager
    async def _forking(self) -> AsyncIterator[None]:
        """Take a place for a fork. What keeps it from coming about is answered so that clients do not try again."""
        try:
            async with self._gate.slot(), asyncio.timeout(FILE_DEADLINE):
                yield
        except OptionError as error:
            raise _bad_name(str(error)) from None
        except UnknownNameError as error:
            raise RefusedError(404, str(error), reason="no_checkpoint") from None
        except SandboxUnsupportedError as error:
            raise RefusedError(409, str(error), reason="unsupported") from None
        except SandboxBusyError as error:
            raise RefusedError(409, str(error), reason="no_room") from None
        except SandboxError as error:
            raise RefusedError(409, str(error)) from None
        except (OSError, TimeoutError) as error:
            raise RefusedError(503, str(error) or "a fork did not come about in time", {"Retry-After": "1"}) from None

    async def _add(
        self, opening: Callable[[], Awaitable[Sequence[Session]]], n: int = 1, cells: int = 0
    ) -> list[Entry]:
        try:
            return await self._sessions.add(opening, n, cells)
        except ConfigError as error:
            raise problem((), str(error)) from None
        except (SandboxError, OSError, TimeoutError) as error:
            raise RefusedError(503, str(error) or "a session did not open in time", {"Retry-After": "1"}) from None

    async def run_cell(self, name: str, body: bytes) -> web.Response:
        """Run a cell."""
        request = parse(CellRequest, body)
        self._executor.check_timeout("timeout", request.timeout)
        async with self._sessions.use(name) as entry, self._gate.slot() as slot:
            self._metrics.queued(slot.waited)
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
        async with self._sessions.use(name) as entry, self._gate.slot() as slot:
            self._metrics.queued(slot.waited)
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
                raise RefusedError(404, f"the session has no file {file!r}", reason="no_file") from None
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

    async def _failed(self, name: str, error: Exception, entry: Entry | None = None) -> RefusedError:
        """Return the answer for a failure of the sandbox. A session that does not answer is closed.

        How far the call came is unknown, so the status is one that clients do not retry.

        Args:
            name: the session's id.
            error: what happened.
            entry: the session, for a file of it: where it goes on, it is the file that stands in the way.
        """
        if isinstance(error, TimeoutError):
            await self._sessions.remove(name)
            return RefusedError(500, "the sandbox did not answer in time; the session is closed")
        if entry is not None and entry.session.alive:
            return RefusedError(409, str(error))
        if entry is not None:
            return RefusedError(404, f"{type(error).__name__}: {error}", reason="no_session")
        return RefusedError(500, f"{type(error).__name__}: {error}")


def made_sessions(response: web.Response) -> list[str]:
    """Return the ids of the sessions in an answer with the status 201."""
    assert isinstance(response.body, bytes)
    body = json.loads(response.body)
    return [info["id"] for info in body.get("sessions", [body])]


def _file_name(raw: str) -> str:
    """Return the name of a file from a path, in which it is percent-encoded."""
    try:
        return check_name(_unquoted(raw))
    except OptionError as error:
        raise _bad_name(str(error)) from None


def _unquoted(raw: str) -> str:
    try:
        return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise _bad_name("A name should be valid UTF-8") from None


def _bad_name(message: str) -> InvalidRequestError:
    return InvalidRequestError([{"type": "value_error", "loc": ["path", "name"], "msg": message}])
