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
from toolgym.tools.sandbox.local.host.cpu_slots import CpuSlot, CpuSlots
from toolgym.tools.sandbox.local.host.isolation import Level
from toolgym.tools.sandbox.local.protocol import messages
from toolgym.tools.sandbox.processes import MAX_INPUT, Command, Process, ProcessOutput, ProcessRequest, ProcessState

SLACK = 5.0
"""Seconds beyond a program's deadline until the broker has killed it or its session."""

NO_PROGRAM, NOT_EXECUTABLE = 127, 126
"""A shell's codes for an absent program, and for one that cannot be executed."""


class ProgramOwner(Protocol):
    """The part of a session that its programs need."""

    async def launch(self, request: messages.StartMessage) -> dict[str, Any]: ...

    async def request(self, request: messages.SessionMessage, *, slot: CpuSlot | None = None) -> dict[str, Any]: ...

    def send(self, request: messages.SessionMessage) -> None: ...


class Programs:
    """Starts the programs of one session."""

    def __init__(self, owner: ProgramOwner, level: Level, terminals: bool, cpu_slots: CpuSlots) -> None:
        self._owner, self._level, self._terminals, self._cpu_slots = owner, level, terminals, cpu_slots

    async def exec(self, command: Command, stdin: bytes, timeout: float) -> ExecResult:
        self._check(command)
        request = self._request(command, stdin[:MAX_INPUT], eof=len(stdin) <= MAX_INPUT, deadline=timeout)
        async with self._cpu_slots.permit() as slot:
            answer = await self._launch(request)
            if "pid" not in answer:
                return _not_started(command, answer)
            try:
                return await self._wait(request["process"], stdin[MAX_INPUT:], timeout, slot)
            except BaseException:
                _abandon(self._owner, request["process"])
                raise

    async def start(self, command: Command) -> LocalProcess:
        self._check(command)
        request = self._request(command, b"", eof=False, deadline=None)
        async with self._cpu_slots.permit():
            answer = await self._launch(request)
        if "pid" in answer:
            return LocalProcess(self._owner, request["process"], int(answer["pid"]))
        if not answer.get("alive"):
            raise SessionLostError(f"no program can be started: {answer.get('message') or answer['status']}")
        if "errno" in answer:
            number = int(answer["errno"])
            raise file_error(f"the program cannot be started: {_why_not(command, answer)[0]}", code=number)
        text = f"the program cannot be started: {answer.get('message') or answer['status']}"
        raise SandboxBusyError(text) if answer.get("busy") else SandboxError(text)

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

    def _request(self, command: Command, data: bytes, *, eof: bool, deadline: float | None) -> messages.StartMessage:
        return {
            "op": "start",
            "process": uuid.uuid4().hex,
            "argv": command.argv,
            "cwd": command.cwd,
            "env": command.env,
            "pty": command.pty,
            "deadline": deadline,
            "data": data,
            "eof": eof,
        }

    async def _launch(self, request: messages.StartMessage) -> dict[str, Any]:
        try:
            return await self._owner.launch(request)
        except asyncio.CancelledError:
            _abandon(self._owner, request["process"])  # it may run already
            raise

    async def _wait(self, name: str, stdin: bytes, timeout: float, slot: CpuSlot) -> ExecResult:
        """Feed a program that runs, and wait for its end. The broker kills it at its deadline."""
        until = time.monotonic() + timeout + SLACK
        for at in range(0, len(stdin), MAX_INPUT):
            request = _message(name, wait=max(0.0, until - time.monotonic()))
            request["until"] = "stdin"
            request["data"], request["eof"] = stdin[at : at + MAX_INPUT], at + MAX_INPUT >= len(stdin)
            answer = await self._owner.request(request, slot=slot)
            if not answer.get("running"):
                break
        last = _message(name, wait=max(0.0, until - time.monotonic()))
        last["until"], last["read"], last["forget"] = "exit", True, True
        answer = await self._owner.request(last, slot=slot)
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
    def __init__(self, owner: ProgramOwner, name: str, pid: int) -> None:
        super().__init__(pid)
        self._owner, self._name = owner, name

    async def _ask(self, request: ProcessRequest) -> ProcessState:
        message = _message(self._name, wait=request.wait)
        message["read"], message["eof"], message["forget"] = request.read, request.close_stdin, request.forget
        if request.data:
            message["data"] = request.data
        if request.size is not None:
            message["size"] = request.size
        if request.signal is not None:
            message["signal"] = request.signal
        if request.until is not None:
            message["until"] = request.until
        answer = await self._owner.request(message)
        if not answer.get("alive"):
            raise SessionLostError(f"the process ended with its session: {answer.get('message') or answer['status']}")
        if answer["status"] != "ok":
            raise SandboxError(f"the process is not known: {answer.get('message')}")
        code = answer.get("code")
        if not answer["running"] and code is None:
            code = -signal.SIGKILL
        return ProcessState(bool(answer["running"]), code, int(answer["unwritten"]), _output(answer))

    async def _end(self) -> None:
        _abandon(self._owner, self._name)


def _message(name: str, *, wait: float) -> messages.ProcessMessage:
    return {"op": "process", "process": name, "wait": wait, "timeout": wait}


def _abandon(owner: ProgramOwner, name: str) -> None:
    request = _message(name, wait=0.0)
    request["signal"], request["forget"] = int(signal.SIGKILL), True
    owner.send(request)


def _output(answer: dict[str, Any]) -> ProcessOutput:
    sizes = answer.get("sizes")
    if not sizes:
        return ProcessOutput()
    raw = answer.get("raw", b"")
    return ProcessOutput(raw[: sizes[0]], raw[sizes[0] :], *answer["truncated"])


def _why_not(command: Command, answer: dict[str, Any]) -> tuple[str, int]:
    """Return the reason of a program's failed start in a shell's words, and the shell's code for it."""
    number, program = int(answer["errno"]), command.argv if isinstance(command.argv, str) else command.argv[0]
    if answer.get("folder"):
        return f"{command.cwd}: {os.strerror(number)}", NOT_EXECUTABLE
    return f"{program}: {os.strerror(number)}", NO_PROGRAM if number == errno.ENOENT else NOT_EXECUTABLE


def _not_started(command: Command, answer: dict[str, Any]) -> ExecResult:
    """Make the result of `exec` for a program that was not started. Raises SandboxBusyError."""
    if answer.get("alive") and "errno" in answer:
        reason, code = _why_not(command, answer)
        text = f"{reason}\n"
        return ExecResult(ExecutionStatus.ERROR, stderr=text, return_code=code, stderr_bytes=text.encode())
    if answer.get("alive") and answer.get("busy"):
        raise SandboxBusyError(str(answer.get("message")))
    return ExecResult(ExecutionStatus(answer["status"]), message=str(answer.get("message", "")))
