"""`ProcessSandbox`: every execution is a fresh process.

What it does: own temporary folder, own process group, clean environment variables, capped output, the whole group
killed at the deadline, on cancellation and when the program ends.

What it does **not** do: it isolates nothing else. The program runs as the user who runs toolgym, can read that
user's files and reach the network, may use all memory, and a grandchild that starts a session of its own survives
the kill. Run code that you do not trust in a container, or on a remote sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from toolgym.tools.errors import ConfigError, nearest
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox

KILL_GRACE = 5.0
"""Seconds to wait for killed processes to be reaped and for their pipes to close."""

FLOOD_FACTOR = 64
"""A stream may carry this many times its cap before the program is killed for it."""

_COMMANDS = {
    "python": ("main.py", [sys.executable, "-s", "-u", "main.py"]),
    "bash": ("main.sh", ["bash", "main.sh"]),
}


class ProcessSandbox(Sandbox):
    """Runs each program in a fresh process of its own. See the module for what that protects against, and what not.

    Args:
        max_output_bytes: cap for each of stdout and stderr; the middle of a longer stream is dropped.
    """

    def __init__(self, *, max_output_bytes: int = 64 * 1024) -> None:
        if max_output_bytes < 2:
            raise ConfigError(f"max_output_bytes must be at least 2, got {max_output_bytes!r}")
        self.max_output_bytes = max_output_bytes
        self._groups: set[int] = set()

    @property
    def process_ids(self) -> frozenset[int]:
        """Ids of the processes that run right now (each leads its own process group)."""
        return frozenset(self._groups)

    async def run(
        self, code: str, *, timeout: float = 30.0, language: str = "python", stdin: str = ""
    ) -> ExecutionResult:
        if not timeout > 0:
            raise ConfigError(f"timeout must be a positive number of seconds, got {timeout!r}")
        if language not in _COMMANDS:
            raise ConfigError(
                f"unknown language {language!r}{nearest(language, _COMMANDS)} Known: {', '.join(_COMMANDS)}."
            )
        file_name, command = _COMMANDS[language]
        try:
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="toolgym-"))
        except OSError as error:
            return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=f"cannot make a folder to run in: {error}")
        try:
            # A lone surrogate cannot be written as UTF-8; the interpreter then reports it as it would any bad source.
            source = code.encode("utf-8", errors="surrogatepass")
            await asyncio.to_thread((folder / file_name).write_bytes, source)
            return await self._run(command, folder, stdin.encode("utf-8", errors="replace"), timeout)
        except OSError as error:
            return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=f"cannot start the program: {error}")
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))

    async def close(self) -> None:
        for group in tuple(self._groups):
            _kill_group(group)

    async def _run(self, command: list[str], folder: Path, stdin: bytes, timeout: float) -> ExecutionResult:
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=_environment(folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._groups.add(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = _Capture(self.max_output_bytes), _Capture(self.max_output_bytes)
        readers = [
            asyncio.create_task(out.read(process.stdout, lambda: _kill_group(process.pid))),
            asyncio.create_task(err.read(process.stderr, lambda: _kill_group(process.pid))),
        ]
        feeder = asyncio.create_task(_feed(process.stdin, stdin))
        timed_out = False
        try:
            try:
                async with asyncio.timeout(timeout):
                    await process.wait()
            except TimeoutError:
                timed_out = True
        finally:
            # Whatever happened, cancellation included: nothing of the group may survive, and every task is awaited.
            _kill_group(process.pid)
            feeder.cancel()
            await asyncio.shield(_settle(process, [*readers, feeder]))
            self._groups.discard(process.pid)
        duration = time.monotonic() - started
        return_code = process.returncode
        flooded = out.flooded or err.flooded
        if timed_out:
            status, return_code = ExecutionStatus.TIMEOUT, None
        elif flooded:
            status, return_code = ExecutionStatus.OUTPUT_LIMIT, None
        elif return_code is not None and return_code < 0:
            status = ExecutionStatus.KILLED
        else:
            status = ExecutionStatus.OK if return_code == 0 else ExecutionStatus.ERROR
        return ExecutionResult(
            status=status,
            stdout=out.text().replace(f"{folder}/", ""),  # the folder's random name is noise to a model
            stderr=err.text().replace(f"{folder}/", ""),
            return_code=return_code,
            duration=duration,
            stdout_truncated=out.truncated,
            stderr_truncated=err.truncated,
        )


class _Capture:
    """Keeps the head and the tail of a stream within a cap, and drains the rest."""

    def __init__(self, cap: int) -> None:
        self._half = cap // 2
        self._cap = cap
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self.flooded = False

    @property
    def truncated(self) -> bool:
        return self.total > len(self._head) + len(self._tail)

    async def read(self, stream: asyncio.StreamReader, on_flood: object) -> None:
        assert callable(on_flood)
        while chunk := await stream.read(65536):
            self.total += len(chunk)
            room = self._half - len(self._head)
            if room > 0:
                self._head += chunk[:room]
                chunk = chunk[room:]
            self._tail += chunk
            excess = len(self._tail) - (self._cap - self._half)
            if excess > 0:
                del self._tail[:excess]
            if self.total > self._cap * FLOOD_FACTOR and not self.flooded:
                self.flooded = True
                on_flood()

    def text(self) -> str:
        if not self.truncated:
            return bytes(self._head + self._tail).decode("utf-8", errors="replace")
        dropped = self.total - len(self._head) - len(self._tail)
        head = self._head.decode("utf-8", errors="replace")
        tail = self._tail.decode("utf-8", errors="replace")
        return f"{head}\n... [{dropped} bytes cut] ...\n{tail}"


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
    """Write standard input and close it. A program that does not read is no error."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await stream.wait_closed()


async def _settle(process: asyncio.subprocess.Process, tasks: list[asyncio.Task[None]]) -> None:
    """Wait until the process is reaped and its pipes are read to the end; give up on pipes held open elsewhere."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_GRACE):
            await process.wait()
    _, pending = await asyncio.wait(tasks, timeout=KILL_GRACE)
    for task in pending:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _environment(folder: Path) -> dict[str, str]:
    """Environment variables of the program: nothing of the host's but the search path."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "Agg",
    }
