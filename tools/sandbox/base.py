"""The contract of a sandbox: code in, an `ExecutionResult` out; and sessions, which keep their state.

A failed run is a result: a model reads it. Exceptions are for mistakes of the *user* (`ConfigError`) and for failures
of the sandbox (`SandboxError`, whose subclasses are split by what the caller should do).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack, overload

from toolgym.tools.closeable import AsyncCloseable
from toolgym.tools.errors import ConfigError, SandboxUnsupportedError, UnknownNameError, nearest, require_whole_number
from toolgym.tools.sandbox.facts import SandboxFacts
from toolgym.tools.sandbox.files import SessionFiles
from toolgym.tools.sandbox.limits import ExecutionStatus as ExecutionStatus
from toolgym.tools.sandbox.limits import Limits as Limits
from toolgym.tools.sandbox.names import check_label, positive
from toolgym.tools.sandbox.options import RunOptions, RunRequest, SessionOptions, SessionRequest
from toolgym.tools.sandbox.processes import Command, Process
from toolgym.tools.views.html import facts, page


@dataclass(frozen=True)
class BaseResult:
    """The part that the results of programs and of cells share.

    Attributes:
        stdout: standard output, invalid UTF-8 replaced; partial if the program did not end by itself.
        duration: wall seconds from its start to its end.
        stdout_truncated: whether the middle of `stdout` was dropped to stay under the cap.
        message: the sandbox's explanation, above all for `SANDBOX_ERROR`, and which files could not be fetched.
        limit: size of the limit that the status names, such as `1024 MiB`. Empty if none was met or it is unknown.
    """

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    duration: float = 0.0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    message: str = ""
    limit: str = ""

    def _html(self, **further: str | None) -> str:
        rows = {"stdout": self.stdout, "stderr": self.stderr, **further, "message": self.message}
        shown = [(name, text) for name, text in rows.items() if text]
        return page(f"{self.status.value}, {self.duration:.3f} s", facts(shown))


@dataclass(frozen=True)
class ExecutionResult(BaseResult):
    """The result of one execution.

    Attributes:
        return_code: the process's code, negative for a signal; None if it never ran or the sandbox killed it.
        cpu_seconds: CPU seconds of the program, if measured.
        memory_bytes: peak resident memory of the program, if measured.
        files: the files that were asked for and exist, by the name asked.
        compile: the compiler's run, for languages that have one.
    """

    return_code: int | None = None
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    compile: ExecutionResult | None = None

    @property
    def ok(self) -> bool:
        return self.status is ExecutionStatus.OK

    def _repr_html_(self) -> str:
        return self._html(files=", ".join(self.files))


@dataclass(frozen=True)
class ExecResult(ExecutionResult):
    """The result of a program run beside the interpreter of a session.

    A program that cannot be started has a shell's return code: 127, there is none of that name; 126, it cannot be
    executed, or its working folder cannot be entered. `stdout_bytes` and `stderr_bytes` are the output as it came.
    """

    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""

    @property
    def shell_code(self) -> int:
        """The return code as a shell has it: 128 and the signal's number; 137 for what the sandbox killed."""
        code = -9 if self.return_code is None else self.return_code
        return code if code >= 0 else 128 - code


@dataclass(frozen=True)
class CellError:
    """An exception that ended a cell. The lines of its traceback leave out the sandbox's own frames."""

    name: str
    value: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellResult(BaseResult):
    """The result of one cell of a session. Its status is `OK`, `ERROR` if it raised, or the limit that ended it.

    Attributes:
        result: `repr` of the last expression, as Jupyter echoes it; None if there is none.
        display: rich output in order, each a mapping from MIME type to data (text, or base64 for images).
        alive: whether the session can run another cell.
        recovered: whether the cell ended its interpreter, and the session continues from the state before the cell:
            the variables are as before the cell, the files are as the cell left them, and threads have ended.
        return_code: exit code of the interpreter if the cell ended it, negative for a signal; or the exit code that the
            cell passed to `sys.exit`, which ends the cell only. None otherwise, or if the code is unknown.
        line: number of the cell's line that raised `error`, or that the time limit interrupted; None if unknown.
        display_offsets: for each value of `display`, the position in `stdout` where it was shown, or None for the value
            of the last expression. Positions that are missing are the end.
        cleared: position in `stdout` of the last `clear_output`; a notebook does not show what was printed before it.
    """

    result: str | None = None
    display: tuple[Mapping[str, Any], ...] = ()
    error: CellError | None = None
    alive: bool = True
    recovered: bool = False
    return_code: int | None = None
    line: int | None = None
    display_offsets: tuple[int | None, ...] = ()
    cleared: int = 0

    def _repr_html_(self) -> str:
        error = self.error
        text = "" if error is None else "\n".join(error.traceback) or f"{error.name}: {error.value}"
        return self._html(result=self.result, error=text)


class Session(SessionFiles, AsyncCloseable):
    """A running interpreter that keeps variables, imports and files from cell to cell, and programs beside it.

    One cell, call about files or fork at a time; a second one waits. Close it, or use it as an async context manager.
    """

    id: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{'' if self.alive else ', ended'}>"

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it can run another cell."""

    @property
    def lost_to_sandbox(self) -> bool:
        """Whether the sandbox lost the session or its owner closed it, so that its programs did not end it.

        False if unknown.
        """
        return False

    @property
    @abstractmethod
    def checkpoints(self) -> tuple[str, ...]:
        """Names of the checkpoints that it keeps, oldest first."""

    @abstractmethod
    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        """Run one cell.

        At the deadline the cell gets `KeyboardInterrupt`, up to three times, and the session keeps its state. A cell
        that ignores that is killed. Then, or if the cell ends its interpreter, the session continues from its state
        before the cell (`CellResult.recovered`), or is over (`alive` false). A session that is gone, or a sandbox that
        fails, is a result too: `SANDBOX_ERROR`.

        `timeout` is in wall seconds, without the time that the call waits for its turn. Raises ConfigError unless it is
        positive.
        """

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str = b"",
        timeout: float = 30.0,
    ) -> ExecResult:
        """Run a program beside the interpreter, and wait until it ends.

        It waits neither for cells nor for other programs. What the program leaves running goes on until the session
        ends, and what that prints goes nowhere.

        Args:
            command: the program and its arguments; or one text for a shell (`bash`, or else `sh`).
            cwd: folder to start in, relative to the session's or absolute.
            env: environment variables beside the session's.
            user: name of the user to run as. Default: the session's, `user`, the only one of our own sandboxes.
            stdin: its standard input; a text is sent as UTF-8.
            timeout: wall seconds until it is killed with all that it started, except what called `setsid`.

        Raises:
            ConfigError: an argument cannot be used.
            SandboxUnsupportedError: sessions of this sandbox cannot start programs, or not as that user.
            SandboxBusyError: too many programs run in the session.
        """
        data = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ConfigError(f"stdin must be bytes or a text, got {type(stdin).__name__}")
        return await self._exec(Command.of(command, cwd, env, user), bytes(data), positive("timeout", timeout))

    async def start(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        pty: tuple[int, int] | None = None,
    ) -> Process:
        """Start a program in the background. It runs until it ends, is killed, or the session ends.

        The arguments are those of `exec`, and `pty`: rows and columns of a terminal, which is its input and its output
        in place of pipes. Raises as `exec`, SandboxFileError if the program cannot be started (FileNotFoundError, for
        example), and SessionLostError.
        """
        return await self._start(Command.of(command, cwd, env, user, pty))

    @abstractmethod
    async def _exec(self, command: Command, stdin: bytes, timeout: float) -> ExecResult: ...

    @abstractmethod
    async def _start(self, command: Command) -> Process: ...

    @overload
    async def fork(self, name: str | None = None) -> Session: ...
    @overload
    async def fork(self, name: str | None = None, *, n: int) -> list[Session]: ...
    async def fork(self, name: str | None = None, *, n: int | None = None) -> Session | list[Session]:
        """Make independent sessions in the same state: variables, imports, open files and folder go along.

        They share its limits of memory and processes, live on when this session is closed, and are the caller's to
        close. They go on from the checkpoint `name`, or from the state as it is now. With `n` they are a list.

        Raises:
            ConfigError: `n` is not at least 1.
            UnknownNameError: there is no such checkpoint; names the nearest.
            SessionForkError: sessions of this sandbox cannot be forked; says why.
            SandboxBusyError: there is no room for so many.
            SessionLostError: the session, or its checkpoint, is gone.
            SandboxError: a program in the session kept the fork from coming about.
        """
        if n is not None:
            require_whole_number("n", n, at_least=1)
        if name is not None:
            self._check_known(name)
        forks = await self._fork(name, n or 1)
        return forks[0] if n is None else forks

    async def checkpoint(self, name: str) -> None:
        """Keep the state as it is now, under a name: `fork(name)` goes on from it, any number of times.

        A checkpoint is an idle fork. It counts against the session's limit of memory and a server's limit of sessions,
        outlives a cell that kills the session, and is freed by `close`, by `drop_checkpoint`, or when another one takes
        its name. The kernel allows a session about fifteen generations of forks and checkpoints.

        Raises ConfigError unless the name is a text of 1 to 200 printable characters, and else as `fork`.
        """
        await self._checkpoint(check_label(name))

    async def drop_checkpoint(self, name: str) -> None:
        """Free a checkpoint; forks of it live on. Raises UnknownNameError if there is no such checkpoint."""
        self._check_known(name)
        await self._drop_checkpoint(name)

    @abstractmethod
    async def _fork(self, name: str | None, n: int) -> list[Session]:
        """As `fork`; if one of the forks fails, none is left behind."""

    @abstractmethod
    async def _checkpoint(self, name: str) -> None:
        """As `checkpoint`; an older one of that name stays until the new one is there."""

    @abstractmethod
    async def _drop_checkpoint(self, name: str) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """Kill everything of the session and free it, with its checkpoints. Closing twice is fine.

        Its processes count for a moment more: to open a session at the limit right away may raise `SandboxBusyError`.
        """

    def _check_known(self, name: str) -> None:
        if name not in self.checkpoints:
            known = ", ".join(map(repr, self.checkpoints)) or "none"
            raise UnknownNameError(
                f"the session has no checkpoint {name!r}{nearest(str(name), self.checkpoints) or '.'} It has: {known}."
            )


class Sandbox(AsyncCloseable):
    """Runs code. Safe to use from many tasks at once. Close it, or use it as an async context manager.

    Once it is closed, its methods and those of its sessions raise SandboxClosedError. A sandbox of your own implements
    `execute`, and `open_session` if it has sessions; both get checked options.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    async def run(self, code: str, **options: Unpack[RunOptions]) -> ExecutionResult:
        """Run a program from a clean start; `RunOptions` has the options. Cancelling the call kills what it ran.

        Raises ConfigError for an unknown option (names the nearest) or an unusable value, and else as `execute`.
        """
        return await self.execute(RunRequest.of(code, options))

    @abstractmethod
    async def execute(self, request: RunRequest) -> ExecutionResult:
        """Carry out `run` with checked options.

        Raises ConfigError if this sandbox lacks the language or another thing that the request asks for, and
        SandboxUnavailableError if it cannot be set up. (One that fails later is a `SANDBOX_ERROR` result.)
        """

    async def session(self, **options: Unpack[SessionOptions]) -> Session:
        """Open a session; `SessionOptions` has the options.

        Raises ConfigError for an unknown option (names the nearest) or an unusable value, and else as `open_session`.
        """
        return await self.open_session(SessionRequest.of(options))

    async def open_session(self, request: SessionRequest) -> Session:
        """Carry out `session` with checked options.

        Raises:
            SandboxUnsupportedError: this sandbox has no sessions.
            SandboxUnavailableError: the sandbox cannot be set up or reached, or the session does not start.
            SandboxBusyError: there is no room for another session.
        """
        raise SandboxUnsupportedError(
            f"{type(self).__name__} has no sessions; use a LocalSandbox or a server that has them"
        )

    @property
    def facts(self) -> SandboxFacts:
        """Facts about programs here, as far as they are known without asking a server."""
        return SandboxFacts()

    @property
    def sessions_known(self) -> bool | None:
        """Whether it has sessions, as far as is known without asking; None: see `has_sessions`."""
        return type(self).open_session is not Sandbox.open_session

    async def has_sessions(self) -> bool:
        """Ask its servers whether it has sessions.

        Raises SandboxUnavailableError if they cannot be asked now, and ConfigError if one is no sandbox server or
        refuses the token.
        """
        return bool(self.sessions_known)

    async def close(self) -> None:
        """Kill what still runs and free what the sandbox holds. Closing twice is fine."""
