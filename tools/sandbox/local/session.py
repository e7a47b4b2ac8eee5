"""`LocalSession`: an interpreter of the local sandbox that keeps its state."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox.base import CellError, CellResult, ExecutionResult, ExecutionStatus, Session
from toolgym.tools.sandbox.local import answers
from toolgym.tools.sandbox.local.supervisor import GRACE, Supervisor, TemplateLost
from toolgym.tools.sandbox.names import check_name, positive

if TYPE_CHECKING:
    from toolgym.tools.sandbox.local.sandbox import LocalSandbox

AT_ONCE = 4 * 1024 * 1024
"""Bytes of a file that are read or written in one step: other sessions have their turn in between."""

MAX_CODE = 1 << 31
"""Beyond this no number is the code of a process that ended."""

_LIMITS_TOLD = ("memory_limit", "file_limit", "disk_limit")

START_SESSION = 30.0
"""Seconds that opening or forking a session may take."""


class LocalSession(Session):
    """A session of a `LocalSandbox`. Made by `LocalSandbox.session`."""

    def __init__(self, sandbox: LocalSandbox, template: Supervisor, name: str) -> None:
        self._sandbox, self._template, self._id = sandbox, template, name
        self._alive = True
        self._lock = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._id

    @property
    def alive(self) -> bool:
        return self._alive and self._template.alive

    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        answer = await self._ask({"op": "cell", "code": code, "timeout": positive("timeout", timeout)}, timeout)
        cell = answer.get("answer") or {}
        error = _cell_error(cell.get("error"))
        status = ExecutionStatus(answer["status"])
        if status is ExecutionStatus.OK and (error is not None or "failed" in cell):
            limit = cell.get("why")
            status = ExecutionStatus(limit) if limit in _LIMITS_TOLD else ExecutionStatus.ERROR
        result = cell.get("result")
        display = cell.get("display")
        return CellResult(
            status=status,
            stdout=answer.get("stdout", ""),
            stderr=answer.get("stderr", ""),
            result=_valid(result) if isinstance(result, str) else None,
            display=tuple(one for one in display if isinstance(one, dict)) if isinstance(display, list) else (),
            error=error,
            duration=float(answer.get("duration", 0.0)),
            alive=self.alive,
            stdout_truncated=bool(answer.get("stdout_truncated")),
            stderr_truncated=bool(answer.get("stderr_truncated")),
            message=str(answer.get("message", "")),
        )

    async def exec(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: str = "") -> ExecutionResult:
        if not argv or not all(isinstance(word, str) for word in argv):
            raise ConfigError(f"argv must be a list of words, got {argv!r}")
        request = {"op": "exec", "argv": list(argv), "stdin": stdin, "timeout": positive("timeout", timeout)}
        answer = await self._ask(request, timeout)
        inner = answer.get("answer") or {}
        said = inner.get("status")
        code = said if type(said) is int and abs(said) < MAX_CODE else None
        status = ExecutionStatus(answer["status"])
        if status is ExecutionStatus.OK and code != 0:
            status = ExecutionStatus.KILLED if code is not None and code < 0 else ExecutionStatus.ERROR
        return ExecutionResult(
            status=status,
            stdout=answer.get("stdout", ""),
            stderr=answer.get("stderr", ""),
            return_code=code,
            duration=float(answer.get("duration", 0.0)),
            stdout_truncated=bool(answer.get("stdout_truncated")),
            stderr_truncated=bool(answer.get("stderr_truncated")),
            message=str(answer.get("message", "")),
        )

    async def write_file(self, name: str, data: bytes) -> None:
        check_name(name)
        async with self._lock:
            for at in range(0, max(len(data), 1), AT_ONCE):
                encoded = base64.b64encode(data[at : at + AT_ONCE]).decode()
                answer = await self._ask_next({"op": "write", "name": name, "at": at, "data": encoded}, START_SESSION)
                failed = (answer.get("answer") or {}).get("failed")
                failed = failed or (None if answer["status"] == "ok" else answer.get("message") or answer["status"])
                if failed:
                    raise SandboxError(f"the file {name!r} cannot be written in the session: {_valid(str(failed))}")

    async def read_file(self, name: str) -> bytes:
        """See `Session.read_file`.

        Raises:
            FileNotFoundError: there is no such file.
            SandboxError: it cannot be read, or is larger than a file may be here (`Limits.file_mb`).
        """
        check_name(name)
        most = int(self._sandbox.limits.file_mb * (1 << 20))
        parts: list[bytes] = []
        size = 0
        async with self._lock:
            while True:
                answer = await self._ask_next({"op": "read", "name": name, "at": size, "most": AT_ONCE}, START_SESSION)
                inner = answer.get("answer") or {}
                data = inner.get("data")
                if inner.get("absent"):
                    raise FileNotFoundError(f"the session has no file {name!r}")
                if not isinstance(data, bytes):
                    why = _valid(str(inner.get("failed") or answer.get("message") or answer["status"]))
                    raise SandboxError(f"the file {name!r} cannot be read in the session: {why}")
                parts.append(data)
                size += len(data)
                if size > most:  # no file, but a device, or an invention
                    raise SandboxError(f"the file {name!r} in the session has more than the {most} bytes allowed")
                if len(data) < AT_ONCE:
                    return b"".join(parts)

    async def upload(self, files: Mapping[str, bytes]) -> None:
        """Write several files."""
        for name, data in files.items():
            await self.write_file(name, data)

    async def fork(self) -> LocalSession:
        """See `Session.fork`. The fork gets copies of /tmp and /dev/shm, as they are now, in a file system of its own.

        What is open or mapped of these is the copy's then, in the state that it had; so are shared memory, pipes, and
        the event loop with its tasks. The generators of `random` and `numpy.random` are seeded anew, others go along.
        What does not: threads (a pool of them that was used before takes no more work), timers of `setitimer`, locks
        on files, and programs, whose pipes are closed in the fork. Sockets are shared. What is no file, folder or link
        there, or may not be read, is left out.

        Neither sees the other's processes nor can signal them; a thread or program that the session had started before
        the fork may still signal the fork, and takes no signals from either afterwards. The kernel (with Landlock's ABI
        6 or later) allows about fifteen such partings in the past of one session, and what would need more is refused:
        each fork is one for itself, and all forks made between two cells of their origin are one for that.

        They share the limits of memory and processes.

        Raises:
            SandboxError: the session is gone, its level cannot fork, there are too many forks in its past, or what runs
                in it kept the fork from coming about. Its words begin with the status: `sandbox_error` where the
                sandbox itself failed.
        """
        into = uuid.uuid4().hex
        try:
            answer = await self._ask({"op": "fork", "into": into}, START_SESSION)
        except asyncio.CancelledError:
            self._template.tell({"op": "close", "session": into})  # it may be there already
            raise
        if answer["status"] != "ok":
            why = f"{answer['status']}: {_valid(str(answer.get('message', '')))}".removesuffix(": ")
            raise SandboxError(f"the session cannot be forked: {why}")
        return self._sandbox._adopt(LocalSession(self._sandbox, self._template, into))

    async def snapshot(self) -> LocalSession:
        """A fork that is kept as it is: fork it again to go on from here."""
        return await self.fork()

    async def close(self) -> None:
        if self._alive:
            self._end()
            self._sandbox._forget(self)
            if self._template.alive:
                try:
                    await self._template.request({"op": "close", "session": self._id}, patience=GRACE)
                except TemplateLost:
                    return

    def _end(self) -> None:
        self._alive = False

    async def _ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        async with self._lock:
            return await self._ask_next(message, timeout)

    async def _ask_next(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Ask while nobody else does. What the session itself said is under `answer`."""
        gone = {"status": "sandbox_error", "alive": False, "message": "the session is gone"}
        if not self.alive:
            return gone
        message = {"timeout": timeout, **message, "session": self._id}
        try:
            if message["op"] in ("cell", "exec"):
                async with self._sandbox._limiter.permit():
                    answer = await self._template.request(message, patience=timeout + GRACE, settle=GRACE)
            else:
                answer = await self._template.request(message, patience=timeout + GRACE, settle=GRACE)
        except TemplateLost:
            answer = {**gone, "message": "the template process of the session was lost"}
        if answer.get("answered"):
            try:
                answer["answer"] = answers.unpack(answer.pop("raw", b""))
            except (ValueError, RecursionError):
                # Whoever wrote that is the program, pretending to be us.
                self._template.tell({"op": "close", "session": self._id})
                answer = {**answer, "status": "killed", "alive": False}
        if not answer.get("alive"):
            self._alive = False
            self._sandbox._forget(self)
        return answer


def _cell_error(value: object) -> CellError | None:
    """Read what a session says went wrong. It comes from the program's process, so every part is checked."""
    if not isinstance(value, dict):
        return None
    lines = value.get("traceback")
    kept = tuple(_valid(str(line)) for line in lines) if isinstance(lines, list) else ()
    return CellError(_valid(str(value.get("name", ""))), _valid(str(value.get("value", ""))), kept)


def _valid(text: str) -> str:
    """Text that UTF-8 can hold: lone surrogates become their escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
