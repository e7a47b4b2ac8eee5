"""Answers about the programs of a session: `/exec` and `/processes`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from aiohttp import web

from toolgym.tools.errors import ConfigError, SandboxError, SandboxFileError
from toolgym.tools.sandbox.files import reason_of
from toolgym.tools.sandbox.processes import Command, Process, ProcessRequest, check_size
from toolgym.tools.sandbox.protocol import messages
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE, GRACE, check_limits
from toolgym.tools.sandbox.server.session_api import MAX_BESIDE, SessionApi, SessionEntry
from toolgym.tools.serving.json_bodies import parse, problem
from toolgym.tools.serving.routes import Call, Operation, Route
from toolgym.tools.serving.transport import RequestRefusedError, answer


class ProcessApi:
    """Answers calls about programs of this worker's sessions. They wait for no cell.

    A program in the background has a slot of the gate only while it is started.
    """

    def __init__(self, api: SessionApi) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        conflict = "It cannot be started"
        run = Operation(
            self.exec, "Run a program in it", messages.ExecRequest, messages.ExecResponse, conflict=conflict
        )
        summary = "Start a program in the background"
        start = Operation(self.start, summary, messages.StartProcessRequest, messages.ProcessInfo, conflict=conflict)
        ask_summary = "Write to a program, signal it, wait for it, and read what it has printed"
        ask = Operation(self.ask, ask_summary, messages.AskProcessRequest, messages.AskProcessResponse)
        end = Operation(self.end, "Kill a program and forget it", status=204)
        return [
            Route("/sessions/{id}/exec", {"POST": run}),
            Route("/sessions/{id}/processes", {"POST": start}),
            Route("/sessions/{id}/processes/{process}", {"POST": ask, "DELETE": end}),
        ]

    async def exec(self, call: Call) -> web.Response:
        request = parse(messages.ExecRequest, call.body)
        check_limits(request, self._api.config, "timeout")
        command = _command(request)
        async with self._using(call, request.timeout) as entry, self._api.gate.slot() as waited:
            self._api.metrics.queue_seconds.observe(waited)
            result = await entry.session._exec(command, request.input, request.timeout)
        self._api.metrics.ran("/sessions/{id}/exec", result.status.value)
        return answer(messages.ExecResponse.of(result))

    async def start(self, call: Call) -> web.Response:
        request = parse(messages.StartProcessRequest, call.body)
        command = _command(request)
        async with self._using(call, FILE_DEADLINE) as entry, self._api.gate.slot():
            process = await entry.session._start(command)
            name = secrets.token_hex(8)
            entry.processes[name] = process
        return answer(messages.ProcessInfo(process=name, pid=process.pid))

    async def ask(self, call: Call) -> web.Response:
        request = parse(messages.AskProcessRequest, call.body)
        check_limits(request, self._api.config, "wait")
        if request.size is not None:
            check_size(request.size, "size")
        asked = ProcessRequest(request.input, **request.model_dump(exclude={"stdin", "stdin_base64"}))
        async with self._using(call, request.wait) as entry:
            state = await _found(entry, call).ask(asked)
        return answer(messages.AskProcessResponse.of(state))

    async def end(self, call: Call) -> web.Response:
        """Kill and forget a program; an unknown id is fine."""
        async with self._using(call, FILE_DEADLINE) as entry:
            process = entry.processes.pop(call.params["process"], None)
            if process is not None:
                await process.close()
        return web.Response(status=204)

    @contextlib.asynccontextmanager
    async def _using(self, call: Call, seconds: float) -> AsyncIterator[SessionEntry]:
        """Give the session, and translate failures to answers."""
        async with self._api.sessions.use_beside(call.params["id"], MAX_BESIDE) as entry:
            try:
                async with asyncio.timeout(seconds + GRACE + self._api.config.queue_timeout):
                    yield entry
            except SandboxFileError as error:
                raise RequestRefusedError(409, str(error), reason=reason_of(error)) from None
            except ConfigError as error:
                raise problem(("argv",), str(error)) from None
            except (SandboxError, OSError, TimeoutError) as error:
                raise await self._api.failed(entry, error) from None


def _found(entry: SessionEntry, call: Call) -> Process:
    process = entry.processes.get(call.params["process"])
    if process is None:
        raise RequestRefusedError(404, "the session has no such process, or it was ended", reason="no_process")
    return process


def _command(request: messages.ExecRequest | messages.StartProcessRequest) -> Command:
    pty = request.pty if isinstance(request, messages.StartProcessRequest) else None
    return Command.of(request.argv, request.cwd, request.env, request.user, pty)
