"""The messages of the server: SandboxFusion's, and those of sessions.

`/run_code` and `/run_jupyter` have SandboxFusion's fields, enums and defaults (its OpenAPI description at commit
469de08); `/sessions` is ours. Unknown fields are ignored, as SandboxFusion does. What our answers have more, the
fields of `CommandRunResult` after `stderr`, clients of SandboxFusion ignore. What differs is told in `convert`.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, Field, FiniteFloat
from pydantic_core import PydanticKnownError

from toolgym.tools.sandbox.base import ExecutionStatus

MAX_ITEMS = 10_000
"""Files, names of files, variables, cells or words of one request. Each is looked at, while all others wait."""

MAX_PROBLEMS = 20
"""Problems of one request that are listed."""

MAX_ECHO = 200
"""Characters of a bad value that are sent back."""

MAX_DEPTH = 50
"""Levels of a value from a program that are sent, where it is nested so deep that it cannot be sent as it is."""

Language = Literal[
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust", "cuda",
    "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest", "verilog",
    "python_gpu", "lean", "swift", "racket",
    "python2", "gtest", "react",  # the official SDK's, beyond its server's
    "c", "js",  # ours
]  # fmt: skip
"""Languages that a request may name; see `toolgym.tools.sandbox.local.languages` for those that can run."""

COMPILED = frozenset({"cpp", "c", "go", "java", "rust", "csharp", "swift", "D_ut", "verilog", "junit"})
"""Languages with a compiler's run of its own, to which `compile_timeout` applies."""


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


class ExecRequest(_Request):
    """Body of `POST /sessions/{id}/exec`."""

    argv: list[str] = Field(min_length=1, max_length=MAX_ITEMS)
    timeout: FiniteFloat = Field(30.0, gt=0, description="seconds")
    stdin: str = ""

    @pydantic.field_validator("argv")
    @classmethod
    def _no_nul(cls, argv: list[str]) -> list[str]:
        if any("\0" in word for word in argv):
            raise ValueError("an argument cannot hold a NUL character")
        return argv


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
    cpu_seconds: float | None = None
    memory_bytes: int | None = None


# ---------------------------------------------------------------------------------------------------------- requests

Problem = dict[str, Any]
"""One entry of a 422 answer, in FastAPI's shape: `type`, `loc`, `msg`, and `input` where it is short."""


class InvalidRequest(Exception):
    """A request that is to be answered with 422.

    Args:
        problems: what is wrong with it, at least one.
    """

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem.get("msg")) for problem in problems))
        self.problems = problems


def problem(loc: Sequence[str | int], message: str, kind: str = "value_error", value: Any = None) -> InvalidRequest:
    """A request with one problem, at `loc` below the body."""
    found: Problem = {"type": kind, "loc": ["body", *loc], "msg": message}
    return InvalidRequest([found | _echo(value)])


RequestType = TypeVar("RequestType", bound=_Request)


def parse(model: type[RequestType], body: bytes) -> RequestType:
    """Read a request.

    Raises:
        InvalidRequest: the body is not JSON, or not of the model's shape.
    """
    if not body or body == b"null":  # as FastAPI says it
        raise InvalidRequest([{"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}])
    try:
        return model.model_validate_json(body)
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        if details[0]["type"] != "json_invalid":
            raise InvalidRequest(_problems(details)) from None
    # The fast parser refuses lone surrogates, which the standard one lets through.
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            [
                {
                    "type": "json_invalid",
                    "loc": ["body", getattr(error, "pos", 0)],
                    "msg": "JSON decode error",
                    "input": {},
                    "ctx": {"error": getattr(error, "msg", str(error))},
                }
            ]
        ) from None
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        raise InvalidRequest(_problems(error.errors(include_url=False, include_context=False))) from None


_FASTAPI = {"model_type": "model_attributes_type"}
"""Kinds of problems that FastAPI, which lets pydantic read attributes too, calls otherwise."""


def _problems(details: Sequence[Any]) -> list[Problem]:
    return [
        {"type": _FASTAPI.get(found["type"], found["type"]), "loc": ["body", *found["loc"]], "msg": found["msg"]}
        | _echo(found["input"])
        for found in details[:MAX_PROBLEMS]
    ]


def _echo(value: Any) -> dict[str, Any]:
    """The bad value, where it is short. (FastAPI sends all of it back, be it megabytes.)"""
    if isinstance(value, str):
        return {"input": value} if len(value) <= MAX_ECHO else {}
    if isinstance(value, int) and value.bit_length() > 64:  # too long to be read as a number everywhere
        return {}
    if isinstance(value, float) and not math.isfinite(value):
        return {}
    return {"input": value} if isinstance(value, bool | int | float) else {}


def encode(message: BaseModel | Mapping[str, Any]) -> bytes:
    """An answer as UTF-8 JSON.

    What JSON in UTF-8 cannot hold is mended: lone surrogates become U+FFFD, numbers that are not finite null.
    """
    try:
        if isinstance(message, BaseModel):
            return message.__pydantic_serializer__.to_json(message)
        return json.dumps(message, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):  # a text that cannot be encoded, and pydantic's serialization error, are too
        return json.dumps(_mended(message, MAX_DEPTH), ensure_ascii=False).encode()


def _mended(value: Any, depth: int) -> Any:
    """The same value in what JSON and UTF-8 can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0:
        return "..."
    if isinstance(value, BaseModel):
        return {name: _mended(getattr(value, name), depth - 1) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {_mended(str(key), depth): _mended(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item, depth - 1) for item in value]
    return str(value)
