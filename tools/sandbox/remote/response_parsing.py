"""Results from servers' answers, which may hold any bytes.

Readers raise `GarbledError` for nonsense, `CallError` if the server failed, `ConfigError` for the caller's mistake.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, get_args

import pydantic

from toolgym.tools.errors import ConfigError, SandboxError
from toolgym.tools.http.client import CallError, GarbledError, excerpt
from toolgym.tools.http.session import HttpResponse
from toolgym.tools.sandbox.base import CellResult, ExecResult, ExecutionResult, Limits
from toolgym.tools.sandbox.facts import FACTS_KEY, PACKAGES, ProcessRule, SandboxFacts
from toolgym.tools.sandbox.files import ERRORS, FileInfo
from toolgym.tools.sandbox.options import Network
from toolgym.tools.sandbox.processes import ProcessState
from toolgym.tools.sandbox.protocol import fusion, messages

M = TypeVar("M", bound=pydantic.BaseModel)

_LIMITS: pydantic.TypeAdapter[Limits | None] = pydantic.TypeAdapter(Limits | None)

NO_SESSION = "the session is gone"


class SessionGoneError(CallError):
    """The session does not exist any more."""


class RefusedCallError(CallError):
    """The server cannot do a call; `reason` is one of `files.ERRORS` or of `REFUSALS`."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


REFUSALS = ("unsupported", "no_room")
"""The sandbox can never do that; the session's limits, or the server's, leave no room for it."""


def read_run_code(reply: HttpResponse) -> ExecutionResult:
    message = _read(fusion.RunCodeResponse, reply)
    try:
        result = message.result()
    except SandboxError as error:
        raise GarbledError(str(error)) from None
    return replace(result, duration=finite(result.duration))


def read_sessions(reply: HttpResponse) -> list[messages.SessionInfo]:
    if "sessions" in json_object(reply):
        sessions = _read(messages.ForkResponse, reply, 201).sessions
    else:
        sessions = [_read(messages.SessionInfo, reply, 201)]
    for info in sessions:
        _check_id("session", info.id)
    return sessions


def _check_id(what: str, name: str) -> None:
    if not 0 < len(name) <= 200 or not all(char.isascii() and (char.isalnum() or char in "-_.") for char in name):
        raise GarbledError(f"the answer's {what} id cannot be one: {name[:200]!r}")


def read_cell(reply: HttpResponse) -> CellResult:
    result = _read(messages.CellResponse, reply).root
    return replace(result, duration=finite(result.duration))


def read_exec(reply: HttpResponse) -> ExecResult:
    result = _read(messages.ExecResponse, reply).result()
    return replace(result, duration=finite(result.duration))


def read_started(reply: HttpResponse) -> messages.ProcessInfo:
    info = _read(messages.ProcessInfo, reply)
    _check_id("process", info.process)
    return info


def read_process(reply: HttpResponse) -> ProcessState:
    return _read(messages.AskProcessResponse, reply).state()


def read_files(reply: HttpResponse) -> Sequence[FileInfo]:
    return _read(messages.FilesResponse, reply).files


def read_contents(reply: HttpResponse) -> tuple[Any, bytes]:
    _check(reply, 200)
    try:
        return messages.unframed(reply.body)
    except ValueError as error:
        raise GarbledError(str(error)) from None


def read_content(reply: HttpResponse) -> bytes:
    _check(reply, 200)
    return reply.body


def read_facts(reply: HttpResponse) -> SandboxFacts:
    """Read a server's facts from the description of its API. Other servers have none, and nothing is known of them."""
    value = json_object(reply).get(FACTS_KEY)
    if not isinstance(value, Mapping):
        return SandboxFacts()
    try:
        limits = _LIMITS.validate_python(value.get("limits"))
    except (pydantic.ValidationError, ConfigError):
        limits = None
    network, python, processes = value.get("network"), value.get("python"), value.get("processes")
    return SandboxFacts(
        network=network if network in get_args(Network) else None,
        limits=limits,
        python=python if isinstance(python, str) and re.fullmatch(r"\d{1,3}(\.\d{1,3})*", python) else "",
        packages=tuple(name for name in PACKAGES.values() if name in (value.get("packages") or ())),
        processes=processes if processes in get_args(ProcessRule) else None,
    )


def read_nothing(reply: HttpResponse) -> None:
    _check(reply, 204)


def finite(seconds: float | None) -> float:
    """Replace a number of seconds that is missing or not finite by 0."""
    return seconds if seconds is not None and math.isfinite(seconds) else 0.0


def _read(model: type[M], reply: HttpResponse, expected: int = 200) -> M:
    _check(reply, expected)
    try:
        return model.model_validate_json(reply.body)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        where = f" at {place}" if place else ""
        raise GarbledError(f"the answer makes no sense{where}: {first['msg']}: {excerpt(reply.body)}") from None


def _check(reply: HttpResponse, expected: int) -> None:
    if reply.status == expected:
        return
    answer = json_object(reply)
    if reply.status == 422:
        raise ConfigError(f"the sandbox server refuses the request: {_problems(answer.get('detail'))}")
    detail = answer.get("detail")
    text = detail[:2000] if isinstance(detail, str) and detail else excerpt(reply.body)
    if reply.status in (404, 409) and answer.get("reason") in (*ERRORS, *REFUSALS):
        raise RefusedCallError(text, answer["reason"])
    if reply.status == 404 and answer.get("reason") == "no_session":
        raise SessionGoneError(f"{NO_SESSION}: {text}")
    if reply.status == 413:
        raise ConfigError(f"the sandbox server takes no request of that size: {text}")
    if 200 <= reply.status < 300:
        raise GarbledError(f"the answer has the status {reply.status} instead of {expected}")
    raise CallError(f"the sandbox server answered {reply.status}: {text}")


def json_object(reply: HttpResponse) -> Mapping[str, Any]:
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _problems(detail: object) -> str:
    """Put the problems of a 422 answer on one line."""
    lines = []
    for problem in detail if isinstance(detail, list) else []:
        if isinstance(problem, dict):
            loc = problem.get("loc")
            place = ".".join(str(part) for part in loc[1:]) if isinstance(loc, list) else ""
            lines.append(f"{place}: {problem.get('msg')}" if place else str(problem.get("msg")))
    return "; ".join(lines)[:2000] or repr(detail)[:2000]
