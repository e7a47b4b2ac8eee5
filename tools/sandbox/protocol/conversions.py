"""Conversions between a sandbox's results and its messages, both ways.

Where a result differs from SandboxFusion's:

- Bad requests are 422 and name the field, where SandboxFusion runs something else or fails with 500: a file's name that
  leads outside, content that is not base64, numbers that are not finite or beyond the server's limits.
- A lone surrogate in `code`, `stdin` or a cell reaches the program, and Python reports it; SandboxFusion answers 500.
- Output, memory, file size and disk limits are a non-zero `return_code` with a `message` that says which.
- A language that is not offered is a `return_code` of 127, where SandboxFusion's `sql` is a `SandboxError`.
- `/run_jupyter` honours `cell_timeout` and `memory_limit_MB`, and keeps what the cells gave up to a time-out or the
  death of the interpreter. Tracebacks have no colour codes.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import CellError, CellResult, ExecResult, ExecutionResult, ExecutionStatus
from toolgym.tools.sandbox.processes import ProcessOutput, ProcessState
from toolgym.tools.sandbox.protocol.messages import (
    AskProcessRequest,
    AskProcessResponse,
    CellErrorMessage,
    CellResponse,
    CellRunResult,
    CommandRunResult,
    CommandRunStatus,
    ExecRequest,
    ExecResponse,
    RunCodeResponse,
    RunJupyterResponse,
    RunStatus,
)

POD_NAME = os.environ.get("MY_POD_NAME")
"""The `executor_pod_name` of answers, from the variable that SandboxFusion reads."""

_LIMITS = {
    ExecutionStatus.MEMORY_LIMIT: (-9, "asked for more memory than allowed"),
    ExecutionStatus.OUTPUT_LIMIT: (-9, "printed far more than allowed"),
    ExecutionStatus.FILE_LIMIT: (-25, "wrote a larger file than allowed"),
    ExecutionStatus.DISK_LIMIT: (-9, "wrote more than its folder may hold"),
}
_TIME = frozenset({ExecutionStatus.TIMEOUT, ExecutionStatus.CPU_LIMIT})


# --------------------------------------------------------------------------------------------------- result to message


def command_result(result: ExecutionResult) -> CommandRunResult:
    """Return one command's part of an answer.

    `CPU_LIMIT` is a time limit too. A limit that killed the program gives the return code of that signal.
    """
    status, code, stderr = CommandRunStatus.FINISHED, result.return_code, result.stderr
    if result.status in _TIME:
        status, code = CommandRunStatus.TIME_LIMIT_EXCEEDED, None
    elif result.status is ExecutionStatus.SANDBOX_ERROR:
        status, stderr = CommandRunStatus.ERROR, result.message or result.stderr
    elif code is None:
        code = _LIMITS[result.status][0] if result.status in _LIMITS else -9
    return CommandRunResult(
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
    )


def run_code_response(
    result: ExecutionResult, files: Mapping[str, bytes] | None = None, message: str = ""
) -> RunCodeResponse:
    """Return the answer of `/run_code`.

    Its status is `SandboxError` where the sandbox failed, and `Failed` where a command ran too long or ended with
    another return code than 0.

    Args:
        result: how the program ended.
        files: instead of the result's.
        message: a further note.
    """
    compiled = command_result(result.compile) if result.compile is not None else None
    ran: CommandRunResult | None = None
    if result.status is ExecutionStatus.COMPILE_ERROR:
        compiled = compiled or command_result(result)
    elif result.compile is not None and not result.compile.ok:  # the compiler hit a limit
        compiled = command_result(replace(result.compile, status=result.status))
    else:
        ran = command_result(result)
    status = RunStatus.SUCCESS
    for command in (compiled, ran):
        if command is None:
            continue
        if command.status is CommandRunStatus.ERROR:
            status = RunStatus.SANDBOX_ERROR
        elif status is RunStatus.SUCCESS and command.return_code != 0:
            status = RunStatus.FAILED
    return RunCodeResponse(
        status=status,
        message="; ".join(text for text in (limit_message(result.status), result.message, message) if text),
        compile_result=compiled,
        run_result=ran,
        executor_pod_name=POD_NAME,
        files=encode_files(result.files if files is None else files),
    )


def limit_message(status: ExecutionStatus) -> str:
    """Return an answer's `message` about the limit that a program hit; empty for other statuses."""
    return f"{status.value}: the program {_LIMITS[status][1]}" if status in _LIMITS else ""


def encode_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return files as messages hold them: base64 by name."""
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


def cell_run_result(cell: CellResult) -> CellRunResult:
    """Return one cell's part of an answer of `/run_jupyter`. The last expression's echo is a display, as in Jupyter."""
    display = [dict(shown) for shown in cell.display]
    if cell.result is not None and not any(shown.get("text/plain") == cell.result for shown in display):
        display.append({"text/plain": cell.result})
    error = cell.error
    shown_error = [{"ename": error.name, "evalue": error.value, "traceback": list(error.traceback)}] if error else []
    return CellRunResult(stdout=cell.stdout, stderr=cell.stderr, display=display, error=shown_error)


def run_jupyter_response(
    cells: Sequence[CellResult],
    *,
    duration: float,
    files: Mapping[str, bytes] | None = None,
    timed_out: bool = False,
    message: str = "",
) -> RunJupyterResponse:
    """Return the answer of `/run_jupyter`.

    Args:
        cells: the results of the cells that ran, in order. A cell that raised is no failure; a last one that ran too
            long or took the interpreter with it is.
        duration: seconds for all of it.
        files: the files that were asked for.
        timed_out: whether the time was up before the next cell could begin.
        message: a further note.
    """
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
    said = [limit_message(last.status), last.message]
    if overall is RunStatus.FAILED and finished and not any(said):
        said = ["the interpreter died in the last cell shown"]
    message = "; ".join(text for text in (*said, message) if text)
    return RunJupyterResponse(
        status=overall,
        message=message,
        driver=CommandRunResult(
            status=status,
            execution_time=duration,
            return_code=code if finished else None,
            stdout="",
            stderr=message if status is CommandRunStatus.ERROR else "",
            reason=ExecutionStatus.TIMEOUT
            if timed_out
            else ExecutionStatus.OK
            if finished and code == 0
            else last.status,
        ),
        cells=[cell_run_result(cell) for cell in cells],
        executor_pod_name=POD_NAME,
        files=encode_files(files or {}),
    )


def cell_response(cell: CellResult) -> CellResponse:
    """Return the answer to a cell of a session."""
    error = cell.error
    return CellResponse(
        status=cell.status,
        stdout=cell.stdout,
        stderr=cell.stderr,
        result=cell.result,
        display=[dict(shown) for shown in cell.display],
        error=CellErrorMessage(name=error.name, value=error.value, traceback=list(error.traceback)) if error else None,
        duration=cell.duration,
        alive=cell.alive,
        stdout_truncated=cell.stdout_truncated,
        stderr_truncated=cell.stderr_truncated,
        message=cell.message,
    )


_EXEC_TEXTS = ("stdout_base64", "stderr_base64")


def exec_response(result: ExecResult) -> ExecResponse:
    """Return the answer to a program run in a session. Output that is no text goes along as base64."""
    values = {name: getattr(result, name) for name in ExecResponse.model_fields if name not in _EXEC_TEXTS}
    for name, text, data in (
        ("stdout_base64", result.stdout, result.stdout_bytes),
        ("stderr_base64", result.stderr, result.stderr_bytes),
    ):
        values[name] = None if text.encode("utf-8", "replace") == data else base64.b64encode(data).decode()
    return ExecResponse(**values)


def process_response(state: ProcessState) -> AskProcessResponse:
    """Return the answer to a request about a program."""
    return AskProcessResponse(
        running=state.running,
        code=state.code,
        unwritten=state.unwritten,
        stdout_base64=base64.b64encode(state.output.stdout).decode(),
        stderr_base64=base64.b64encode(state.output.stderr).decode(),
        stdout_truncated=state.output.stdout_truncated,
        stderr_truncated=state.output.stderr_truncated,
    )


def stdin_fields(data: bytes) -> dict[str, str]:
    """Return the fields of a request for a program's input: a text, or base64 where it is none."""
    try:
        return {"stdin": data.decode()}
    except UnicodeDecodeError:
        return {"stdin_base64": base64.b64encode(data).decode()}


def framed(head: object, data: bytes = b"") -> bytes:
    """Return a body of several files: four bytes of length, a head in JSON, and contents one after another."""
    encoded = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([len(encoded).to_bytes(4, "little"), encoded, data])


def unframed(body: bytes) -> tuple[Any, bytes]:
    """Return head and contents of such a body. Raises ValueError where it is none."""
    end = 4 + int.from_bytes(body[:4], "little")
    if not 4 < end <= len(body):
        raise ValueError("a body without a head")
    try:
        return json.loads(body[4:end]), body[end:]
    except RecursionError as error:
        raise ValueError("a head with too many layers") from error


# --------------------------------------------------------------------------------------------------- message to result


def decode_files(files: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of an answer, as bytes by name. Raises SandboxError where one is not base64."""
    try:
        return {name: base64.b64decode(content) for name, content in files.items()}
    except ValueError as error:
        raise SandboxError(f"the answer's files are not base64: {error}") from None


def read_command(message: CommandRunResult) -> ExecutionResult:
    """Return the result in a command's part of an answer; without `reason`, SandboxFusion's `status` decides."""
    status, code = message.reason, message.return_code
    if message.status is CommandRunStatus.TIME_LIMIT_EXCEEDED:
        status, code = status or ExecutionStatus.TIMEOUT, None
    elif message.status is CommandRunStatus.ERROR:
        status = ExecutionStatus.SANDBOX_ERROR
    elif status is None and code is not None and code < 0:
        status = ExecutionStatus.KILLED
    elif status is None:
        status = ExecutionStatus.OK if code == 0 else ExecutionStatus.ERROR
    if status in _LIMITS and code == _LIMITS[status][0]:  # `command_result` gives it where there is none
        code = None
    return ExecutionResult(
        status=status,
        stdout=message.stdout or "",
        stderr=message.stderr or "",
        return_code=code,
        duration=message.execution_time or 0.0,
        stdout_truncated=message.stdout_truncated,
        stderr_truncated=message.stderr_truncated,
        cpu_seconds=message.cpu_time,
        memory_bytes=message.memory_bytes,
    )


def read_run_code(message: RunCodeResponse) -> ExecutionResult:
    """Return the result in an answer of `/run_code`, ours or SandboxFusion's.

    Raises:
        SandboxError: it holds no result, or its files are not base64.
    """
    compiled = read_command(message.compile_result) if message.compile_result is not None else None
    if message.status is RunStatus.SANDBOX_ERROR:
        return ExecutionResult(ExecutionStatus.SANDBOX_ERROR, message=message.message, compile=compiled)
    files = decode_files(message.files)
    if message.run_result is not None:
        ran = read_command(message.run_result)
    elif compiled is not None:
        ran = compiled
    else:
        raise SandboxError("the answer has neither run_result nor compile_result")
    status = ran.status
    if message.run_result is None and status not in _TIME:
        status = ExecutionStatus.COMPILE_ERROR
    values = {item.name: getattr(ran, item.name) for item in fields(ran)}
    values |= {"status": status, "message": message.message, "files": files, "compile": compiled}
    return ExecutionResult(**values)


def read_cell(message: CellResponse) -> CellResult:
    """Return the result in the answer to a cell of a session."""
    error = message.error
    values = {name: getattr(message, name) for name in CellResponse.model_fields}
    values["display"] = tuple(message.display)
    values["error"] = CellError(error.name, error.value, tuple(error.traceback)) if error else None
    return CellResult(**values)


def read_exec(message: ExecResponse) -> ExecResult:
    """Return the result in the answer to a program run in a session. Raises ValueError: some of it is not base64."""
    values = {name: getattr(message, name) for name in ExecResponse.model_fields if name not in _EXEC_TEXTS}
    return ExecResult(
        **values,
        stdout_bytes=_either(message.stdout, message.stdout_base64),
        stderr_bytes=_either(message.stderr, message.stderr_base64),
    )


def read_process(message: AskProcessResponse) -> ProcessState:
    """Return what an answer says about a program. Raises ValueError: some of it is not base64."""
    output = ProcessOutput(
        base64.b64decode(message.stdout_base64),
        base64.b64decode(message.stderr_base64),
        message.stdout_truncated,
        message.stderr_truncated,
    )
    return ProcessState(message.running, message.code, message.unwritten, output)


def read_stdin(message: ExecRequest | AskProcessRequest) -> bytes:
    """Return the input in a request. Raises ValueError: it is not base64."""
    return _either(message.stdin, message.stdin_base64)


def _either(text: str, encoded: str | None) -> bytes:
    return text.encode("utf-8", "surrogatepass") if encoded is None else base64.b64decode(encoded, validate=True)
