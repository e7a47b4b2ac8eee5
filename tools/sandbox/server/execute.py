"""Answering `/run_code` and `/run_jupyter` with a sandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from aiohttp import web
from prometheus_client import Counter
from pydantic import BaseModel

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox.base import CellResult, ExecutionResult, ExecutionStatus, Sandbox, Session
from toolgym.tools.sandbox.local.host.languages import LANGUAGES
from toolgym.tools.sandbox.names import fetchable, not_fetched
from toolgym.tools.sandbox.options import RunRequest, SessionRequest
from toolgym.tools.sandbox.protocol.fusion import (
    RunCodeRequest,
    RunCodeResponse,
    RunJupyterRequest,
    RunJupyterResponse,
)
from toolgym.tools.sandbox.protocol.messages import CreateSessionRequest
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.json_bodies import parse, problem
from toolgym.tools.serving.metrics import ServerMetrics
from toolgym.tools.serving.routes import Call
from toolgym.tools.serving.transport import MIB, answer

GRACE = 60.0
"""Seconds beyond a program's own time-out after which the server stops waiting for the sandbox."""

FILE_DEADLINE = 60.0
"""Seconds for reading or writing one file of a session, and for opening, forking or closing a session."""

NOT_FOUND = 127  # as shells have it for a command


_STOPPED = frozenset(ExecutionStatus) - {
    ExecutionStatus.OK,
    ExecutionStatus.ERROR,
    ExecutionStatus.COMPILE_ERROR,
    ExecutionStatus.SANDBOX_ERROR,
}
"""Ends of a program that was killed, by the sandbox or otherwise."""

Result = TypeVar("Result", ExecutionResult, CellResult)

_log = logging.getLogger("toolgym.tools.sandbox.server")


class SandboxMetrics(ServerMetrics):
    """The counts of every server, and the ends of programs and cells."""

    def __init__(self) -> None:
        super().__init__("toolgym_sandbox")
        self._outcomes = Counter(
            "toolgym_sandbox_executions",
            "Programs and cells that ended, by endpoint and how.",
            ["endpoint", "status"],
            registry=self.registry,
        )

    def ran(self, endpoint: str, outcome: str) -> None:
        self._outcomes.labels(endpoint, outcome).inc()


@dataclass(eq=False)
class Executor:
    """Answers `/run_code` and `/run_jupyter`."""

    sandbox: Sandbox
    config: ServerConfig
    languages: frozenset[str]
    gate: Gate
    metrics: SandboxMetrics

    @property
    def _files_limit(self) -> int:
        return int(self.config.files_limit_mb * MIB)

    async def run_code(self, call: Call) -> web.Response:
        """As SandboxFusion, answer 127 for a language that is not offered; a time-out of 0 is exceeded at once."""
        asked = parse(RunCodeRequest, call.body)
        request = run_request(asked, self.config)
        language = LANGUAGES.get(asked.language)
        compiled = language is not None and bool(language.compile)
        if asked.language not in self.languages:
            offered = ", ".join(sorted(self.languages))
            why = f"{asked.language}: command not found (this server offers: {offered})\n"
            result = ExecutionResult(ExecutionStatus.ERROR, stderr=why, return_code=NOT_FOUND)
            if compiled:
                result = replace(result, status=ExecutionStatus.COMPILE_ERROR, compile=result)
        elif compiled and asked.compile_timeout <= 0:
            late = ExecutionResult(ExecutionStatus.TIMEOUT)
            result = ExecutionResult(ExecutionStatus.TIMEOUT, compile=late)
        elif asked.run_timeout <= 0:
            result = ExecutionResult(ExecutionStatus.TIMEOUT)
        else:
            patience = request.timeout + (request.compile_timeout or 0.0 if compiled else 0.0) + GRACE
            async with self.gate.slot() as waited:
                self.metrics.queue_seconds.observe(waited)
                result = await _answered(self.sandbox.execute(request), patience, ExecutionResult)
            if compiled and result.compile is None and result.status in _STOPPED:
                result = replace(result, compile=replace(result, files={}))  # the compiler was stopped
        self.metrics.ran("/run_code", result.status.value)
        kept, note = self._fitting(result.files)
        return answer(RunCodeResponse.of(result, kept, note))

    async def run_jupyter(self, call: Call) -> web.Response:
        """Run all cells in one fresh session; opening it counts towards the time. They go on after one that raised."""
        asked = parse(RunJupyterRequest, call.body)
        opening = session_request(asked, self.config)
        if asked.total_timeout <= 0:
            return answer(RunJupyterResponse.of([], duration=0.0, timed_out=True))
        async with self.gate.slot() as waited:
            self.metrics.queue_seconds.observe(waited)
            response = await self._run_cells(asked, opening)
        self.metrics.ran("/run_jupyter", response.status.value)
        return answer(response)

    async def _run_cells(self, request: RunJupyterRequest, opening: SessionRequest) -> RunJupyterResponse:
        time = asyncio.get_running_loop().time
        started = time()
        cells: list[CellResult] = []
        timed_out = False
        try:
            async with asyncio.timeout(FILE_DEADLINE):
                session = await self.sandbox.open_session(opening)
        except (SandboxError, OSError, TimeoutError) as error:
            _log.error("a session could not be opened: %s: %s", type(error).__name__, error)
            message = str(error) or "a session did not open in time"
            failed = CellResult(ExecutionStatus.SANDBOX_ERROR, message=message)
            response = RunJupyterResponse.of([failed], duration=time() - started)
            return response.model_copy(update={"cells": []})
        try:
            for code in request.cells:
                left = request.total_timeout - (time() - started)
                if left <= 0:
                    timed_out = True
                    break
                timeout = min(left, request.cell_timeout) if request.cell_timeout > 0 else left
                running = session.run_cell(code, timeout=timeout)
                cells.append(await _answered(running, timeout + GRACE, partial(CellResult, alive=False)))
                if not cells[-1].alive or cells[-1].status not in (ExecutionStatus.OK, ExecutionStatus.ERROR):
                    break
            duration = time() - started
            fetched, note = await self._fetch(session, request.fetch_files)
        finally:
            await close_session(session)
        kept, more = self._fitting(fetched)
        note = "; ".join(text for text in (note, more) if text)
        return RunJupyterResponse.of(cells, duration=duration, files=kept, timed_out=timed_out, message=note)

    async def _fetch(self, session: Session, names: Sequence[str]) -> tuple[dict[str, bytes], str]:
        """Return the files that exist, and a note about files that cannot be read."""
        fetched: dict[str, bytes] = {}
        names, refused_names = fetchable(names, absolute=True)
        notes = [not_fetched(refused_names)] if refused_names else []
        for at, name in enumerate(names):
            if not session.alive:
                break  # with all its files; the answer tells of the interpreter's end
            if sum(map(len, fetched.values())) > self._files_limit:
                notes.append(f"{len(names) - at} more files were asked for, and an answer has no room for them")
                break
            try:
                async with asyncio.timeout(FILE_DEADLINE):
                    fetched[name] = await session.read_file(name.removeprefix("/tmp/"))
            except (FileNotFoundError, IsADirectoryError):  # as SandboxFusion does
                continue
            except (ConfigError, SandboxError, OSError, TimeoutError) as error:
                notes.append(str(error) or f"reading {name!r} took too long")
        return fetched, "; ".join(notes)

    def _fitting(self, files: Mapping[str, bytes]) -> tuple[dict[str, bytes], str]:
        """Return as many files as fit into an answer, and a note about the rest."""
        kept: dict[str, bytes] = {}
        left_out = []
        room = self._files_limit
        for name, data in files.items():
            if len(data) <= room:
                kept[name] = data
                room -= len(data)
            else:
                left_out.append(f"{name!r} ({len(data)} bytes)")
        note = f"files left out of an answer of at most {self._files_limit} bytes: {', '.join(left_out)}"
        return kept, note if left_out else ""


async def _answered(running: Awaitable[Result], patience: float, failed: Callable[..., Result]) -> Result:
    """Return the sandbox's answer, or after `patience` seconds a `SANDBOX_ERROR` that `failed` makes."""
    try:
        async with asyncio.timeout(patience):
            return await running
    except TimeoutError:
        message = f"the sandbox did not answer within {patience:g} s"
    except (SandboxError, OSError) as error:
        message = f"{type(error).__name__}: {error}"
    _log.error("a program or cell could not be run: %s", message)
    return failed(ExecutionStatus.SANDBOX_ERROR, message=message)


async def close_session(session: Session) -> None:
    """Close a session. A failure goes to the log."""
    try:
        async with asyncio.timeout(FILE_DEADLINE):
            await session.close()
    except (SandboxError, OSError, TimeoutError) as error:
        _log.error("a session could not be closed: %s: %s", type(error).__name__, error)


def run_request(asked: RunCodeRequest, config: ServerConfig) -> RunRequest:
    """Make the run for `/run_code`. A time-out of 0 is replaced: such a program is not run."""
    check_limits(asked, config, "run_timeout", "compile_timeout")
    return RunRequest(
        asked.code,
        language=asked.language,
        timeout=asked.run_timeout if asked.run_timeout > 0 else 1.0,
        compile_timeout=asked.compile_timeout if asked.compile_timeout > 0 else None,
        memory_mb=asked.memory_limit_MB if asked.memory_limit_MB > 0 else None,
        stdin=asked.stdin or "",
        files={name: data for name, data in asked.files.items() if data is not None},
        fetch_files=asked.fetch_files,
        env=asked.env,
    )


def session_request(asked: CreateSessionRequest | RunJupyterRequest, config: ServerConfig) -> SessionRequest:
    timeouts = ("total_timeout", "cell_timeout") if isinstance(asked, RunJupyterRequest) else ()
    check_limits(asked, config, *timeouts)
    memory = asked.memory_limit_MB if asked.memory_limit_MB > 0 else None
    if isinstance(asked, RunJupyterRequest):
        return SessionRequest(files=asked.files, memory_mb=memory, hint="\n".join(asked.cells), recover=False)
    names = ("files", "env", "file_mb", "disk_mb", "inodes", "network", "folders", "recover", "idle")
    return SessionRequest(memory_mb=memory, **{name: getattr(asked, name) for name in names})


def check_limits(asked: BaseModel, config: ServerConfig, *timeouts: str) -> None:
    """Check time-outs, by their names, and limits among the fields of a request."""
    limits = dict.fromkeys(timeouts, config.max_timeout) | {
        "memory_limit_MB": config.max_memory_mb,
        "file_mb": config.max_disk_mb,
        "disk_mb": config.max_disk_mb,
        "inodes": config.max_inodes,
    }
    for field, most in limits.items():
        value = asked.__dict__.get(field)  # `getattr` raises and catches two errors for a field that there is not
        if value is not None and field in timeouts and value < 0:
            raise problem((field,), "Input should be greater than or equal to 0", "greater_than_equal", value)
        if value is not None and value > most:
            shown = most if isinstance(most, int) else f"{most:g}"
            raise problem((field,), f"Input should be less than or equal to {shown}", "less_than_equal", value)
