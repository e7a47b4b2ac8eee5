"""SandboxFusion's messages, `/run_code` and `/run_jupyter`, and a sandbox's results in them.

Fields, enums and defaults are those of its OpenAPI description at commit 469de08; `docs/sandboxfusion.md` lists the
differences.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import CellResult, ExecutionResult, ExecutionStatus
from toolgym.tools.sandbox.protocol.messages import MAX_ITEMS, Base64, Few, Files, WireMessage

Language = Literal[
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust", "cuda",
    "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog",
    "python_gpu", "lean", "swift", "racket",
    "python2", "gtest", "react",  # the official SDK's, beyond its server's
    "c", "js",  # ours
]  # fmt: skip
"""Languages that a request may name; `local.host.languages` has those that can run."""

POD_NAME = os.environ.get("MY_POD_NAME")
"""The variable is SandboxFusion's."""

_LIMITS = {
    ExecutionStatus.MEMORY_LIMIT: (-9, "asked for more memory than allowed"),
    ExecutionStatus.OUTPUT_LIMIT: (-9, "printed far more than allowed"),
    ExecutionStatus.FILE_LIMIT: (-25, "wrote a larger file than allowed"),
    ExecutionStatus.DISK_LIMIT: (-9, "wrote more than its folder may hold"),
}
"""By status: the return code of the signal that kills the program, and the message."""

_TIME = frozenset({ExecutionStatus.TIMEOUT, ExecutionStatus.CPU_LIMIT})


class CommandRunStatus(enum.StrEnum):
    """The end of one command."""

    FINISHED = "Finished"
    ERROR = "Error"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"


class RunStatus(enum.StrEnum):
    """The end of a request: all commands with return code 0, one of them not, or the sandbox failed."""

    SUCCESS = "Success"
    FAILED = "Failed"
    SANDBOX_ERROR = "SandboxError"


class RunCodeRequest(WireMessage):
    """Body of `/run_code`."""

    compile_timeout: FiniteFloat = Field(10, description="compile timeout for compiled languages")
    run_timeout: FiniteFloat = Field(10, description="code run timeout")
    memory_limit_MB: int = Field(-1, description="maximum memory allowed in megabytes")
    code: str = Field(description="the code to run", examples=['print("hello")'])
    stdin: str | None = Field(None, description="optional string to pass into stdin", examples=[""])
    language: Language = Field(description="the language or execution mode to run the code", examples=["python"])
    files: Files[dict[str, Base64 | None]] = Field(
        {}, max_length=MAX_ITEMS, description="a dict from file path to base64 encoded file content"
    )
    fetch_files: list[str] = Field(
        [], max_length=MAX_ITEMS, description="a list of file paths to fetch after code execution"
    )
    env: Few[dict[str, str]] = Field(
        {}, max_length=MAX_ITEMS, description="further environment variables (not in SandboxFusion's API)"
    )


class CommandRunResult(WireMessage):
    """One command's part of an answer. The fields after `stderr` are not SandboxFusion's."""

    status: CommandRunStatus
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    cpu_time: float | None = None
    memory_bytes: int | None = None
    reason: ExecutionStatus | None = Field(None, description="the exact way it ended")
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    limit: str = ""

    @classmethod
    def of(cls, result: ExecutionResult) -> CommandRunResult:
        """Make a command's part of an answer. `CPU_LIMIT` is a time limit too."""
        status, code, stderr = CommandRunStatus.FINISHED, result.return_code, result.stderr
        if result.status in _TIME:
            status, code = CommandRunStatus.TIME_LIMIT_EXCEEDED, None
        elif result.status is ExecutionStatus.SANDBOX_ERROR:
            status, stderr = CommandRunStatus.ERROR, result.message or result.stderr
        elif code is None:
            code = _LIMITS[result.status][0] if result.status in _LIMITS else -9
        return cls(
            status=status,
            execution_time=result.duration,
            return_code=code,
            stdout=result.stdout,
            stderr=stderr,
            cpu_time=result.cpu_seconds,
            memory_bytes=result.memory_bytes,
            reason=result.status,
            stdout_truncated=result.stdout_truncated,
            stderr_truncated=result.stderr_truncated,
            limit=result.limit,
        )

    def result(self) -> ExecutionResult:
        """Return the command's result. Without `reason`, SandboxFusion's `status` decides."""
        status, code = self.reason, self.return_code
        if self.status is CommandRunStatus.TIME_LIMIT_EXCEEDED:
            status, code = status or ExecutionStatus.TIMEOUT, None
        elif self.status is CommandRunStatus.ERROR:
            status = ExecutionStatus.SANDBOX_ERROR
        elif status is None and code is not None and code < 0:
            status = ExecutionStatus.KILLED
        elif status is None:
            status = ExecutionStatus.OK if code == 0 else ExecutionStatus.ERROR
        if status in _LIMITS and code == _LIMITS[status][0]:  # `of` gives it if there is none
            code = None
        return ExecutionResult(
            status=status,
            stdout=self.stdout or "",
            stderr=self.stderr or "",
            return_code=code,
            duration=self.execution_time or 0.0,
            stdout_truncated=self.stdout_truncated,
            stderr_truncated=self.stderr_truncated,
            limit=self.limit,
            cpu_seconds=self.cpu_time,
            memory_bytes=self.memory_bytes,
        )


class RunCodeResponse(WireMessage):
    """Answer of `/run_code`."""

    status: RunStatus
    message: str
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, Base64] = Field({})

    @classmethod
    def of(
        cls, result: ExecutionResult, files: Mapping[str, bytes] | None = None, message: str = ""
    ) -> RunCodeResponse:
        """Make the answer for a result, with `files` instead of the result's, and `message` as a further note."""
        compiled = CommandRunResult.of(result.compile) if result.compile is not None else None
        ran: CommandRunResult | None = None
        if result.status is ExecutionStatus.COMPILE_ERROR:
            compiled = compiled or CommandRunResult.of(result)
        elif result.compile is not None and not result.compile.ok:  # the compiler hit a limit
            compiled = CommandRunResult.of(replace(result.compile, status=result.status))
        else:
            ran = CommandRunResult.of(result)
        commands = [command for command in (compiled, ran) if command is not None]
        status = RunStatus.SUCCESS
        if any(command.status is CommandRunStatus.ERROR for command in commands):
            status = RunStatus.SANDBOX_ERROR
        elif any(command.return_code != 0 for command in commands):
            status = RunStatus.FAILED
        return cls(
            status=status,
            message="; ".join(text for text in (limit_message(result.status), result.message, message) if text),
            compile_result=compiled,
            run_result=ran,
            executor_pod_name=POD_NAME,
            files=dict(result.files if files is None else files),
        )

    def result(self) -> ExecutionResult:
        """Return the program's result, also from SandboxFusion's answer. Raises SandboxError if it holds none."""
        compiled = self.compile_result.result() if self.compile_result is not None else None
        command = self.run_result or self.compile_result
        if self.status is RunStatus.SANDBOX_ERROR:
            message = self.message or (command.stderr if command is not None else "")
            return ExecutionResult(
                ExecutionStatus.SANDBOX_ERROR, message=message or "the server reported SandboxError", compile=compiled
            )
        if command is None:
            raise SandboxError("the answer has neither run_result nor compile_result")
        ran = command.result()
        status = ran.status
        if self.run_result is None and status not in _TIME:
            status = ExecutionStatus.COMPILE_ERROR
        return replace(ran, status=status, message=self.message, files=self.files, compile=compiled)


class RunJupyterRequest(WireMessage):
    """Body of `/run_jupyter`."""

    cells: list[str] = Field(
        max_length=MAX_ITEMS, description="list of code blocks to run in jupyter notebook", examples=[["a = 1", "a"]]
    )
    cell_timeout: FiniteFloat = Field(0, description="max run time for each of the cells; 0: none of its own")
    total_timeout: FiniteFloat = Field(45, description="max run time for all the cells")
    memory_limit_MB: int = Field(-1, description="maximum memory allowed in megabytes")
    kernel: Literal["python3"] = "python3"
    files: Files[dict[str, Base64]] = Field(
        {}, max_length=MAX_ITEMS, description="a dict from file path to base64 encoded file content"
    )
    fetch_files: list[str] = Field(
        [], max_length=MAX_ITEMS, description="a list of file paths to fetch after code execution"
    )


class CellRunResult(WireMessage):
    """One cell's part of an answer of `/run_jupyter`."""

    stdout: str
    stderr: str
    display: list[dict[str, Any]]
    error: list[dict[str, Any]]

    @classmethod
    def of(cls, cell: CellResult) -> CellRunResult:
        """Make a cell's part of an answer. The last expression's echo is a display, as in Jupyter."""
        display = [dict(shown) for shown in cell.display]
        if cell.result is not None and not any(shown.get("text/plain") == cell.result for shown in display):
            display.append({"text/plain": cell.result})
        error = cell.error
        errors = [{"ename": error.name, "evalue": error.value, "traceback": list(error.traceback)}] if error else []
        return cls(stdout=cell.stdout, stderr=cell.stderr, display=display, error=errors)


class RunJupyterResponse(WireMessage):
    """Answer of `/run_jupyter`."""

    status: RunStatus
    message: str
    driver: CommandRunResult | None = None
    cells: list[CellRunResult] = Field([])
    executor_pod_name: str | None = None
    files: dict[str, Base64] = Field({})

    @classmethod
    def of(
        cls,
        cells: Sequence[CellResult],
        *,
        duration: float,
        files: Mapping[str, bytes] | None = None,
        timed_out: bool = False,
        message: str = "",
    ) -> RunJupyterResponse:
        """Make the answer for the cells that ran, with `timed_out` if there was no time for the next one."""
        last = cells[-1] if cells else CellResult(ExecutionStatus.OK)
        status, code = CommandRunStatus.FINISHED, 0 if last.alive else -9
        if timed_out or last.status in _TIME:
            status = CommandRunStatus.TIME_LIMIT_EXCEEDED
        elif last.status is ExecutionStatus.SANDBOX_ERROR:
            status = CommandRunStatus.ERROR
        finished = status is CommandRunStatus.FINISHED
        overall = RunStatus.SUCCESS if finished and code == 0 else RunStatus.FAILED
        if status is CommandRunStatus.ERROR:
            overall = RunStatus.SANDBOX_ERROR
        notes = [limit_message(last.status), last.message]
        if overall is RunStatus.FAILED and finished and not any(notes):
            notes = ["the interpreter died in the last cell shown"]
        message = "; ".join(text for text in (*notes, message) if text)
        reason = ExecutionStatus.OK if finished and code == 0 else last.status
        return cls(
            status=overall,
            message=message,
            driver=CommandRunResult(
                status=status,
                execution_time=duration,
                return_code=code if finished else None,
                stdout="",
                stderr=message if status is CommandRunStatus.ERROR else "",
                reason=ExecutionStatus.TIMEOUT if timed_out else reason,
            ),
            cells=list(map(CellRunResult.of, cells)),
            executor_pod_name=POD_NAME,
            files=dict(files or {}),
        )


def limit_message(status: ExecutionStatus) -> str:
    """Return the note about a limit that a program hit; empty for other statuses."""
    return f"{status.value}: the program {_LIMITS[status][1]}" if status in _LIMITS else ""
