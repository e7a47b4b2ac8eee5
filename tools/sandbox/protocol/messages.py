"""The messages that clients and servers of a sandbox exchange: SandboxFusion's, and those of sessions.

`/run_code` and `/run_jupyter` have SandboxFusion's fields, enums and defaults (its OpenAPI description at commit
469de08); `/sessions` is ours. Unknown fields are ignored, as SandboxFusion does. Our answers have further fields, those
of `CommandRunResult` after `stderr`, which clients of SandboxFusion ignore. `conversions` lists what differs.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, Field, FiniteFloat
from pydantic_core import PydanticKnownError

from toolgym.tools.sandbox.base import ExecutionStatus
from toolgym.tools.sandbox.names import MAX_FOLDERS
from toolgym.tools.sandbox.options import Network

MAX_ITEMS = 10_000
"""Files, names of files, variables, cells or words of one request. The server checks each while other requests wait."""

MAX_FORKS = 1024
"""Forks that one call may ask for."""

Language = Literal[
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust", "cuda",
    "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog",
    "python_gpu", "lean", "swift", "racket",
    "python2", "gtest", "react",  # the official SDK's, beyond its server's
    "c", "js",  # ours
]  # fmt: skip
"""Languages that a request may name; see `toolgym.tools.sandbox.local.host.languages` for those that can run."""

COMPILED = frozenset({"cpp", "c", "go", "java", "rust", "csharp", "swift", "D_ut", "verilog", "junit", "scala"})
"""Languages with a compiler's run of its own; `compile_timeout` applies to that."""


def _few(value: Any) -> Any:
    """Refuse a long mapping before its items are looked at: pydantic does so only after all of them."""
    if isinstance(value, dict) and len(value) > MAX_ITEMS:
        known = {"field_type": "Dictionary", "max_length": MAX_ITEMS, "actual_length": len(value)}
        raise PydanticKnownError("too_long", known)
    return value


_Items = TypeVar("_Items")
_Few = Annotated[_Items, pydantic.BeforeValidator(_few)]


class _Request(BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore")


class _Response(BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="null")


# ---------------------------------------------------------------------------------------------------- SandboxFusion


class CommandRunStatus(enum.StrEnum):
    """How one command ended."""

    FINISHED = "Finished"
    ERROR = "Error"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"


class RunStatus(enum.StrEnum):
    """How a request ended: all commands with return code 0, one of them not, or the sandbox failed."""

    SUCCESS = "Success"
    FAILED = "Failed"
    SANDBOX_ERROR = "SandboxError"


class RunCodeRequest(_Request):
    """Body of `/run_code`."""

    compile_timeout: FiniteFloat = Field(10, description="compile timeout for compiled languages")
    run_timeout: FiniteFloat = Field(10, description="code run timeout")
    memory_limit_MB: int = Field(-1, description="maximum memory allowed in megabytes")
    code: str = Field(description="the code to run", examples=['print("hello")'])
    stdin: str | None = Field(None, description="optional string to pass into stdin", examples=[""])
    language: Language = Field(description="the language or execution mode to run the code", examples=["python"])
    files: _Few[dict[str, str | None]] = Field(
        {}, max_length=MAX_ITEMS, description="a dict from file path to base64 encoded file content"
    )
    fetch_files: list[str] = Field(
        [], max_length=MAX_ITEMS, description="a list of file paths to fetch after code execution"
    )
    env: _Few[dict[str, str]] = Field(
        {}, max_length=MAX_ITEMS, description="further environment variables (not in SandboxFusion's API)"
    )


class CommandRunResult(_Response):
    """How one command went. The fields after `stderr` are not SandboxFusion's."""

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


class RunCodeResponse(_Response):
    """Answer of `/run_code`."""

    status: RunStatus
    message: str
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


class RunJupyterRequest(_Request):
    """Body of `/run_jupyter`."""

    cells: list[str] = Field(
        max_length=MAX_ITEMS, description="list of code blocks to run in jupyter notebook", examples=[["a = 1", "a"]]
    )
    cell_timeout: FiniteFloat = Field(0, description="max run time for each of the cells; 0: none of its own")
    total_timeout: FiniteFloat = Field(45, description="max run time for all the cells")
    memory_limit_MB: int = Field(-1, description="maximum memory allowed in megabytes")
    kernel: Literal["python3"] = "python3"
    files: _Few[dict[str, str]] = Field(
        {}, max_length=MAX_ITEMS, description="a dict from file path to base64 encoded file content"
    )
    fetch_files: list[str] = Field(
        [], max_length=MAX_ITEMS, description="a list of file paths to fetch after code execution"
    )


class CellRunResult(_Response):
    """How one cell of `/run_jupyter` went."""

    stdout: str
    stderr: str
    display: list[dict[str, Any]]
    error: list[dict[str, Any]]


class RunJupyterResponse(_Response):
    """Answer of `/run_jupyter`."""

    status: RunStatus
    message: str
    driver: CommandRunResult | None = None
    cells: list[CellRunResult] = []
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


# ---------------------------------------------------------------------------------------------------------- sessions


class CreateSessionRequest(_Request):
    """Body of `POST /sessions`; an empty body is fine."""

    memory_limit_MB: int = Field(-1, description="memory of the whole session in MiB; -1: the server's default")
    file_mb: int | None = Field(None, gt=0, description="size of one file in MiB; null: the server's default")
    disk_mb: int | None = Field(None, gt=0, description="all its files together in MiB; null: the server's default")
    inodes: int | None = Field(None, gt=0, description="files and folders at once; null: the server's default")
    network: Network | None = Field(None, description="what it reaches; null: what the server's programs do")
    folders: list[str] = Field([], max_length=MAX_FOLDERS, description="further folders to write to: absolute names")
    files: dict[str, str] = Field({}, max_length=MAX_ITEMS, description="files to begin with: relative name to base64")
    env: _Few[dict[str, str]] = Field({}, max_length=MAX_ITEMS, description="further environment variables")


class SessionInfo(_Response):
    """A session."""

    id: str
    alive: bool
    cells: int = Field(description="cells run in it so far, those of the session it was forked from included")
    age: float = Field(description="seconds since it was made")
    idle: float = Field(description="seconds since its last call ended; 0 during one")
    idle_timeout: float = Field(description="seconds of idleness after which it is closed")


class ForkRequest(_Request):
    """Body of `POST /sessions/{id}/fork`; an empty body asks for one fork of the state as it is now."""

    checkpoint: str | None = Field(None, description="the checkpoint to go on from; null: the state as it is now")
    n: int = Field(1, ge=1, le=MAX_FORKS, description="how many forks to make")


class ForkResponse(SessionInfo):
    """The first fork, and all of them."""

    sessions: list[SessionInfo] = Field(description="all forks, the first one included")


class CheckpointNames(_Response):
    """The checkpoints of a session, oldest first."""

    checkpoints: list[str]


class CellRequest(_Request):
    """Body of `POST /sessions/{id}/cells`."""

    code: str
    timeout: FiniteFloat = Field(30.0, gt=0, description="seconds")


class CellErrorMessage(_Response):
    """The exception that ended a cell."""

    name: str
    value: str
    traceback: list[str]


class CellResponse(_Response):
    """What came of a cell: a `CellResult`."""

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    result: str | None = None
    display: list[dict[str, Any]] = []
    error: CellErrorMessage | None = None
    duration: float = 0.0
    alive: bool = True
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    message: str = ""


_Words = Annotated[list[str], Field(max_length=MAX_ITEMS)]


class StartProcessRequest(_Request):
    """Body of `POST /sessions/{id}/processes`."""

    argv: _Words | str = Field(description="the program and its arguments, or one text for a shell")
    cwd: str | None = Field(None, description="folder to start in, relative to the session's, or absolute")
    env: _Few[dict[str, str]] = Field({}, max_length=MAX_ITEMS, description="further environment variables")
    user: str | None = Field(None, description="name of the user to run as; null: the session's")
    pty: tuple[int, int] | None = Field(None, description="rows and columns of a terminal; null: it has pipes")


class ExecRequest(_Request):
    """Body of `POST /sessions/{id}/exec`."""

    argv: _Words | str = Field(description="the program and its arguments, or one text for a shell")
    cwd: str | None = Field(None, description="folder to start in, relative to the session's, or absolute")
    env: _Few[dict[str, str]] = Field({}, max_length=MAX_ITEMS, description="further environment variables")
    user: str | None = Field(None, description="name of the user to run as; null: the session's")
    timeout: FiniteFloat = Field(30.0, gt=0, description="seconds")
    stdin: str = Field("", description="text for its standard input")
    stdin_base64: str | None = Field(None, description="instead of `stdin`: bytes, as base64")


class ProcessInfo(_Response):
    """A program that runs beside the interpreter of a session."""

    process: str = Field(description="its id")
    pid: int = Field(description="its number, as programs of the session see it")


class AskProcessRequest(_Request):
    """Body of `POST /sessions/{id}/processes/{process}`: what to do with it, in this order."""

    stdin: str = Field("", description="text for its standard input")
    stdin_base64: str | None = Field(None, description="instead of `stdin`: bytes, as base64")
    close_stdin: bool = Field(False, description="close its standard input")
    size: tuple[int, int] | None = Field(None, description="new rows and columns of its terminal")
    signal: int | None = Field(None, ge=1, le=64, description="signal to send to it and its group; 9: to its session")
    until: Literal["exit", "output", "stdin"] | None = Field(
        None, description="wait until it ends, has printed something, or has taken its input"
    )
    wait: FiniteFloat = Field(0.0, ge=0, description="most seconds to wait")
    read: bool = Field(False, description="take what it has printed since it was read last")


class AskProcessResponse(_Response):
    """How a program is, and what was read."""

    running: bool
    code: int | None = Field(None, description="its exit code, negative for a signal; null: it runs")
    unwritten: int = Field(0, description="bytes that it has not taken from its standard input yet")
    stdout_base64: str = ""
    stderr_base64: str = ""
    stdout_truncated: bool = False
    stderr_truncated: bool = False


class FilesRequest(_Request):
    """Body of `POST /sessions/{id}/files`: what to do with a file or folder."""

    action: Literal["list", "stat", "walk", "mkdir", "move", "remove"] = Field(
        description="`walk` lists all below a folder"
    )
    path: str = Field(description="relative to the session's folder, or absolute")
    to: str | None = Field(None, description="the new name, for `move`")
    parents: bool = Field(False, description="for `mkdir`: make the folders that it lies in, too")
    exist_ok: bool = Field(False, description="for `mkdir`: that it is there already is fine")
    recursive: bool = Field(False, description="for `remove`: with all that is in it")


class FileEntry(_Response):
    """One file, folder or link."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    size: int
    mode: int = Field(description="permission bits")
    changed: float = Field(description="seconds since 1970")
    target: str | None = Field(None, description="what a link points to")


class FilesResponse(_Response):
    """What was listed; nothing for other actions."""

    files: list[FileEntry] = []


class PackRequest(_Request):
    """Body of `POST /sessions/{id}/pack`: which files below a folder to read, some MiB together."""

    path: str
    names: list[str] = Field(max_length=MAX_ITEMS)


class ExecResponse(_Response):
    """What came of a program run beside the interpreter of a session."""

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    return_code: int | None = None
    duration: float = 0.0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    message: str = ""
    stdout_base64: str | None = Field(None, description="standard output as base64, where it is no text")
    stderr_base64: str | None = Field(None, description="standard error, likewise")
