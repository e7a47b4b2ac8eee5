"""The messages of `/sessions`, which is ours, and what SandboxFusion's (`fusion`) have in common with them."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, Field, FiniteFloat
from pydantic_core import PydanticCustomError, PydanticKnownError

from toolgym.tools.sandbox.base import CellResult, ExecResult, ExecutionStatus
from toolgym.tools.sandbox.files import FileAction, FileInfo
from toolgym.tools.sandbox.names import MAX_FOLDERS
from toolgym.tools.sandbox.options import Idle, Network
from toolgym.tools.sandbox.processes import ProcessOutput, ProcessState

MAX_ITEMS = 10_000
"""Files, names of files, variables, cells or words of one request. The server checks each while other requests wait."""

SKIPPED_FILES = "IGNORE_THIS_FILE"
"""Files with this in their name are not written, as in SandboxFusion."""

MAX_FORKS = 1024


def _few(value: Any) -> Any:
    """Refuse a long mapping before its items are looked at: pydantic does so only after all of them."""
    if isinstance(value, dict) and len(value) > MAX_ITEMS:
        known = {"field_type": "Dictionary", "max_length": MAX_ITEMS, "actual_length": len(value)}
        raise PydanticKnownError("too_long", known)
    return value


def _without_skipped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: content for name, content in value.items() if SKIPPED_FILES not in str(name)}
    return value


_Items = TypeVar("_Items")
Few = Annotated[_Items, pydantic.BeforeValidator(_few)]
Files = Annotated[_Items, pydantic.BeforeValidator(_without_skipped), pydantic.BeforeValidator(_few)]
"""Files of a request, by name."""


def _decode(value: Any) -> Any:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise PydanticCustomError("base64_decode", "Input should be base64: {error}", {"error": str(error)}) from None


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


Base64 = Annotated[
    bytes,
    pydantic.BeforeValidator(_decode),
    pydantic.PlainSerializer(encode_base64, return_type=str),
    pydantic.WithJsonSchema({"type": "string"}),
]
"""Bytes that a message holds as base64."""


class WireMessage(BaseModel):
    """A message. Numbers that are not finite are written as null."""

    model_config = pydantic.ConfigDict(extra="ignore", ser_json_inf_nan="null")


class CreateSessionRequest(WireMessage):
    """Body of `POST /sessions`; an empty body is fine."""

    memory_limit_MB: int = Field(-1, description="memory of the whole session in MiB; -1: the server's default")
    file_mb: int | None = Field(None, gt=0, description="size of one file in MiB; null: the server's default")
    disk_mb: int | None = Field(None, gt=0, description="all its files together in MiB; null: the server's default")
    inodes: int | None = Field(None, gt=0, description="files and folders at once; null: the server's default")
    network: Network | None = Field(None, description="what it reaches; null: what the server's programs do")
    folders: list[str] = Field([], max_length=MAX_FOLDERS, description="further folders to write to: absolute names")
    recover: bool | None = Field(
        None, description="whether a cell that ends the interpreter leaves the variables as before it; null: no"
    )
    idle: Idle | None = Field(None, description="what threads do while nothing runs in it; null: they pause")
    files: dict[str, Base64] = Field(
        {}, max_length=MAX_ITEMS, description="files to begin with: relative name to base64"
    )
    env: Few[dict[str, str]] = Field({}, max_length=MAX_ITEMS, description="further environment variables")


class SessionInfo(WireMessage):
    """A session."""

    id: str
    alive: bool
    cells: int = Field(description="cells run in it so far, those of the session it was forked from included")
    age: float = Field(description="seconds since it was made")
    idle: float = Field(description="seconds since its last call ended; 0 during one")
    idle_timeout: float = Field(description="seconds of idleness after which it is closed")


class ForkRequest(WireMessage):
    """Body of `POST /sessions/{id}/fork`; an empty body asks for one fork of the state as it is now."""

    checkpoint: str | None = Field(None, description="the checkpoint to go on from; null: the state as it is now")
    n: int = Field(1, ge=1, le=MAX_FORKS, description="how many forks to make")


class ForkResponse(SessionInfo):
    """The first fork, and all of them."""

    sessions: list[SessionInfo] = Field(description="all forks, the first one included")


class CheckpointNames(WireMessage):
    """The checkpoints of a session, oldest first."""

    checkpoints: list[str]


class CellRequest(WireMessage):
    """Body of `POST /sessions/{id}/cells`."""

    code: str
    timeout: FiniteFloat = Field(30.0, gt=0, description="seconds")


class CellResponse(pydantic.RootModel[CellResult]):
    """The result of a cell."""

    model_config = pydantic.ConfigDict(ser_json_inf_nan="null")


_Words = Annotated[list[str], Field(max_length=MAX_ITEMS)]


class _CommandRequest(WireMessage):
    argv: _Words | str = Field(description="the program and its arguments, or one text for a shell")
    cwd: str | None = Field(None, description="folder to start in, relative to the session's, or absolute")
    env: Few[dict[str, str]] = Field({}, max_length=MAX_ITEMS, description="further environment variables")
    user: str | None = Field(None, description="name of the user to run as; null: the session's")


class StartProcessRequest(_CommandRequest):
    """Body of `POST /sessions/{id}/processes`."""

    pty: tuple[int, int] | None = Field(None, description="rows and columns of a terminal; null: it has pipes")


class _InputRequest(WireMessage):
    stdin: str = Field("", description="text for its standard input")
    stdin_base64: Base64 | None = Field(None, description="instead of `stdin`: bytes, as base64")

    @property
    def input(self) -> bytes:
        return _either(self.stdin, self.stdin_base64)


class ExecRequest(_InputRequest, _CommandRequest):
    """Body of `POST /sessions/{id}/exec`."""

    timeout: FiniteFloat = Field(30.0, gt=0, description="seconds")


class ExecResponse(WireMessage):
    """The result of a program beside the interpreter of a session. Output that is no text comes as base64 too."""

    status: ExecutionStatus
    stdout: str = ""
    stderr: str = ""
    return_code: int | None = None
    duration: float = 0.0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    message: str = ""
    stdout_base64: Base64 | None = Field(None, description="standard output as base64, where it is no text")
    stderr_base64: Base64 | None = Field(None, description="standard error, likewise")

    @classmethod
    def of(cls, result: ExecResult) -> ExecResponse:
        values = {name: getattr(result, name) for name in cls.model_fields if not name.endswith("_base64")}
        return cls(
            **values,
            stdout_base64=_unless_text(result.stdout, result.stdout_bytes),
            stderr_base64=_unless_text(result.stderr, result.stderr_bytes),
        )

    def result(self) -> ExecResult:
        values = self.model_dump(exclude={"stdout_base64", "stderr_base64"})
        return ExecResult(
            **values,
            stdout_bytes=_either(self.stdout, self.stdout_base64),
            stderr_bytes=_either(self.stderr, self.stderr_base64),
        )


def _unless_text(text: str, data: bytes) -> bytes | None:
    return None if text.encode("utf-8", "replace") == data else data


def _either(text: str, data: bytes | None) -> bytes:
    return text.encode("utf-8", "surrogatepass") if data is None else data


class ProcessInfo(WireMessage):
    """A program that runs beside the interpreter of a session."""

    process: str = Field(description="its id")
    pid: int = Field(description="its number, as programs of the session see it")


class AskProcessRequest(_InputRequest):
    """Body of `POST /sessions/{id}/processes/{process}`: what to do with it, in this order."""

    close_stdin: bool = Field(False, description="close its standard input")
    size: tuple[int, int] | None = Field(None, description="new rows and columns of its terminal")
    signal: int | None = Field(None, ge=1, le=64, description="signal to send to it and its group; 9: to its session")
    until: Literal["exit", "output", "stdin"] | None = Field(
        None, description="wait until it ends, has printed something, or has taken its input"
    )
    wait: FiniteFloat = Field(0.0, ge=0, description="most seconds to wait")
    read: bool = Field(False, description="take what it has printed since it was read last")


class AskProcessResponse(WireMessage):
    """A program's state, and what was read."""

    running: bool
    code: int | None = Field(None, description="its exit code, negative for a signal; null: it runs")
    unwritten: int = Field(0, description="bytes that it has not taken from its standard input yet")
    stdout_base64: Base64 = b""
    stderr_base64: Base64 = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False

    @classmethod
    def of(cls, state: ProcessState) -> AskProcessResponse:
        output = state.output
        return cls(
            running=state.running,
            code=state.code,
            unwritten=state.unwritten,
            stdout_base64=output.stdout,
            stderr_base64=output.stderr,
            stdout_truncated=output.stdout_truncated,
            stderr_truncated=output.stderr_truncated,
        )

    def state(self) -> ProcessState:
        output = ProcessOutput(self.stdout_base64, self.stderr_base64, self.stdout_truncated, self.stderr_truncated)
        return ProcessState(self.running, self.code, self.unwritten, output)


class FilesRequest(WireMessage):
    """Body of `POST /sessions/{id}/files`: what to do with a file or folder."""

    action: FileAction = Field(description="`walk` lists all below a folder")
    path: str = Field(description="relative to the session's folder, or absolute")
    to: str | None = Field(None, description="the new name, for `move`")
    parents: bool = Field(False, description="for `mkdir`: make the folders that it lies in, too")
    exist_ok: bool = Field(False, description="for `mkdir`: that it is there already is fine")
    recursive: bool = Field(False, description="for `remove`: with all that is in it")


class FilesResponse(WireMessage):
    """Files that were listed; none for other actions."""

    files: list[FileInfo] = []


class PackRequest(WireMessage):
    """Body of `POST /sessions/{id}/pack`: which files below a folder to read, some MiB together."""

    path: str
    names: list[str] = Field(max_length=MAX_ITEMS)


def framed(head: object, data: bytes = b"") -> bytes:
    """Return a body of several files: four bytes of length, a head in JSON, and contents one after another."""
    encoded = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([len(encoded).to_bytes(4, "little"), encoded, data])


def unframed(body: bytes) -> tuple[Any, bytes]:
    """Return head and contents of such a body. Raises ValueError for any other."""
    end = 4 + int.from_bytes(body[:4], "little")
    if not 4 < end <= len(body):
        raise ValueError("a body without a head")
    try:
        return json.loads(body[4:end]), body[end:]
    except RecursionError as error:
        raise ValueError("a head with too many layers") from error
