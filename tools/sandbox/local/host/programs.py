"""The programs of a local session: starting them, waiting for them, and the handle of one in the background."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
import uuid
from typing import Any, Protocol

from toolgym.tools.errors import SandboxBusyError, SandboxError, SandboxUnsupportedError, SessionLostError
from toolgym.tools.sandbox.base import ExecResult, ExecutionStatus
from toolgym.tools.sandbox.files import file_error
from toolgym.tools.sandbox.local.host.isolation import Level
from toolgym.tools.sandbox.local.host.places import Place, Places
from toolgym.tools.sandbox.local.host.template_process import GRACE
from toolgym.tools.sandbox.local.protocol import messages
from toolgym.tools.sandbox.processes import MAX_INPUT, Command, Process, ProcessOutput, ProcessRequest, ProcessState

START = 30.0
"""Seconds that starting a program may take."""

SLACK = 5.0
"""Seconds beyond a program's deadline until the broker has killed it, or its session."""

NO_PROGRAM, NOT_EXECUTABLE = 127, 126
"""A shell's codes for a program that is not there, and for one that cannot be executed."""


class ProgramOwner(Protocol):
    """What the programs of a session need of it."""

    @property
    def id(self) -> str:
        """The session's name."""

    async def launch(self, request: messages.StartRequest) -> dict[str, Any]:
        """Return the broker's answer to starting a program."""

    async def request(
        self, request: messages.SessionRequest, patience: float, *, place: Place | None = None
    ) -> dict[str, Any]:
        """Return the broker's answer to a request."""

    def send(self, request: messages.SessionRequest) -> None:
        """Send a request without waiting for its answer."""


class Programs:
    """Starts the programs of one session.

    Args:
        owner: the session.
        level: its isolation level.
        terminals: whether programs can have a terminal.
        places: admits what runs.
    """

    def __init__(self, owner: ProgramOwner, level: Level, terminals: bool, places: Places) -> None:
        self._owner, self._level, self._terminals, self._places = owner, level, terminals, places

    async def exec(self, command: Command, stdin: bytes, timeout: float) -> ExecResult:
        """See `Session.exec`."""
        self._check(command)
        async with self._places.permit() as place:
            return await self._exec(command, stdin, timeout, place)

    async def start(self, command: Command) -> LocalProcess:
        """See `Session.start`."""
        self._check(command)
        request = self._request(command, b"", eof=False, deadline=None)
        async with self._places.permit():
            answer = await self._launch(request)
        if "pid" in answer:
            return LocalProcess(self._owner, request["process"], int(answer["pid"]))
        if not answer.get("alive"):
            raise SessionLostError(f"no program can be started: {answer.get('message') or answer['status']}")
        raise _start_error(command, answer)

    def _check(self, command: Command) -> None:
        if self._level is Level.LANDLOCK:
            raise SandboxUnsupportedError(
                "sessions at the level 'landlock' cannot start programs: nothing there would keep these apart"
            )
        if command.user not in (None, "user"):
            raise SandboxUnsupportedError(
                f"programs of a session run as its only user, 'user'; there is no {command.user!r}"
            )
        if command.pty is not None and not self._terminals:
            raise SandboxUnsupportedError(
                f"programs cannot have a terminal here (level {self._level.value!r}); see `Isolation.missing`"
            )

    def _request(self, command: Command, data: bytes, *, eof: bool, deadline: float | None) -> messages.StartRequest:
        return {
            "op": "start",
            "session": self._owner.id,
            "process": uuid.uuid4().hex,
            "argv": command.argv,
            "cwd": command.cwd,
            "env": dict(command.env),
            "pty": command.pty,
            "deadline": deadline,
            "data": data,
            "eof": eof,
            "timeout": START,
        }

    async def _launch(self, request: messages.StartRequest) -> dict[str, Any]:
        try:
            return await self._owner.launch(request)
        except asyncio.CancelledError:
            _abandon(self._owner, request["process"])  # it may run already
            raise

    async def _exec(self, command: Command, stdin: bytes, timeout: float, place: Place) -> ExecResult:
        request = self._request(command, stdin[:MAX_INPUT], eof=len(stdin) <= MAX_INPUT, deadline=timeout)
        answer = await self._launch(request)
        if "pid" not in answer:
            if answer.get("alive") and "errno" in answer:
                said, code = _why_not(command, answer)
                text = f"{said}\n"
                return ExecResult(ExecutionStatus.ERROR, stderr=text, return_code=code, stderr_bytes=text.encode())
            if answer.get("alive") and answer.get("busy"):
                raise SandboxBusyError(str(answer.get("message")))
            status = ExecutionStatus(answer["status"])
            return ExecResult(status, message=str(answer.get("message", "")))
        try:
            return await self._wait(request["process"], stdin[MAX_INPUT:], timeout, place)
        except BaseException:
            _abandon(self._owner, request["process"])
            raise

    async def _wait(self, name: str, stdin: bytes, timeout: float, place: Place) -> ExecResult:
        """Feed a program that runs, and wait for its end. The broker kills it at its deadline."""
        until = time.monotonic() + timeout + SLACK
        for at in range(0, len(stdin), MAX_INPUT):
            part = stdin[at : at + MAX_INPUT]
            request: messages.ProcessRequest = {
                "op": "process",
                "session": self._owner.id,
                "process": name,
                "data": part,
                "eof": at + MAX_INPUT >= len(stdin),
                "until": "stdin",
                "wait": max(0.0, until - time.monotonic()),
                "timeout": START,
            }
            answer = await self._owner.request(request, request["wait"] + GRACE, place=place)
            if not answer.get("running"):
                break
        last: messages.ProcessRequest = {
            "op": "process",
            "session": self._owner.id,
            "process": name,
            "until": "exit",
            "wait": max(0.0, until - time.monotonic()),
            "read": True,
            "forget": True,
            "timeout": START,
        }
        answer = await self._owner.request(last, last["wait"] + GRACE, place=place)
        output = _output(answer)
        why, code = answer.get("why"), answer.get("code")
        if answer["status"] != "ok":
            status = ExecutionStatus(answer["status"])
        elif why is not None:
            status, code = ExecutionStatus(why), None if why != "killed" else -signal.SIGKILL
        elif code == 0:
            status = ExecutionStatus.OK
        else:
            status = ExecutionStatus.KILLED if code is not None and code < 0 else ExecutionStatus.ERROR
        return ExecResult(
            status=status,
            stdout=output.stdout.decode("utf-8", "replace"),
            stderr=output.stderr.decode("utf-8", "replace"),
            return_code=code if answer["status"] == "ok" else None,
            duration=float(answer.get("duration", 0.0)),
            stdout_truncated=output.stdout_truncated,
            stderr_truncated=output.stderr_truncated,
            message=str(answer.get("message", "")),
            stdout_bytes=output.stdout,
            stderr_bytes=output.stderr,
        )


class LocalProcess(Process):
    """A program in the background of a `LocalSession`."""

    def __init__(self, owner: ProgramOwner, name: str, pid: int) -> None:
        self._owner, self._name, self._pid = owner, name, pid
        self._closed = False

    @property
    def pid(self) -> int:
        return self._pid

    async def ask(self, request: ProcessRequest) -> ProcessState:
        if self._closed:
            raise SandboxError("the handle of the process is closed")
        message: messages.ProcessRequest = {
            "op": "process",
            "session": self._owner.id,
            "process": self._name,
            "wait": request.wait,
            "read": request.read,
            "eof": request.close_stdin,
            "forget": request.forget,
            "timeout": START,
        }
        if request.data:
            message["data"] = request.data
        if request.size is not None:
            message["size"] = request.size
        if request.signal is not None:
            message["signal"] = request.signal
        if request.until is not None:
            message["until"] = request.until
        answer = await self._owner.request(message, request.wait + GRACE)
        if not answer.get("alive"):
            raise SessionLostError(f"the process ended with its session: {answer.get('message') or answer['status']}")
        if answer["status"] != "ok":
            raise SandboxError(f"the process is not known: {answer.get('message')}")
        code = answer.get("code")
        if not answer["running"] and code is None:
            code = -signal.SIGKILL
        return ProcessState(bool(answer["running"]), code, int(answer["unwritten"]), _output(answer))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            _abandon(self._owner, self._name)


def _abandon(owner: ProgramOwner, name: str) -> None:
    """Have a program killed and forgotten."""
    request: messages.ProcessRequest = {
        "op": "process",
        "session": owner.id,
        "process": name,
        "signal": int(signal.SIGKILL),
        "forget": True,
        "timeout": START,
    }
    owner.send(request)


def _output(answer: dict[str, Any]) -> ProcessOutput:
    sizes = answer.get("sizes")
    if not sizes:
        return ProcessOutput()
    raw = answer.get("raw", b"")
    return ProcessOutput(raw[: sizes[0]], raw[sizes[0] :], *answer["truncated"])


def _why_not(command: Command, answer: dict[str, Any]) -> tuple[str, int]:
    """Return why a program could not be started, as a shell says it, and the shell's code for that."""
    number, program = int(answer["errno"]), command.argv if isinstance(command.argv, str) else command.argv[0]
    if answer.get("folder"):
        return f"{command.cwd}: {os.strerror(number)}", NOT_EXECUTABLE
    return f"{program}: {os.strerror(number)}", NO_PROGRAM if number == errno.ENOENT else NOT_EXECUTABLE


def _start_error(command: Command, answer: dict[str, Any]) -> SandboxError:
    if "errno" in answer:
        return file_error(f"the program cannot be started: {_why_not(command, answer)[0]}", code=int(answer["errno"]))
    text = f"the program cannot be started: {answer.get('message') or answer['status']}"
    return SandboxBusyError(text) if answer.get("busy") else SandboxError(text)
