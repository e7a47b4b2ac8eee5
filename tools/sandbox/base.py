"""The contract of a sandbox: code in, an `ExecutionResult` out; and sessions, which keep their state.

A failed run is a result, never an exception: the caller is a model, and it reads what happened. Exceptions are for what
the *user* did wrong (`ConfigError`) and for a sandbox that cannot be set up at all (`SandboxError`).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from toolgym.tools.errors import ConfigError, SandboxError


class ExecutionStatus(enum.StrEnum):
    """How an execution ended."""

    OK = "ok"
    """The program ended by itself with return code 0."""
    ERROR = "error"
    """The program ended by itself with another return code, or the cell raised."""
    COMPILE_ERROR = "compile_error"
    """The program could not be compiled; standard output and error are the compiler's."""
    KILLED = "killed"
    """The program was killed by a signal that the sandbox did not send."""
    TIMEOUT = "timeout"
    """The wall-clock deadline passed and the sandbox killed the program with all that it had started."""
    CPU_LIMIT = "cpu_limit"
    """The program used up its CPU time."""
    MEMORY_LIMIT = "memory_limit"
    """The program asked for more memory than allowed, or used it and was killed."""
    OUTPUT_LIMIT = "output_limit"
    """The program printed far more than the cap and was killed."""
    FILE_LIMIT = "file_limit"
    """The program wrote a file beyond the size limit."""
    DISK_LIMIT = "disk_limit"
    """The program wrote more than its file system holds."""
    SANDBOX_ERROR = "sandbox_error"
    """The sandbox itself failed; the program is not to blame."""


@dataclass(frozen=True)
class Limits:
    """What one execution or one session may use. Each is per call for `run` and per session for a session.

    Attributes:
        memory_mb: memory of all its processes together, in MiB, beyond what the template already has.
        cpu_seconds: CPU seconds of one process; None: the wall-clock deadline alone.
        processes: processes and threads at once. Programs count at most one processor for eight of them, so that a
            pool with a process for each does not reach the limit on a large machine.
        cores: processors' worth of time that all its processes together may use, for example 0.5; None: no limit. A
            local sandbox needs control groups for it, and refuses where there are none.
        file_mb: size of one file, in MiB.
        disk_mb: everything written to its folders together, in MiB.
        inodes: files and folders at once.
        open_files: descriptors of one process.
        output_bytes: cap on each of stdout and stderr; the middle of more is dropped. At 64 times this the program is
            killed.

    Raises:
        ConfigError: a number is not positive.
    """

    memory_mb: int = 1024
    cpu_seconds: float | None = None
    processes: int = 64
    cores: float | None = None
    file_mb: int = 64
    disk_mb: int = 128
    inodes: int = 4096
    open_files: int = 256
    output_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                raise ConfigError(f"limit {name} must be positive, got {value!r}")


@dataclass(frozen=True)
class ExecutionResult:
    """What came of one execution.

    Attributes:
        status: how it ended.
        stdout: standard output, invalid UTF-8 replaced; partial where the program did not end by itself.
        stderr: standard error, likewise.
        return_code: the process's code, negative for a signal; None when it never ran or was killed by the sandbox.
        duration: wall seconds from the start of the program to its end.
        stdout_truncated: true when the middle of `stdout` was dropped to stay under the cap.
        stderr_truncated: likewise for `stderr`.
        message: what the sandbox has to say, for `SANDBOX_ERROR` above all.
        cpu_seconds: CPU seconds of the program, where measured.
        memory_bytes: peak resident memory of the program, where measured.
        files: contents of the files that were asked for and exist, by the name asked.
        compile: the compiler's run, for languages that have one.
    """

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    return_code: int | None = None
    duration: float = 0.0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    message: str = ""
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    compile: ExecutionResult | None = None

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with return code 0."""
        return self.status is ExecutionStatus.OK


@dataclass(frozen=True)
class CellError:
    """An exception that ended a cell.

    Attributes:
        name: the exception's class.
        value: its text.
        traceback: the lines of its traceback, without the sandbox's own frames, newest call last.
    """

    name: str
    value: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True)
class CellResult:
    """What came of one cell of a session.

    Attributes:
        status: `OK`, `ERROR` where it raised, or the limit that ended it. `alive` tells whether the session lives on.
        stdout: what it printed.
        stderr: likewise.
        result: `repr` of the last expression, as Jupyter echoes it; None where there is none.
        display: rich output in order, each a mapping from MIME type to data (text, or base64 for images).
        error: the exception, where it raised.
        duration: wall seconds.
        alive: whether the session still lives and keeps its state.
        stdout_truncated: true when the middle of `stdout` was dropped.
        stderr_truncated: likewise.
        message: what the sandbox has to say.
    """

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    result: str | None = None
    display: tuple[Mapping[str, Any], ...] = ()
    error: CellError | None = None
    duration: float = 0.0
    alive: bool = True
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    message: str = ""


class Session(ABC):
    """A running interpreter that keeps variables, imports and files from cell to cell.

    One call at a time; a second one waits. Use it as an async context manager, or call `close` when done.
    """

    @property
    @abstractmethod
    def id(self) -> str:
        """Unique among the sandbox's sessions."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it can run another cell."""

    @abstractmethod
    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        """Run one cell.

        At the deadline the cell gets `KeyboardInterrupt` and the session keeps its state; a cell that ignores that is
        killed, and the session with it (`alive` false).
        """

    @abstractmethod
    async def exec(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: str = "") -> ExecutionResult:
        """Run a program in the session's folder, beside the interpreter."""

    @abstractmethod
    async def write_file(self, name: str, data: bytes) -> None:
        """Write a file below the session's folder. Raises ConfigError for a name that leads outside of it."""

    @abstractmethod
    async def read_file(self, name: str) -> bytes:
        """Read a regular file below the session's folder. Raises FileNotFoundError, or ConfigError as `write_file`."""

    async def upload(self, files: Mapping[str, bytes]) -> None:
        """Write several files, by name. Raises as `write_file`."""
        for name, data in files.items():
            await self.write_file(name, data)

    async def snapshot(self) -> Session:
        """A fork that is kept as it is: fork it again to go on from here. Raises as `fork`."""
        return await self.fork()

    @abstractmethod
    async def fork(self) -> Session:
        """An independent session in the same state: variables, imports, open files and folder go along."""

    @abstractmethod
    async def close(self) -> None:
        """Kill everything of the session and free it. Closing twice is fine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Sandbox(ABC):
    """Runs code. Safe to use from many tasks at once.

    Use it as an async context manager, or call `close` when done.
    """

    @abstractmethod
    async def run(
        self,
        code: str,
        *,
        language: str = "python",
        timeout: float = 30.0,
        memory_mb: int | None = None,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch_files: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> ExecutionResult:
        """Run a program from a clean start.

        Args:
            code: the program's source.
            language: the program's language.
            timeout: wall seconds until the program and all that it started are killed; the time that the call waits
                for a free place does not count.
            memory_mb: instead of the limit's.
            stdin: what the program can read from standard input.
            files: files to put into its folder first, by relative name.
            fetch_files: names of files to bring back afterwards, whatever came of the run.
            env: further environment variables.

        Cancelling the call kills what it ran.

        Raises:
            ConfigError: the language is not known, a number is not positive, or a file's name leads outside.
        """

    async def session(self) -> Session:
        """Open a session.

        Raises:
            SandboxError: this sandbox has none.
        """
        raise SandboxError(f"{type(self).__name__} has no sessions; use a LocalSandbox or a server that has them")

    async def close(self) -> None:
        """Kill what still runs and free what the sandbox holds. Closing twice is fine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
