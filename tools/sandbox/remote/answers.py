"""What servers' answers say, whatever bytes they are.

Each reader takes a `Reply` and returns what it says, or raises `GarbledError` (it makes no sense), `CallError` (the
server failed) or `ConfigError` (the server says that the caller made a mistake).
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pydantic

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.sandbox.base import CellError, CellResult, ExecutionResult, ExecutionStatus
from toolgym.tools.sandbox.remote.caller import CallError, GarbledError, excerpt
from toolgym.tools.sandbox.remote.transport import Reply
from toolgym.tools.sandbox.server import convert, wire

M = TypeVar("M", bound=pydantic.BaseModel)

NO_SESSION = "the session is gone"


class NoFileError(Exception):
    """The session has no such file."""


class SessionGoneError(CallError):
    """The session does not exist any more."""


@dataclass(frozen=True)
class CellsResult:
    """What came of several cells run in one fresh interpreter.

    Attributes:
        status: `OK` where all cells ran, errors of theirs included; else what ended it before.
        cells: results of the cells that ran, in order. The value of a last expression is among `display`.
        duration: wall seconds, all together.
        message: what the sandbox has to say.
        files: contents of the files that were asked for and exist.
    """

    status: ExecutionStatus
    cells: tuple[CellResult, ...] = ()
    duration: float = 0.0
    message: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


def read_run_code(reply: Reply) -> ExecutionResult:
    """The answer of `/run_code`, ours or SandboxFusion's."""
    message = _read(wire.RunCodeResponse, reply)
    try:
        result = convert.read_run_code(message)
    except SandboxError as error:
        raise GarbledError(str(error)) from None
    result = replace(result, duration=finite(result.duration))
    if result.status is ExecutionStatus.SANDBOX_ERROR and not result.message:
        said = message.run_result or message.compile_result
        result = replace(result, message=(said and said.stderr) or "the server reported SandboxError")
    return result


def read_run_jupyter(reply: Reply) -> CellsResult:
    """The answer of `/run_jupyter`, ours or SandboxFusion's."""
    message = _read(wire.RunJupyterResponse, reply)
    driver = message.driver
    status = ExecutionStatus.OK
    if message.status is wire.RunStatus.SANDBOX_ERROR:
        status = ExecutionStatus.SANDBOX_ERROR
    elif driver is not None and driver.reason is not None:
        status = driver.reason
    elif driver is not None and driver.status is wire.CommandRunStatus.TIME_LIMIT_EXCEEDED:
        status = ExecutionStatus.TIMEOUT
    elif message.status is not wire.RunStatus.SUCCESS:
        status = ExecutionStatus.ERROR
    said = message.message
    if status is ExecutionStatus.SANDBOX_ERROR and not said:
        said = (driver.stderr if driver is not None else "") or "the server reported SandboxError"
    try:
        files = {name: base64.b64decode(data) for name, data in message.files.items()}
    except (binascii.Error, ValueError) as error:
        raise GarbledError(f"the answer's files are not base64: {error}") from None
    return CellsResult(
        status=status,
        cells=tuple(map(_cell, message.cells)),
        duration=finite(driver.execution_time if driver is not None else 0.0),
        message=said,
        files=files,
    )


def read_session(reply: Reply) -> wire.SessionInfo:
    """The answer to opening or forking a session."""
    info = _read(wire.SessionInfo, reply, 201)
    if (
        not info.id
        or len(info.id) > 200
        or not all(char.isascii() and (char.isalnum() or char in "-_.") for char in info.id)
    ):
        raise GarbledError(f"the answer's session id cannot be one: {info.id[:200]!r}")
    return info


def read_cell(reply: Reply) -> CellResult:
    """The answer to a cell of a session."""
    result = convert.read_cell(_read(wire.CellResponse, reply))
    return replace(result, duration=finite(result.duration))


def read_exec(reply: Reply) -> ExecutionResult:
    """The answer to a program run in a session."""
    result = convert.read_exec(_read(wire.ExecResponse, reply))
    return replace(result, duration=finite(result.duration))


def read_content(reply: Reply) -> bytes:
    """The answer to reading a file. Raises NoFileError where there is none."""
    if reply.status == 404 and _said(reply).get("reason") == "no_file":
        raise NoFileError
    _check(reply, 200)
    return reply.body


def read_nothing(reply: Reply) -> None:
    """The answer to writing a file or closing a session."""
    _check(reply, 204)


def finite(seconds: float | None) -> float:
    """A number of seconds that can be worked with."""
    return seconds if seconds is not None and math.isfinite(seconds) else 0.0


def _read(model: type[M], reply: Reply, expected: int = 200) -> M:
    _check(reply, expected)
    try:
        return model.model_validate_json(reply.body)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        where = f" at {place}" if place else ""
        raise GarbledError(f"the answer makes no sense{where}: {first['msg']}: {excerpt(reply.body)}") from None


def _check(reply: Reply, expected: int) -> None:
    """Only go on for the status that means success."""
    if reply.status == expected:
        return
    said = _said(reply)
    if reply.status == 422:
        raise ConfigError(f"the sandbox server refuses the request: {_problems(said.get('detail'))}")
    detail = said.get("detail")
    text = detail[:2000] if isinstance(detail, str) and detail else excerpt(reply.body)
    if reply.status == 404 and said.get("reason") == "no_session":
        raise SessionGoneError(f"{NO_SESSION}: {text}")
    if reply.status == 413:
        raise ConfigError(f"the sandbox server takes no request of that size: {text}")
    if 200 <= reply.status < 300:
        raise GarbledError(f"the answer has the status {reply.status} instead of {expected}")
    raise CallError(f"the sandbox server answered {reply.status}: {text}")


def _said(reply: Reply) -> Mapping[str, Any]:
    try:
        said = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _problems(detail: object) -> str:
    """What a 422 answer says, on one line."""
    found = []
    for one in detail if isinstance(detail, list) else []:
        if isinstance(one, dict):
            loc = one.get("loc")
            place = ".".join(str(part) for part in loc[1:]) if isinstance(loc, list) else ""
            found.append(f"{place}: {one.get('msg')}" if place else str(one.get("msg")))
    return "; ".join(found)[:2000] or repr(detail)[:2000]


def _cell(message: wire.CellRunResult) -> CellResult:
    error = None
    if message.error:
        first = message.error[0]
        lines = first.get("traceback")
        traceback = tuple(map(str, lines)) if isinstance(lines, list) else ()
        error = CellError(str(first.get("ename", "")), str(first.get("evalue", "")), traceback)
    return CellResult(
        status=ExecutionStatus.OK if error is None else ExecutionStatus.ERROR,
        stdout=message.stdout,
        stderr=message.stderr,
        display=tuple(message.display),
        error=error,
    )
