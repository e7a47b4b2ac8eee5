"""Calls of a running sandbox: finding it, its programs (`process.Process`) and files (`filesystem.Filesystem`)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import web

from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.e2b.config import E2bServerConfig
from toolgym.tools.sandbox.e2b.connect import (
    PROGRAM,
    SILENT,
    WATCH,
    E2bRefusedError,
    Emit,
    Form,
    deadline_of,
    gone,
    read_frame,
    read_frames,
    read_json,
    route,
    same,
    section,
    stream,
)
from toolgym.tools.sandbox.e2b.programs import E2bProgram, size_of
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox, Sandboxes, SandboxState
from toolgym.tools.sandbox.processes import MAX_INPUT
from toolgym.tools.serving.routes import Call, Handler, Route
from toolgym.tools.serving.transport import answer

POLL = 0.05
"""Seconds between two looks for events of a watch that is streamed."""

INPUT_PATIENCE = 600.0
"""Seconds that a stream of input may be silent."""

_SIGNALS = {"SIGNAL_SIGTERM": signal.SIGTERM, "SIGNAL_SIGKILL": signal.SIGKILL}
_BY_AGENT = ("Stat", "MakeDir", "Move", "Remove", "ListDir", "CreateWatcher", "GetWatcherEvents", "RemoveWatcher")
"""The calls that the sandbox's file agent answers."""

_LABEL = re.compile(r"[0-9]+-(i[0-9a-f]{24})\.")


class Finder:
    """Finds the sandbox that a request means, and checks that its client may use it."""

    def __init__(self, boxes: Sandboxes[E2bSandbox]) -> None:
        self._boxes = boxes

    def names_one(self, call: Call) -> bool:
        """Return whether a request names a sandbox, and so is one for envd."""
        return bool(self._name(call.request))

    async def find(self, call: Call, *, token: bool = True, wake: bool = True) -> E2bSandbox:
        """Return the sandbox, running. With `token`, its token must be shown, else it may be left out; with
        `wake`, a sandbox that resumes by itself does.

        Raises E2bRefusedError: 502 if it does not run, 401 for a wrong token. The time does not tell tokens apart.
        """
        name = self._name(call.request)
        box = self._boxes.find(name)
        if box is None:
            raise gone(name)
        shown = call.request.headers.get("X-Access-Token")
        if box.token is not None and (token or shown is not None) and not same(shown or "", box.token):
            raise E2bRefusedError("unauthenticated", "unauthorized access, please provide a valid access token")
        if wake and box.state is SandboxState.PAUSED and box.about["autoResume"]:
            await box.resume()
        box.check_running()
        check_user(user_of(call.request))
        return box

    @staticmethod
    def _name(request: web.BaseRequest) -> str:
        name = request.headers.get("E2b-Sandbox-Id", "")
        for text in (request.headers.get("Host", ""), user_of(request)):
            match = _LABEL.match(text)
            if not name and match is not None:
                name = match[1]
        return name or request.headers.get("X-Access-Token", "").partition("-")[0]


def user_of(request: web.BaseRequest) -> str:
    """Return the user that a request names by Basic authorization, else nothing."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def check_user(name: str) -> None:
    """Raise E2bRefusedError for a user that sandboxes do not have."""
    if name not in ("", "user") and not _LABEL.match(f"{name}."):
        raise E2bRefusedError(
            "unimplemented", f"programs and files are those of 'user' here; there is no user {name!r}"
        )


Message = Mapping[str, Any]
Unary = Callable[[E2bSandbox, Message], Awaitable[Message | None]]
"""Carries out a call with one answer; None is the empty one."""

Streaming = Callable[[Call, E2bSandbox, Message, Emit], Awaitable[None]]


class Envd:
    """Answers Connect calls about programs and files."""

    def __init__(self, boxes: Sandboxes[E2bSandbox], finder: Finder, config: E2bServerConfig) -> None:
        self._boxes, self._finder, self._config = boxes, finder, config

    def routes(self) -> list[Route]:
        process: dict[str, Handler] = {
            "Start": self._streaming(PROGRAM, self.start),
            "Connect": self._streaming(PROGRAM, self.follow),
            "StreamInput": self._streaming(SILENT, self.stream_input),
            "List": self._unary(self.list_programs),
            "SendInput": self._unary(self.send_input),
            "CloseStdin": self._unary(self.close_stdin),
            "Update": self._unary(self.update),
            "SendSignal": self._unary(self.send_signal),
        }
        files: dict[str, Handler] = {"WatchDir": self._streaming(WATCH, self.watch)}
        files |= {name: self._unary(partial(_by_agent, name)) for name in _BY_AGENT}
        named = {f"/process.Process/{name}": handler for name, handler in process.items()}
        named |= {f"/filesystem.Filesystem/{name}": handler for name, handler in files.items()}
        streamed = "/process.Process/StreamInput"
        return [route(path, POST=handler)._replace(streamed=path == streamed) for path, handler in named.items()]

    def _unary(self, work: Unary) -> Handler:
        async def handler(call: Call) -> web.Response:
            box = await self._finder.find(call)
            return answer(await work(box, read_json(call.body)) or {})

        return handler

    def _streaming(self, form: Form, work: Streaming) -> Handler:
        async def handler(call: Call) -> web.StreamResponse:
            box = await self._finder.find(call)
            produce = partial(work, call, box, {} if form is SILENT else read_frame(call.body))
            return await stream(call, form, produce, box.ended, self._config.write_timeout)

        return handler

    # ------------------------------------------------------------------ programs

    async def start(self, call: Call, box: E2bSandbox, message: Message, emit: Emit) -> None:
        """Start a program and stream its events. The client's deadline kills it, a client that goes does not."""
        async with self._boxes.gate.slot():
            program = await E2bProgram.start(box.session, message, box.env)
        box.add(program)
        await program.follow(emit, begins=True, seconds=deadline_of(call))

    async def follow(self, _: Call, box: E2bSandbox, message: Message, emit: Emit) -> None:
        await _selected(box, message).follow(emit)

    async def list_programs(self, box: E2bSandbox, _: Message) -> Message:
        rows = [
            {"config": dict(program.config), "pid": program.pid} | ({"tag": program.tag} if program.tag else {})
            for program in box.running
        ]
        return {"processes": rows}

    async def send_input(self, box: E2bSandbox, message: Message) -> None:
        await self._put(_selected(box, message), message.get("input"))

    async def stream_input(self, call: Call, box: E2bSandbox, _: Message, emit: Emit) -> None:
        program: E2bProgram | None = None
        async for message in read_frames(call.request, 2 * MAX_INPUT, INPUT_PATIENCE):
            if "start" in message:
                program = _selected(box, section(message, "start"))
            if "data" in message:
                if program is None:
                    raise E2bRefusedError("invalid_argument", "the first message should name the process")
                await self._put(program, section(message, "data").get("input"))
        await emit({})

    async def close_stdin(self, box: E2bSandbox, message: Message) -> None:
        await _selected(box, message).close_stdin()

    async def update(self, box: E2bSandbox, message: Message) -> None:
        await _selected(box, message).resize(*size_of(message))

    async def send_signal(self, box: E2bSandbox, message: Message) -> None:
        number = _SIGNALS.get(message.get("signal", ""))
        if number is None:
            known = ", ".join(_SIGNALS)
            raise E2bRefusedError("invalid_argument", f"signal should be {known}, got {message.get('signal')!r}")
        await _selected(box, message).signal(number, wait=number == signal.SIGKILL)

    async def _put(self, program: E2bProgram, data: Any) -> None:
        for name in ("stdin", "pty"):
            if isinstance(data, dict) and isinstance(data.get(name), str):
                try:
                    content = base64.b64decode(data[name])
                except binascii.Error as error:
                    raise E2bRefusedError("invalid_argument", f"input should be base64: {error}") from None
                await program.write(content, pty=name == "pty", timeout=self._config.write_timeout)
                return
        raise E2bRefusedError("invalid_argument", "input should be an object with stdin or pty")

    # ------------------------------------------------------------------ files

    async def watch(self, _: Call, box: E2bSandbox, message: Message, emit: Emit) -> None:
        watcher = await _by_agent("CreateWatcher", box, message)
        try:
            await emit({"start": {}})
            while True:
                await asyncio.sleep(POLL)
                box.check_running()
                for event in (await box.files.ask("GetWatcherEvents", watcher)).get("events", ()):
                    await emit({"filesystem": event})
        finally:
            if not box.ended.is_set():
                with contextlib.suppress(E2bRefusedError, SandboxError):
                    await box.files.ask("RemoveWatcher", watcher)


async def _by_agent(name: str, box: E2bSandbox, message: Message) -> Message:
    fields = await box.files.ask(name, message)
    del fields["content"]
    return fields


def _selected(box: E2bSandbox, message: Mapping[str, Any]) -> E2bProgram:
    """Return the program that a message names by its id or its tag. Raises E2bRefusedError."""
    selector = section(message, "process")
    pid, tag = selector.get("pid"), selector.get("tag")
    program = box.programs.get(pid) if type(pid) is int else None
    if program is None and tag:
        program = next((each for each in reversed(box.programs.values()) if each.tag == tag), None)
    if program is None:
        what = f"pid {pid}" if pid is not None else f"tag {tag}"
        raise E2bRefusedError("not_found", f"process with {what} not found")
    return program
