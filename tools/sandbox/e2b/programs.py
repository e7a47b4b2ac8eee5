"""A program of a sandbox that any number of streams follow, and that goes on when they end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import posixpath
import re
import signal
from collections.abc import Mapping
from typing import Any

from toolgym.tools.errors import SandboxError, SandboxFileError
from toolgym.tools.sandbox.base import Session
from toolgym.tools.sandbox.e2b.connect import CutError, E2bRefusedError, Emit, section
from toolgym.tools.sandbox.e2b.file_agent import HOME
from toolgym.tools.sandbox.processes import Process, ProcessRequest, ProcessState, check_size

CHUNK = 32 * 1024
BEHIND = 256
"""Chunks that a stream may be behind before the program's output waits for it."""

LOOK = 20.0
"""Seconds that one question for output waits."""

SIGNALLED = 5.0
"""Most seconds that the answer to a kill waits for the program's end."""

_CUT = "\n[the middle of this output was dropped: it came faster than it was read]\n"

Event = Mapping[str, Any]


class E2bProgram:
    """A program and its followers. `config`, `tag` are as its client gave them."""

    def __init__(self, process: Process, config: Mapping[str, Any], tag: str | None, *, pty: bool, stdin: bool) -> None:
        self.config, self.tag, self.pid = config, tag, process.pid
        self.end: Event | None = None
        self._process, self._pty, self._stdin = process, pty, stdin
        self._queues: list[asyncio.Queue[Event | None]] = []
        self._pump: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, session: Session, message: Mapping[str, Any], env: Mapping[str, str]) -> E2bProgram:
        """Start what a request says. Raises E2bRefusedError, and else as `Session.start`."""
        config = section(message, "process")
        if not isinstance(config.get("cmd"), str):
            raise E2bRefusedError("invalid_argument", "process.cmd should be the program to start")
        pty = size_of(message) if "pty" in message else None
        cwd = posixpath.join(HOME, re.sub(r"^~(?=/|$)", HOME, str(config.get("cwd") or HOME)))
        argv = [config["cmd"], *map(str, config.get("args") or ())]
        try:
            process = await session.start(argv, cwd=cwd, env={**env, **section(config, "envs")}, pty=pty)
        except SandboxFileError as error:
            raise E2bRefusedError("invalid_argument", _why(error, cwd, config.get("cwd"))) from None
        stdin = message.get("stdin", True) is not False
        if pty is None and not stdin:
            await process.close_stdin()
        return cls(process, config, message.get("tag"), pty=pty is not None, stdin=stdin)

    async def follow(self, emit: Emit, *, begins: bool = False, seconds: float | None = None) -> None:
        """Emit the events from now on: its start, its output and its end.

        The first follower `begins` to read its output, and has it killed after so many seconds. Raises CutError if the
        sandbox ends.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue(BEHIND)
        self._queues.append(queue)
        if begins:
            self._pump = asyncio.create_task(self._read(seconds))
        try:
            await emit({"event": {"start": {"pid": self.pid}}})
            while (self._reads or not queue.empty()) and (event := await queue.get()) is not None:
                await emit({"event": event})
        finally:
            self._queues.remove(queue)
            while not queue.empty():  # the reader may wait for a place in it
                queue.get_nowait()
        if self.end is None:
            raise CutError("the sandbox ended")
        await emit({"event": self.end})

    async def write(self, data: bytes, *, pty: bool, timeout: float) -> None:
        self._check_running()
        if pty is not self._pty or not (pty or self._stdin):
            what = "terminal" if pty else "standard input"
            raise E2bRefusedError(
                "failed_precondition", f"the process {self.pid} has no {what} to write to, or no more"
            )
        await self._process.write_stdin(data, timeout=timeout)

    async def close_stdin(self) -> None:
        self._check_running()
        self._stdin = False
        await self._process.close_stdin()

    async def resize(self, rows: int, cols: int) -> None:
        self._check_running()
        await self._process.resize(rows, cols)

    async def signal(self, number: int, *, wait: bool = False) -> None:
        """Send a signal to it and its group; with `wait`, return when it has ended."""
        self._check_running()
        await self._process.kill(number)
        if wait and self._pump is not None:
            await asyncio.wait({self._pump}, timeout=SIGNALLED)

    async def close(self) -> None:
        """End it. Its followers' connections are cut by the sandbox."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        with contextlib.suppress(SandboxError):
            await self._process.close()

    @property
    def _reads(self) -> bool:
        return self._pump is not None and not self._pump.done()

    def _check_running(self) -> None:
        if self.end is not None:
            raise E2bRefusedError("not_found", f"process with pid {self.pid} not found")

    async def _read(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        until = float("inf") if seconds is None else loop.time() + seconds
        try:
            running = True
            while running:
                left = until - loop.time()
                if left <= 0:
                    until = float("inf")
                    await self._process.kill(signal.SIGKILL)
                    continue
                state = await self._process.ask(ProcessRequest(until="output", wait=min(LOOK, left), read=True))
                await self._pass_on(state)
                running = state.running
            self.end = {"end": _end(state.code)}
            await self._process.close()
        except SandboxError:
            pass
        finally:
            for queue in self._queues:
                with contextlib.suppress(asyncio.QueueFull):  # then it is read before the end is looked at
                    queue.put_nowait(None)

    async def _pass_on(self, state: ProcessState) -> None:
        output = state.output
        parts = [("pty" if self._pty else "stdout", output.stdout), ("stderr", output.stderr)]
        if output.stdout_truncated or output.stderr_truncated:
            parts.append(("pty" if self._pty else "stderr", _CUT.encode()))
        for name, data in parts:
            for at in range(0, len(data), CHUNK):
                text = base64.b64encode(data[at : at + CHUNK]).decode()
                for queue in list(self._queues):
                    await queue.put({"data": {name: text}})


def size_of(message: Mapping[str, Any]) -> tuple[int, int]:
    """Return rows and columns of the terminal of a message. Raises OptionError if they cannot be."""
    size = section(section(message, "pty"), "size")
    return check_size((size.get("rows", 24), size.get("cols", 80)))


def _end(code: int | None) -> Event:
    number = -9 if code is None else code
    if number < 0:
        status = f"signal: {(signal.strsignal(-number) or str(-number)).lower()}"
        return {"exitCode": -1, "exited": False, "status": status, "error": status}
    status = f"exit status {number}"
    return {"exitCode": number, "exited": True, "status": status} | ({"error": status} if number else {})


def _why(error: SandboxFileError, cwd: str, asked: object) -> str:
    return f"cwd '{asked}' does not exist" if f"{cwd}: " in str(error) else str(error)
