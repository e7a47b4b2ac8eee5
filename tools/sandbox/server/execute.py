"""Answering `/run_code` and `/run_jupyter` with a sandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import TypeVar

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox.base import CellResult, ExecutionResult, ExecutionStatus, Sandbox, Session
from toolgym.tools.sandbox.names import OptionError, check_name
from toolgym.tools.sandbox.options import RunRequest, SessionRequest
from toolgym.tools.sandbox.protocol.conversions import run_code_response, run_jupyter_response
from toolgym.tools.sandbox.protocol.messages import (
    COMPILED,
    RunCodeRequest,
    RunCodeResponse,
    RunJupyterRequest,
    RunJupyterResponse,
)
from toolgym.tools.sandbox.server.config import ServerConfig
from toolgym.tools.sandbox.server.metrics import SandboxMetrics
from toolgym.tools.sandbox.server.request_checks import decode_files
from toolgym.tools.serving.admission import Gate
from toolgym.tools.serving.json_bodies import problem

GRACE = 60.0
"""Seconds beyond a program's own time-out until the sandbox itself is given up on."""

FILE_DEADLINE = 60.0
"""Seconds for reading or writing one file of a session, opening, forking or closing one."""

OWN_INODES = 16
"""Files and folders that the sandbox itself keeps where a program's are."""

NOT_FOUND = 127
"""The return code that shells give for a command that they do not find."""

MIB = 1024 * 1024

_STOPPED = frozenset(ExecutionStatus) - {
    ExecutionStatus.OK,
    ExecutionStatus.ERROR,
    ExecutionStatus.COMPILE_ERROR,
    ExecutionStatus.SANDBOX_ERROR,
}

T = TypeVar("T")

_log = logging.getLogger("toolgym.tools.sandbox.server")


class Executor:
    """Runs what requests ask for.

    Args:
        sandbox: runs it.
        config: limits.
        languages: what can be asked for.
        gate: gives places to run.
        metrics: counts.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        config: ServerConfig,
        languages: frozenset[str],
        gate: Gate,
        metrics: SandboxMetrics,
    ) -> None:
        self._sandbox = sandbox
        self._config = config
        self._languages = languages
        self._gate = gate
        self._metrics = metrics
        self._files_limit = int(config.files_limit_mb * MIB)

    async def run_code(self, request: RunCodeRequest) -> RunCodeResponse:
        """Answer `/run_code`.

        A language that is not offered is answered as SandboxFusion answers where the toolchain is missing: the program
        failed with return code 127. A time-out of 0 or less is exceeded at once, as there.

        Raises:
            InvalidRequestError: a value is out of range.
            BusyError: there is no place to run it.
        """
        compiled = request.language in COMPILED
        self.check_timeout("run_timeout", request.run_timeout)
        self.check_timeout("compile_timeout", request.compile_timeout)
        memory = self.memory(request.memory_limit_MB)
        files = self.files(request.files)
        run = valid(
            lambda: RunRequest(
                request.code,
                language=request.language,
                timeout=request.run_timeout if request.run_timeout > 0 else 1.0,  # then it is not run
                compile_timeout=request.compile_timeout if request.compile_timeout > 0 else None,
                memory_mb=memory,
                stdin=request.stdin or "",
                files=files,
                fetch_files=request.fetch_files,
                env=request.env,
            )
        )
        if request.language not in self._languages:
            result = self._not_offered(request.language)
            if compiled:
                result = replace(result, status=ExecutionStatus.COMPILE_ERROR, compile=result)
        elif compiled and request.compile_timeout <= 0:
            late = ExecutionResult(ExecutionStatus.TIMEOUT)
            result = ExecutionResult(ExecutionStatus.TIMEOUT, compile=late)
        elif request.run_timeout <= 0:
            result = ExecutionResult(ExecutionStatus.TIMEOUT)
        else:
            async with self._gate.slot() as slot:
                self._metrics.queued(slot.waited)
                result = await self._run(run, compiled)
            if compiled and result.compile is None and result.status in _STOPPED:
                result = replace(result, compile=replace(result, files={}))  # it never got beyond the compiler
        self._metrics.ran("/run_code", result.status.value)
        kept, note = self._fitting(result.files)
        return run_code_response(result, kept, note)

    async def _run(self, request: RunRequest, compiled: bool) -> ExecutionResult:
        patience = request.timeout + (request.compile_timeout or 0.0 if compiled else 0.0) + GRACE
        try:
            async with asyncio.timeout(patience):
                return await self._sandbox.execute(request)
        except TimeoutError:
            message = f"the sandbox did not answer within {patience:g} s"
        except ConfigError as error:
            raise problem((), str(error)) from None
        except (SandboxError, OSError) as error:
            message = f"{type(error).__name__}: {error}"
        _log.error("a program could not be run: %s", message)
        return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=message)

    async def run_jupyter(self, request: RunJupyterRequest) -> RunJupyterResponse:
        """Answer `/run_jupyter`: all cells in one fresh session.

        Cells go on after one that raised, and stop after one that ran too long or took the interpreter with it. Time
        counts from when the session begins to open.

        Raises:
            InvalidRequestError: a value is out of range.
            BusyError: there is no place to run it.
        """
        self.check_timeout("total_timeout", request.total_timeout)
        self.check_timeout("cell_timeout", request.cell_timeout)
        memory = self.memory(request.memory_limit_MB)
        files = self.files(request.files)
        opening = valid(lambda: SessionRequest(files=files, memory_mb=memory, hint="\n".join(request.cells)))
        for at, name in enumerate(request.fetch_files):
            valid(partial(check_name, name, absolute=True, field=("fetch_files", at)))
        if request.total_timeout <= 0:
            return run_jupyter_response([], duration=0.0, timed_out=True)
        async with self._gate.slot() as slot:
            self._metrics.queued(slot.waited)
            response = await self._run_cells(request, opening)
        self._metrics.ran("/run_jupyter", response.status.value)
        return response

    async def _run_cells(self, request: RunJupyterRequest, opening: SessionRequest) -> RunJupyterResponse:
        time = asyncio.get_running_loop().time
        started = time()
        cells: list[CellResult] = []
        timed_out = False
        try:
            async with asyncio.timeout(FILE_DEADLINE):
                session = await self._sandbox.open_session(opening)
        except (SandboxError, OSError, TimeoutError) as error:
            _log.error("a session could not be opened: %s: %s", type(error).__name__, error)
            message = str(error) or "a session did not open in time"
            failed = CellResult(ExecutionStatus.SANDBOX_ERROR, message=message)
            response = run_jupyter_response([failed], duration=time() - started)
            return response.model_copy(update={"cells": []})
        try:
            for code in request.cells:
                left = request.total_timeout - (time() - started)
                if left <= 0:
                    timed_out = True
                    break
                cells.append(await self._run_cell(session, code, left, request.cell_timeout))
                if not cells[-1].alive or cells[-1].status not in (ExecutionStatus.OK, ExecutionStatus.ERROR):
                    break
            duration = time() - started
            fetched, note = await self._fetch(session, request.fetch_files)
        finally:
            await close_session(session)
        kept, more = self._fitting(fetched)
        note = "; ".join(text for text in (note, more) if text)
        return run_jupyter_response(cells, duration=duration, files=kept, timed_out=timed_out, message=note)

    async def _run_cell(self, session: Session, code: str, left: float, own: float) -> CellResult:
        timeout = min(left, own) if own > 0 else left
        try:
            async with asyncio.timeout(timeout + GRACE):
                return await session.run_cell(code, timeout=timeout)
        except TimeoutError:
            message = f"the sandbox did not answer within {timeout + GRACE:g} s"
        except (SandboxError, OSError) as error:
            message = f"{type(error).__name__}: {error}"
        _log.error("a cell could not be run: %s", message)
        return CellResult(ExecutionStatus.SANDBOX_ERROR, message=message, alive=False)

    async def _fetch(self, session: Session, names: Sequence[str]) -> tuple[dict[str, bytes], str]:
        """Return those files that exist, and a note about those that exist and cannot be read."""
        found: dict[str, bytes] = {}
        notes = []
        for name in names:
            if not session.alive or sum(map(len, found.values())) > self._files_limit:
                break
            try:
                async with asyncio.timeout(FILE_DEADLINE):
                    found[name] = await session.read_file(name.removeprefix("/tmp/"))
            except FileNotFoundError:
                continue
            except (ConfigError, SandboxError, OSError, TimeoutError) as error:
                notes.append(str(error) or f"reading {name!r} took too long")
        return found, "; ".join(notes)

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

    def check_timeout(self, field: str, seconds: float) -> None:
        """Raises InvalidRequestError for more seconds than a request may ask for."""
        if seconds > self._config.max_timeout:
            most = f"Input should be less than or equal to {self._config.max_timeout:g}"
            raise problem((field,), most, "less_than_equal", seconds)

    def files(self, given: Mapping[str, str | None]) -> dict[str, bytes]:
        """Return the files of a request. Raises InvalidRequestError for what cannot be files, or is too much."""
        files = decode_files(given)
        limits = self._config.limits
        inodes = len({place for name in files for place in (name, *PurePosixPath(name).parents)}) + OWN_INODES
        if files and inodes > limits.inodes:
            most = f"The files and their folders should be at most {limits.inodes - OWN_INODES}"
            raise problem(("files",), most, "too_long", inodes - OWN_INODES)
        size = sum(map(len, files.values()))
        if size > limits.disk_mb * MIB:
            raise problem(("files",), f"The files should have at most {limits.disk_mb} MiB", "too_long", size)
        too_large = next((name for name, data in files.items() if len(data) > limits.file_mb * MIB), None)
        if too_large is not None:
            raise problem(("files", too_large), f"A file should have at most {limits.file_mb} MiB", "too_long")
        return files

    def memory(self, asked: int) -> int | None:
        """Return the limit that a request asks for; None where it asks for none. InvalidRequestError for too much."""
        if asked > self._config.max_memory_mb:
            most = f"Input should be less than or equal to {self._config.max_memory_mb}"
            raise problem(("memory_limit_MB",), most, "less_than_equal", asked)
        return asked if asked > 0 else None

    def _not_offered(self, language: str) -> ExecutionResult:
        offered = ", ".join(sorted(self._languages))
        return ExecutionResult(
            ExecutionStatus.ERROR,
            stderr=f"{language}: command not found (this server offers: {offered})\n",
            return_code=NOT_FOUND,
        )


def valid(make: Callable[[], T]) -> T:
    """Return what `make` returns. Raises InvalidRequest, which names the field, where it raises OptionError."""
    try:
        return make()
    except OptionError as error:
        raise problem(error.field, str(error)) from None


async def close_session(session: Session) -> None:
    """Close a session, whatever happens; a failure goes to the log."""
    try:
        async with asyncio.timeout(FILE_DEADLINE):
            await session.close()
    except (SandboxError, OSError, TimeoutError) as error:
        _log.error("a session could not be closed: %s: %s", type(error).__name__, error)
