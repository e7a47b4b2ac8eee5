"""`LocalSandbox`: fast and isolated execution on this machine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.concurrency.rate_limit import LocalRateLimiter
from toolgym.tools.errors import ConfigError, SandboxUnavailableError
from toolgym.tools.sandbox.base import ExecutionResult, ExecutionStatus, Limits, Sandbox
from toolgym.tools.sandbox.local.host import languages, processors
from toolgym.tools.sandbox.local.host.isolation import Isolation, Level, choose
from toolgym.tools.sandbox.local.host.session import START_SESSION, LocalSession, OpenSessions
from toolgym.tools.sandbox.local.host.template_pool import (
    MOST_TEMPLATES,
    Network,
    TemplatePool,
    absolute,
    enterable,
)
from toolgym.tools.sandbox.local.host.template_process import GRACE, TemplateLostError
from toolgym.tools.sandbox.local.protocol import messages
from toolgym.tools.sandbox.options import RunRequest, SessionRequest

PRELOAD = ("numpy", "sympy", "pandas", "scipy")
"""What the full template loads, as far as it is installed."""

TRIES = 5
"""How often a run is sent when its template process is lost under it.

Where processes are killed at random, seven a second, one loss in thirty is followed by another one of the same run:
three tries were too few once in 30,000 executions."""


class LocalSandbox(Sandbox):
    """Runs code in confined children of template processes.

    A *template process* has the interpreter and the scientific libraries loaded, and forks a child for each call, which
    takes milliseconds. There is a bare template for code that needs no library and a full one for code that does; which
    one a program gets is decided by the names in it, and a wrong guess only costs the import. Templates that die are
    replaced, and what they were asked is asked again.

    Belongs to the event loop that uses it first. For several loops see `SharedSandbox`.

    Args:
        require: weakest isolation level that is acceptable, see `Level`; None takes what the machine offers.
        level: exactly this level.
        limits: what one execution or session may use.
        network: `off`; `loopback`, a network of its own inside; or `host`.
        preload: modules of the full template; those that are not installed are left out with a line in the log.
        python: interpreter to run programs with, for example that of another virtual environment: a path, or a name to
            look up in PATH. Default: this one.
        max_running: executions and cells at once; `"unlimited"`: no limit, for a caller that has one of its own.
            Default: four per processor.
        templates: most template processes of each kind; the next is started when all there are have `CROWDED` requests
            each, or `SESSIONS_EACH` times as many sessions. Default: one per two processors, and at most
            `MOST_TEMPLATES`.
        warm: children that each template keeps ready.

    Raises:
        SandboxUnavailableError: the machine cannot give the level.
        ConfigError: an argument is not known or out of range.
    """

    def __init__(
        self,
        *,
        require: str | None = None,
        level: str | None = None,
        limits: Limits | None = None,
        network: Network = "off",
        preload: Sequence[str] = PRELOAD,
        python: str | None = None,
        max_running: int | Literal["unlimited"] | None = None,
        templates: int | None = None,
        warm: int = 2,
    ) -> None:
        if network not in ("off", "loopback", "host"):
            raise ConfigError(f"network must be 'off', 'loopback' or 'host', got {network!r}")
        self.limits = limits or Limits()
        self._level = choose(require, level)
        if network == "loopback" and self._level is not Level.NAMESPACES:
            raise SandboxUnavailableError(
                f"network='loopback' needs the level 'namespaces', and this is {self._level.value!r}"
            )
        self._python = absolute(python) if python else sys.executable
        if self._level is Level.UID:
            self._level = enterable(self._python, level, require)
        cores = processors.available()
        self._limiter = None if max_running == "unlimited" else LocalRateLimiter(max_running or 4 * cores)
        self._templates = TemplatePool(
            level=self._level,
            network=network,
            limits=self.limits,
            python=self._python,
            preload=preload,
            count=templates or max(1, min(MOST_TEMPLATES, cores // 2)),
            warm=max(0, warm),
        )
        self._sessions = OpenSessions(self._limiter, int(self.limits.file_mb * (1 << 20)), self._level)

    @property
    def level(self) -> Level:
        """The isolation level in use."""
        return self._level

    @property
    def isolation(self) -> Isolation:
        """Exactly what is on. Known once a template has started; see `start`.

        Raises:
            SandboxUnavailableError: called before.
        """
        found = self._templates.isolation
        if found is None:
            raise SandboxUnavailableError(
                "the isolation is known once the sandbox has started; call `await sandbox.start()` first"
            )
        return found

    @property
    def template_ids(self) -> list[int]:
        """Process ids of the template processes that run."""
        return self._templates.process_ids

    @property
    def open_sessions(self) -> int:
        """How many sessions are open, checkpoints included."""
        return len(self._sessions)

    async def start(self, *, full: bool = False) -> None:
        """Start a bare template, so that the first call need not, and log the isolation level once.

        Args:
            full: start one with the preloaded modules as well.

        Raises:
            SandboxUnavailableError: it does not start.
        """
        await self._templates.start(full=full)

    async def execute(self, request: RunRequest) -> ExecutionResult:
        found = languages.find(request.language)
        memory = request.memory_mb if request.memory_mb is not None else self.limits.memory_mb
        message: messages.RunRequest = {
            "op": "run",
            "code": request.code,
            "timeout": request.timeout,
            "memory_mb": memory,
            "cpu_seconds": self.limits.cpu_seconds,
            "stdin": request.stdin,
            "files": _encode_files(request.files),
            "fetch": list(request.fetch_files),
            "env": dict(request.env),
        }
        patience = request.timeout + GRACE
        if found is not None:
            if not found.possible(self._level):
                raise ConfigError(
                    f"language {request.language!r} cannot run at the level {self._level.value!r}, which allows "
                    + ("no more than one process" if self._level is Level.LANDLOCK else "no look into /proc")
                )
            wanted = found.request(request.code, memory, self._level, processors.reported(self.limits))
            compile_timeout = request.compile_timeout or request.timeout
            environment = {**wanted["env"], **request.env}
            message = {**message, **wanted, "env": environment, "compile_timeout": compile_timeout}
            patience += compile_timeout
            if found.name == "pytest":
                message["argv"] = [self._python, "-m", "pytest", "-q", "-p", "no:cacheprovider", found.source]
        async with self._limiter.permit() if self._limiter else contextlib.nullcontext():
            for _ in range(TRIES):
                choosing = self._templates.for_code(request.code) if found is None else self._templates.bare()
                template = await choosing
                try:
                    answer = await template.request(message, patience=patience)
                except TemplateLostError:
                    continue
                return _execution_result(answer)
        return ExecutionResult(
            ExecutionStatus.SANDBOX_ERROR, message=f"the template process was lost {TRIES} times while running this"
        )

    async def open_session(self, request: SessionRequest) -> LocalSession:
        """See `Sandbox.open_session`. With `hint`, code that names no preloaded module gets a bare template, sooner."""
        name = uuid.uuid4().hex
        message: messages.OpenRequest = {
            "op": "open",
            "session": name,
            "files": _encode_files(request.files),
            "env": dict(request.env),
            "memory_mb": request.memory_mb if request.memory_mb is not None else self.limits.memory_mb,
            "timeout": START_SESSION,
        }
        why = ""
        for _ in range(TRIES):
            hint = request.hint
            template = await (self._templates.full() if hint is None else self._templates.for_code(hint))
            try:
                answer = await template.request(message, patience=START_SESSION + GRACE)
            except TemplateLostError:
                why = "the template process was lost"
                continue
            except asyncio.CancelledError:
                template.send(messages.CloseRequest(op="close", session=name))  # it may have been open already
                raise
            if answer["status"] == "ok":
                return self._sessions.add(template, name)
            why = answer.get("message") or answer["status"]
        raise SandboxUnavailableError(f"a session cannot be opened: {why}")

    async def close(self) -> None:
        self._sessions.end_all()
        await shielded(self._templates.close())  # half closed, it would leave processes unreaped and folders behind


def _encode_files(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


def _fetched(found: Sequence[tuple[str, int]], data: bytes) -> dict[str, bytes]:
    """Return files by name, from their sizes and their contents one after another."""
    files, at = {}, 0
    for name, size in found:
        files[name] = data[at : at + size]
        at += size
    return files


def _execution_result(answer: Mapping[str, Any]) -> ExecutionResult:
    status = ExecutionStatus(answer["status"])
    code = answer.get("code")
    ended_itself = status in (ExecutionStatus.OK, ExecutionStatus.ERROR, ExecutionStatus.KILLED)
    compiled = answer.get("compiled")
    compilation = None
    if compiled is not None:
        good = compiled["status"] == 0
        compilation = ExecutionResult(
            status=ExecutionStatus.OK if good else ExecutionStatus.ERROR,
            stdout=compiled["stdout"],
            stderr=compiled["stderr"],
            return_code=compiled["status"],
            duration=compiled["duration"],
            stdout_truncated=compiled["stdout_truncated"],
            stderr_truncated=compiled["stderr_truncated"],
        )
    if status is ExecutionStatus.COMPILE_ERROR and compilation is not None:
        return ExecutionResult(
            status=status,
            stdout=compilation.stdout,
            stderr=compilation.stderr,
            return_code=compilation.return_code,
            duration=compilation.duration,
            compile=compilation,
        )
    return ExecutionResult(
        status=status,
        stdout=answer.get("stdout", ""),
        stderr=answer.get("stderr", ""),
        return_code=code if ended_itself else None,
        duration=float(answer.get("duration", 0.0)),
        stdout_truncated=bool(answer.get("stdout_truncated")),
        stderr_truncated=bool(answer.get("stderr_truncated")),
        message=str(answer.get("message", "")),
        cpu_seconds=answer.get("cpu"),
        memory_bytes=answer.get("rss"),
        files=_fetched(answer.get("files") or (), answer.get("raw", b"")),
        compile=compilation,
    )
