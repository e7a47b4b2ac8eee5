"""Common parts of the calls that a sandbox answers: how they find it, its streams of events, and errors."""

from __future__ import annotations

import asyncio
import base64
import codecs
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from toolgym.tools.sandbox.base import Session
from toolgym.tools.sandbox.e2b.connect import E2bRefusedError, Emit, Form, answered, same, stream
from toolgym.tools.sandbox.e2b.contexts import CodeContext
from toolgym.tools.sandbox.e2b.file_agent import HOME
from toolgym.tools.sandbox.e2b.interpreter import PING
from toolgym.tools.sandbox.e2b.programs import E2bProgram
from toolgym.tools.sandbox.e2b.sandboxes import CLOSE_DEADLINE, ENDED_KEPT, E2bSandbox, Sandboxes, SandboxState
from toolgym.tools.sandbox.opensandbox.config import OpenSandboxServerConfig
from toolgym.tools.serving.json_bodies import encode
from toolgym.tools.serving.routes import Call, Handler, Operation, Route

TOKEN = "X-EXECD-ACCESS-TOKEN"
PROXY = "/v1/sandboxes/{id}/proxy"
EXECD = 44772
"""The port by which clients call a sandbox; here it is a part of the path."""

LONG_LINE = 64 * 1024
"""Characters of a line that are held back for its end; after that, only so many as a mark may have."""

_HELD = 64
_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")


@dataclass
class Run:
    """A command, a cell, or a command of a shell session; the last two have a `context` and run in a `task`.

    Of a background command the end of its output is kept, `log`, and how many bytes were `dropped` before it.
    """

    content: str
    context: CodeContext | None = None
    is_background: bool = False
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    started: float = field(default_factory=time.time)
    finished: float | None = None
    exit_code: int | None = None
    error: str = ""
    log: bytearray = field(default_factory=bytearray)
    dropped: int = 0
    program: E2bProgram | None = None
    task: asyncio.Task[None] | None = None

    def end(self, exit_code: int | None, error: str = "") -> None:
        self.finished, self.exit_code, self.error = time.time(), exit_code, error

    async def keep(self, message: Mapping[str, Any], most: int) -> None:
        """Take an event of its program: the last bytes of its output are kept, at most so many."""
        for data in message["event"].get("data", {}).values():
            self.log += base64.b64decode(data)
        beyond = max(0, len(self.log) - most)
        del self.log[:beyond]
        self.dropped += beyond

    def last_event(self) -> Mapping[str, Any]:
        """Return the event of its end. An exit code has no field: clients read it from an error's value."""
        if self.exit_code:
            return failure("CommandExecError", str(self.exit_code), [self.error or f"exit status {self.exit_code}"])
        return {"type": "execution_complete", "execution_time": int((time.time() - self.started) * 1000)}


class OpenSandbox(E2bSandbox):
    """A sandbox of a client of OpenSandbox, with its runs by their names, and the contexts that are shell sessions."""

    def __init__(self, owner: str, session: Session, about: Mapping[str, Any], seconds: float) -> None:
        super().__init__(owner, session, about, seconds)
        self.runs: dict[str, Run] = {}
        self.shells: set[str] = set()

    @property
    def env(self) -> Mapping[str, str]:
        return {"HOME": HOME, "USER": "user", "LOGNAME": "user", **self.about["envVars"]}

    def begin(self, run: Run) -> Run:
        """Keep a run; those that ended first are forgotten."""
        self.runs[run.name] = run
        for name in [name for name, each in self.runs.items() if each.finished is not None][:-ENDED_KEPT]:
            del self.runs[name]
        return run

    async def close(self) -> None:
        await super().close()
        tasks = [run.task for run in self.runs.values() if run.is_background and run.task is not None]
        if tasks:  # each ends with its program; those of the foreground belong to their calls
            await asyncio.wait(tasks, timeout=CLOSE_DEADLINE)


Handled = Callable[[OpenSandbox, Call], Awaitable[web.StreamResponse]]


class ExecdPart:
    """A part of the calls that sandboxes answer."""

    def __init__(self, boxes: Sandboxes[OpenSandbox], config: OpenSandboxServerConfig) -> None:
        self.boxes, self.config = boxes, config

    def route(self, path: str, **methods: Handled) -> Route:
        """Make the route of a path. Its handlers get the sandbox, which runs, and whose token was shown."""

        def finding(handle: Handled) -> Handler:
            async def handler(call: Call) -> web.StreamResponse:
                box = self.boxes.find(call.params["id"])
                if box is None or box.over:
                    raise E2bRefusedError("not_found", f"sandbox {call.params['id'][:100]} does not exist")
                if not same(call.request.headers.get(TOKEN, ""), box.token or ""):
                    raise E2bRefusedError("unauthenticated", f"the header {TOKEN} should be that of the endpoint")
                if box.state is SandboxState.PAUSED:
                    raise E2bRefusedError("aborted", f"sandbox {box.name} is paused; resume it first")
                return await handle(box, call)

            return handler

        operations = {method: Operation(spoken(finding(handle))) for method, handle in methods.items()}
        return Route(f"{PROXY}/{EXECD}{path}", operations, public=True)

    async def stream(
        self, call: Call, produce: Callable[[Emit], Awaitable[None]], cut: asyncio.Event
    ) -> web.StreamResponse:
        return await stream(call, _EVENTS, produce, cut, self.config.write_timeout, ping=PING)


def spoken(handler: Handler) -> Handler:
    """Make a handler whose errors are answers in OpenSandbox's form, and which sends a request's id back."""
    answering = answered(handler, lambda refused: refused.code.upper())

    async def speaking(call: Call) -> web.StreamResponse:
        response, request_id = await answering(call), call.request.headers.get("X-Request-ID")
        if request_id is not None and not response.prepared:
            response.headers["X-Request-ID"] = request_id
        return response

    return speaking


def bad(message: str) -> E2bRefusedError:
    """Make the answer for a request that cannot be understood."""
    return E2bRefusedError("invalid_argument", message)


def failure(name: str, value: str, traceback: list[str]) -> Mapping[str, Any]:
    return {"type": "error", "error": {"ename": name, "evalue": value, "traceback": traceback}}


def _event(message: Mapping[str, Any]) -> bytes:
    return b"data: " + encode({**message, "timestamp": int(time.time() * 1000)}) + b"\n\n"


def _refusal(refused: E2bRefusedError | None) -> bytes:
    return b"" if refused is None else _event(failure("CommandExecError", str(refused), [str(refused)]))


_EVENTS = Form("text/event-stream", _event, {"type": "ping", "text": "pong"}, _refusal)


class Lines:
    """Emits output as OpenSandbox does: an event for each line, without its end; an empty line is its end alone."""

    def __init__(self, emit: Emit) -> None:
        self._emit, self._rest = emit, {"stdout": "", "stderr": ""}
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._rest}

    async def take(self, message: Mapping[str, Any]) -> None:
        """Take an event of a program, whose output is bytes in base64."""
        for name, data in message["event"].get("data", {}).items():
            await self.feed(name, self._decoders[name].decode(base64.b64decode(data)))

    async def feed(self, name: str, text: str) -> None:
        *lines, rest = _LINE_END.split(self._rest[name] + text)
        for line in lines:
            await self._emit({"type": name, "text": line or "\n"})
        if len(rest) > LONG_LINE:
            await self._emit({"type": name, "text": rest[:-_HELD]})
            rest = rest[-_HELD:]
        self._rest[name] = rest

    async def finish(self, mark: str = "\0") -> str:
        """Emit what has no end yet, and return what stands behind the mark in `stdout`."""
        self._rest["stdout"], _, behind = self._rest["stdout"].partition(mark)
        for name, rest in self._rest.items():
            if rest.rstrip("\r"):
                await self._emit({"type": name, "text": rest.rstrip("\r")})
        return behind
