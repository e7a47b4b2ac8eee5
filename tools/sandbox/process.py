"""`ProcessSandbox`: every execution is a fresh process.

What it does: own temporary folder, clean environment variables, capped output. At the deadline, on cancellation, when
the program ends and when this process ends, the program is killed with everything that it started. On Linux that
includes daemons: a supervisor adopts them (`process_supervisor.py`). Elsewhere it is the program's process group.

What it does **not** do: it isolates nothing else. The program runs as the user who runs toolgym, can read that user's
files, reach the network, kill that user's processes (the supervisor and this process too), and use all memory. Run code
that you do not trust in a `LocalSandbox`, in a container, or on a remote sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import tempfile
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, SandboxClosedError, UnknownNameError, nearest
from toolgym.tools.sandbox import process_supervisor
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Limits, Sandbox
from toolgym.tools.sandbox.facts import SandboxFacts, probe_python
from toolgym.tools.sandbox.local.host.cpu_slots import COMPUTING_EACH
from toolgym.tools.sandbox.local.host.resources import available_processors
from toolgym.tools.sandbox.local.host.stack_dumps import with_stack
from toolgym.tools.sandbox.local.kernel.folders import remove
from toolgym.tools.sandbox.local.protocol.capture import FLOOD_FACTOR, Capture
from toolgym.tools.sandbox.names import fetchable, not_fetched, unused_stem
from toolgym.tools.sandbox.options import RunRequest

KILL_GRACE = 5.0

DRAIN_GRACE = 0.5
"""Seconds to wait for the pipes of a dead process to close."""

_COMMANDS = {
    "python": ("{main}.py", [sys.executable, "-X", "faulthandler", "-s", "-u"]),
    "bash": ("{main}.sh", ["bash"]),
}


@functools.cache
def _limiter_of_all() -> LocalRateLimiter:
    """Make the limiter of all process sandboxes that have no number of their own."""
    return LocalRateLimiter(COMPUTING_EACH * available_processors())


class ProcessSandbox(Sandbox):
    """Runs each program in a fresh process, without further isolation: see the module's docstring.

    Args:
        max_output_bytes: cap for each of stdout and stderr; the middle of a longer stream is dropped.
        max_running: executions at once, those that sleep included. Default: four per processor, of all such sandboxes
            of the process together.

    Raises ConfigError if a number is out of range.
    """

    def __init__(self, *, max_output_bytes: int = 64 * 1024, max_running: int | None = None) -> None:
        if max_output_bytes < 2:
            raise ConfigError(f"max_output_bytes must be at least 2, got {max_output_bytes!r}")
        self.max_output_bytes = max_output_bytes
        self._limiter = _limiter_of_all() if max_running is None else LocalRateLimiter(max_running)
        self._groups: dict[int, _Supervision] = {}
        self._closed = False

    @property
    def process_ids(self) -> frozenset[int]:
        """Ids of the processes that run now; each leads its own process group."""
        return frozenset(self._groups)

    @property
    def facts(self) -> SandboxFacts:
        return SandboxFacts("host", None, *probe_python(sys.executable), "all")

    @staticmethod
    def check_language(language: str) -> None:
        if language not in _COMMANDS:
            raise UnknownNameError(
                f"unknown language {language!r}{nearest(language, _COMMANDS) or '.'} Known: {', '.join(_COMMANDS)}."
            )

    async def execute(self, request: RunRequest) -> ExecutionResult:
        if self._closed:
            raise SandboxClosedError("the sandbox is closed")
        if request.memory_mb is not None:
            raise ConfigError("a ProcessSandbox cannot limit memory; use a LocalSandbox, or leave memory_mb out")
        self.check_language(request.language)
        async with self._limiter.permit():
            return await self._execute(request)

    async def _execute(self, request: RunRequest) -> ExecutionResult:
        if self._closed:  # while it waited
            raise SandboxClosedError("the sandbox is closed")
        names, left_out = fetchable(request.fetch_files, absolute=False)  # its folder is not /tmp
        pattern, interpreter = _COMMANDS[request.language]
        file_name = pattern.replace("{main}", unused_stem([pattern], request.files))
        try:
            # Not in a thread: one whose caller was cancelled would leave its folder behind.
            folder = Path(tempfile.mkdtemp(prefix="toolgym-"))
        except OSError as error:
            return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=f"cannot make a folder to run in: {error}")
        try:
            # A lone surrogate cannot be written as UTF-8; the interpreter then reports it as it would any bad source.
            source = request.code.encode("utf-8", errors="surrogatepass")
            await shielded(in_thread(_place_files, folder, {**request.files, file_name: source}))
            stdin = request.stdin.encode("utf-8", errors="replace")
            command = [*interpreter, file_name]
            result = await self._run(command, folder, stdin, request)
            files = await in_thread(_fetch_files, folder, names, left_out)
            return replace(result, files=files, message=not_fetched(left_out))
        except OSError as error:
            return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=f"cannot start the program: {error}")
        finally:
            await shielded(in_thread(remove, str(folder)))

    async def close(self) -> None:
        self._closed = True
        for supervision in tuple(self._groups.values()):
            supervision.kill()

    async def _run(self, command: list[str], folder: Path, stdin: bytes, request: RunRequest) -> ExecutionResult:
        started = time.monotonic()
        most = max(request.output_bytes or 0, self.max_output_bytes)
        program = _Program(Capture(most), Capture(most))
        supervision = _Supervision(folder)
        try:
            transport, cancelled = await _start(
                program, supervision.command(command), folder, {**_environment(folder), **request.env}, supervision.ends
            )
        except BaseException:
            supervision.close()
            raise
        group = transport.get_pid()
        supervision.begin(group)
        self._groups[group] = supervision
        timed_out = False
        try:
            if cancelled is not None:
                raise cancelled
            _feed(transport, stdin)
            done, _ = await asyncio.wait(
                {program.exited, program.flooded}, timeout=request.timeout, return_when=FIRST_COMPLETED
            )
            timed_out = not done
        finally:
            # After any end, cancellation included, nothing that the program started may survive.
            supervision.kill(show_stack=timed_out and request.language == "python")
            try:
                await shielded(program.settle())
            finally:
                code = supervision.close(transport.get_returncode())
                transport.close()
                del self._groups[group]
        duration = time.monotonic() - started
        status, return_code = _ending(code, timed_out, program.flooded.done())
        result = ExecutionResult(
            status=status,
            stdout=program.out.text().replace(f"{folder}/", ""),  # the folder's random name is noise to a model
            stderr=program.err.text().replace(f"{folder}/", ""),
            return_code=return_code,
            limit=Limits(output_bytes=most).exceeded(status, flood_factor=FLOOD_FACTOR),
            duration=duration,
            stdout_truncated=program.out.truncated,
            stderr_truncated=program.err.truncated,
        )
        return with_stack(result, "main", request.code) if request.language == "python" else result


async def _start(
    program: _Program, command: list[str], folder: Path, env: Mapping[str, str], pass_fds: Sequence[int]
) -> tuple[asyncio.SubprocessTransport, asyncio.CancelledError | None]:
    """Start a program in a process group of its own.

    A start that is cancelled half-way would kill the process, and not the group that it may lead by then: the
    cancellation is returned for the caller to raise.
    """
    starting = asyncio.ensure_future(
        asyncio.get_running_loop().subprocess_exec(
            lambda: program, *command, cwd=folder, env=env, start_new_session=True, pass_fds=pass_fds
        )
    )
    try:
        transport, _ = await shielded(starting)
    except asyncio.CancelledError as error:
        if starting.cancelled() or starting.exception() is not None:
            raise
        return starting.result()[0], error
    return transport, None


class _Supervision:
    """One program with everything that it starts. On other systems than Linux, that is its process group."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._group, self._closed = folder, 0, False
        self.ends: tuple[int, ...] = ()
        """Descriptors for the supervisor."""
        if sys.platform == "linux":
            control, self._control = os.pipe()
            self._status, status = os.pipe()
            self.ends = (control, status)
            os.set_blocking(self._status, False)

    def command(self, command: list[str]) -> list[str]:
        """Return the command that runs a program under supervision."""
        return [*_SUPERVISOR, *map(str, self.ends), *command] if self.ends else command

    def begin(self, group: int) -> None:
        """The supervisor was started: it has its descriptors, and leads the process group `group`."""
        self._group = group
        for descriptor in self.ends:
            os.close(descriptor)

    def kill(self, *, show_stack: bool = False) -> None:
        """Kill the program with everything that it started. Does not wait. With `show_stack`, a Python program writes
        its stack to stderr first; on Linux only."""
        if not self.ends:
            _kill_group(self._group)
        elif self._control >= 0:
            with contextlib.suppress(BrokenPipeError):  # not only closed: a fork of this process may hold it open
                os.write(self._control, process_supervisor.SHOW_STACK if show_stack else b"k")
            os.close(self._control)
            self._control = -1

    def close(self, code: int | None = None) -> int | None:
        """Free everything, and return the program's exit status; `code` is the supervisor's, None if it still runs."""
        if self._closed:
            return code
        self._closed = True
        if not self._group:  # it was not started
            for descriptor in self.ends:
                os.close(descriptor)
        self.kill()
        if not self.ends or not self._group:
            if self.ends:
                os.close(self._status)
            return code
        with open(self._status, "rb", buffering=0) as file:
            numbers = [int(line) for line in (file.read() or b"").split()]
        if len(numbers) < 2:  # the program killed or stopped its supervisor
            _kill_orphans(self._folder, self._group if code is None else None)
            return -signal.SIGKILL
        return numbers[1]


_SUPERVISOR = [sys.executable, "-I", "-S", process_supervisor.__file__]


def _kill_orphans(folder: Path, supervisor: int | None) -> None:
    """Kill what is left of a program that stopped or killed its supervisor: all processes below a `supervisor` that
    still exists, and those with the execution's folder in their environment or as their working folder."""
    for _ in range(_ROUNDS):
        were_any = supervisor is not None and process_supervisor.kill_descendants(supervisor)
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                place = os.readlink(f"/proc/{name}/cwd")
                here = place == str(folder) or place.startswith(f"{folder}/")
                if here or f"={folder}\0".encode() in Path(f"/proc/{name}/environ").read_bytes():
                    os.kill(int(name), signal.SIGKILL)
                    were_any = True
        if not were_any:
            break
    if supervisor is not None:
        _kill_group(supervisor)


_ROUNDS = 20
"""Most looks for processes that are left: each may have started others meanwhile."""


def _ending(code: int | None, timed_out: bool, flooded: bool) -> tuple[ExecutionStatus, int | None]:
    if timed_out:
        return ExecutionStatus.TIMEOUT, None
    if flooded:
        return ExecutionStatus.OUTPUT_LIMIT, None
    if code is None or code < 0:
        return ExecutionStatus.KILLED, code
    return ExecutionStatus.OK if code == 0 else ExecutionStatus.ERROR, code


class _Program(asyncio.SubprocessProtocol):
    """Collects the output and the end of one process.

    `asyncio.Process.wait` also waits for the pipes, which a grandchild may hold open.
    """

    def __init__(self, out: Capture, err: Capture) -> None:
        loop = asyncio.get_running_loop()
        self.out, self.err = out, err
        self.exited: asyncio.Future[None] = loop.create_future()
        self.flooded: asyncio.Future[None] = loop.create_future()
        self._drained: asyncio.Future[None] = loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        capture = self.out if fd == 1 else self.err
        capture.add(data)
        if capture.flooded and not self.flooded.done():
            self.flooded.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._drained.done():
            self._drained.set_result(None)

    async def settle(self) -> None:
        """Wait until the killed process is reaped and its pipes are read, unless another process holds them open."""
        await asyncio.wait({self.exited}, timeout=KILL_GRACE)
        await asyncio.wait({self._drained}, timeout=DRAIN_GRACE)


def _feed(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    """Write standard input and close it; the program need not read it."""
    stream = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))  # uvloop's is one without deriving from it
    if data:
        stream.write(data)
    stream.close()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _place_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _fetch_files(folder: Path, names: Sequence[str], left_out: list[str]) -> dict[str, bytes]:
    """Read regular files below the folder; `left_out` gets the reason against each other one that exists."""
    files = {}
    root = folder.resolve()
    for name in names:
        path = folder / name
        if not path.is_symlink() and path.is_file() and path.resolve().is_relative_to(root):
            files[name] = path.read_bytes()
        elif path.is_symlink() or path.exists():
            left_out.append(f"{name[:200]!r} is not a plain file, or is behind a link")
    return files


def _environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
    }
