"""The contract of a sandbox: code in, an `ExecutionResult` out.

A failed run is a result, never an exception: the caller is a model, and it reads what happened.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self


class ExecutionStatus(enum.StrEnum):
    """How an execution ended."""

    OK = "ok"
    """The program ended by itself with return code 0."""
    ERROR = "error"
    """The program ended by itself with another return code."""
    KILLED = "killed"
    """The program was killed by a signal that the sandbox did not send."""
    TIMEOUT = "timeout"
    """The deadline passed and the sandbox killed the program with all that it had started."""
    OUTPUT_LIMIT = "output_limit"
    """The program printed far more than the cap and was killed."""
    SANDBOX_ERROR = "sandbox_error"
    """The sandbox itself failed; the program is not to blame."""


@dataclass(frozen=True)
class ExecutionResult:
    """What came of one execution.

    Attributes:
        status: how it ended.
        stdout: standard output, invalid UTF-8 replaced; partial where the program did not end by itself.
        stderr: standard error, likewise.
        return_code: the process's code, negative for a signal; None when it never ran or was killed by the sandbox.
        duration: wall seconds from the start of the process to its end.
        stdout_truncated: true when the middle of `stdout` was dropped to stay under the cap.
        stderr_truncated: likewise for `stderr`.
        message: what the sandbox has to say, for `SANDBOX_ERROR` above all.
    """

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    return_code: int | None = None
    duration: float = 0.0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with return code 0."""
        return self.status is ExecutionStatus.OK


class Sandbox(ABC):
    """Runs code. Safe to use from many tasks and many event loops at once.

    Use it as an async context manager, or call `close` when done.
    """

    @abstractmethod
    async def run(
        self, code: str, *, timeout: float = 30.0, language: str = "python", stdin: str = ""
    ) -> ExecutionResult:
        """Run a program from a clean start.

        Args:
            code: the program's source.
            timeout: wall seconds until the program and all that it started are killed.
            language: the program's language.
            stdin: what the program can read from standard input.

        Cancelling the call kills what it ran.

        Raises:
            ConfigError: the language is not known, or the timeout is not positive.
        """

    async def close(self) -> None:
        """Kill what still runs and free what the sandbox holds. Closing twice is fine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
