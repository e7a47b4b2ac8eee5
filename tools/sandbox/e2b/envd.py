"""Calls of a running sandbox: finding it, its programs (`process.Process`) and files (`filesystem.Filesystem`)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
import secrets
import signal
from collections.abc import Mapping
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
    answered,
    deadline_of,
    gone,
    read_frame,
    read_frames,
    read_json,
    same,
    section,
    stream,
)
from toolgym.tools.sandbox.e2b.programs import E2bProgram, size_of
from toolgym.tools.sandbox.e2b.sandboxes import E2bSandbox, Sandboxes, SandboxState
from toolgym.tools.sandbox.processes import MAX_INPUT
from toolgym.tools.serving.routes import Call, Handler, Operation, Route
from toolgym.tools.serving.transport import answer

POLL = 0.05
"""Seconds between two looks for events of a watch that is streamed."""

MOST_WATCHES = 64
INPUT_PATIENCE = 600.0
"""Seconds that a stream of input may be silent."""

_SIGNALS = {"SIGNAL_SIGTERM": signal.SIGTERM, "SIGNAL_SIGKILL": signal.SIGKILL}
_LABEL = re.compile(r"[0-9]+-(i[0-9a-f]{24})\.")


class Finder:
    """Finds the sandbox that a request means, and checks that its client may use it."""

    def __init__(self, boxes: Sandboxes) -> None:
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


class Envd:
    """Answers Connect calls about programs and files."""

    def __init__(self, boxes: Sandboxes, finder: Finder, config: E2bServerConfig) -> None:
        self._boxes, self._finder, self._config = boxes, finder, config

    def routes(self) -> list[Route]:
        process: dict[str, Handler] = {
            "Start": self.start,
            "Connect": self.follow,
            "List": self.list_programs,
            "SendInput": self.send_input,
            "CloseStdin": self.close_stdin,
            "Update": self.update,
            "SendSignal": self.send_signal,
        }
        files: dict[str, Handler] = {
            "Stat": self.by_agent("stat", "path"),
            "MakeDir": self.by_agent("mkdir", "path"),
            "Move": self.by_agent("move", "source", "destination"),
            "Remove": self.by_agent("remove", "path"),
            "ListDir": self.list_folder,
            "WatchDir": self.watch,
            "CreateWatcher": self.create_watcher,
            "GetWatcherEvents": self.events,
            "RemoveWatcher": self.remove_watcher,
        }
        named = {f"/process.Process/{name}": handler for name, handler in process.items()}
        named |= {f"/filesystem.Filesystem/{name}": handler for name, handler in files.items()}
        routes = [
            Route(path, {"POST": Operation(answered(handler, rpc=True))}, public=True)
            for path, handler in named.items()
        ]
        input_stream = Operation(answered(self.stream_input, rpc=True))
        return [*routes, Route("/process.Process/StreamInput", {"POST": input_stream}, public=True, streamed=True)]

    async def _box(self, call: Call) -> E2bSandbox:
        box = await self._finder.find(call)
        check_user(user_of(call.request))
        return box

    # ------------------------------------------------------------------ programs

    async def start(self, call: Call) -> web.StreamResponse:
        """Start a program and stream its events. The client's deadline kills it, a client that goes does not."""
        box, message = await self._box(call), read_frame(call.body)

        async def events(emit: Emit) -> None:
            async with self._boxes.gate.slot():
                program = await E2bProgram.start(box.session, message, box.env)
            box.add(program)
            await program.follow(emit, begins=True, seconds=deadline_of(call))

        return await stream(call, PROGRAM, events, box.ended, self._config.write_timeout)

    async def follow(self, call: Call) -> web.StreamResponse:
        box, message = await self._box(call), read_frame(call.body)

        async def events(emit: Emit) -> None:
            await _selected(box, message).follow(emit)

        return await stream(call, PROGRAM, events, box.ended, self._config.write_timeout)

    async def list_programs(self, call: Call) -> web.Response:
        rows = [
            {"config": dict(program.config), "pid": program.pid} | ({"tag": program.tag} if program.tag else {})
            for program in (await self._box(call)).running
        ]
        return answer({"processes": rows})

    async def send_input(self, call: Call) -> web.Response:
        message = read_json(call.body)
        await self._put(_selected(await self._box(call), message), message.get("input"))
        return answer({})

    async def stream_input(self, call: Call) -> web.StreamResponse:
        box = await self._box(call)

        async def taken(emit: Emit) -> None:
            program: E2bProgram | None = None
            async for message in read_frames(call.request, 2 * MAX_INPUT, INPUT_PATIENCE):
                if "start" in message:
                    program = _selected(box, section(message, "start"))
                if "data" in message:
                    if program is None:
                        raise E2bRefusedError("invalid_argument", "the first message should name the process")
                    await self._put(program, section(message, "data").get("input"))
            await emit({})

        return await stream(call, SILENT, taken, box.ended, self._config.write_timeout)

    async def close_stdin(self, call: Call) -> web.Response:
        await _selected(await self._box(call), read_json(call.body)).close_stdin()
        return answer({})

    async def update(self, call: Call) -> web.Response:
        message = read_json(call.body)
        program = _selected(await self._box(call), message)
        await program.resize(*size_of(message))
        return answer({})

    async def send_signal(self, call: Call) -> web.Response:
        message = read_json(call.body)
        number = _SIGNALS.get(message.get("signal", ""))
        if number is None:
            known = ", ".join(_SIGNALS)
            raise E2bRefusedError("invalid_argument", f"signal should be {known}, got {message.get('signal')!r}")
        await _selected(await self._box(call), message).signal(number, wait=number == signal.SIGKILL)
        return answer({})

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

    def by_agent(self, op: str, *names: str) -> Handler:
        """Make the handler of a call that the sandbox's file agent answers as it is."""

        async def handler(call: Call) -> web.Response:
            box, message = await self._box(call), read_json(call.body)
            meta, _ = await box.files.ask(op, b"", **{name: _path(message, name) for name in names})
            return answer({"entry": meta["entry"]} if "entry" in meta else {})

        return handler

    async def list_folder(self, call: Call) -> web.Response:
        box, message = await self._box(call), read_json(call.body)
        depth = message.get("depth") or 1
        if type(depth) is not int or depth < 1:
            raise E2bRefusedError("invalid_argument", f"depth should be at least 1, got {depth!r}")
        return answer({"entries": await box.files.entries("list", path=_path(message), depth=depth)})

    async def watch(self, call: Call) -> web.StreamResponse:
        box, message = await self._box(call), read_frame(call.body)

        async def events(emit: Emit) -> None:
            name = await _watch(box, message)
            try:
                await emit({"start": {}})
                while True:
                    await asyncio.sleep(POLL)
                    box.check_running()
                    for event in await _events(box, name):
                        await emit({"filesystem": event})
            finally:
                await _unwatch(box, name)

        return await stream(call, WATCH, events, box.ended, self._config.write_timeout)

    async def create_watcher(self, call: Call) -> web.Response:
        box, message = await self._box(call), read_json(call.body)
        return answer({"watcherId": await _watch(box, message)})

    async def events(self, call: Call) -> web.Response:
        box, message = await self._box(call), read_json(call.body)
        return answer({"events": await _events(box, str(message.get("watcherId")))})

    async def remove_watcher(self, call: Call) -> web.Response:
        box, message = await self._box(call), read_json(call.body)
        await _unwatch(box, str(message.get("watcherId")), strict=True)
        return answer({})


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


def _path(message: Mapping[str, Any], name: str = "path") -> str:
    path = message.get(name)
    if not isinstance(path, str) or not path:
        raise E2bRefusedError("invalid_argument", f"{name} should be a path, got {path!r}")
    return path


def _no_watcher(name: str) -> E2bRefusedError:
    return E2bRefusedError("not_found", f"watcher with id {name[:100]} not found")


async def _watch(box: E2bSandbox, message: Mapping[str, Any]) -> str:
    """Begin to watch a folder, and return the watch's name."""
    if len(box.watches) >= MOST_WATCHES:
        raise E2bRefusedError("resource_exhausted", f"a sandbox has at most {MOST_WATCHES} watches at once")
    name = f"w{secrets.token_hex(8)}"
    await box.files.ask("watch", id=name, path=_path(message), recursive=bool(message.get("recursive")))
    box.watches[name] = bool(message.get("includeEntry"))
    return name


async def _events(box: E2bSandbox, name: str) -> list[dict[str, Any]]:
    if name not in box.watches:
        raise _no_watcher(name)
    return await box.files.entries("events", id=name, entries=box.watches[name])


async def _unwatch(box: E2bSandbox, name: str, *, strict: bool = False) -> None:
    if box.watches.pop(name, None) is None:
        if strict:
            raise _no_watcher(name)
    elif not box.ended.is_set():
        with contextlib.suppress(E2bRefusedError, SandboxError):
            await box.files.ask("unwatch", id=name)
