"""Servers that answer as they are told, byte by byte: real sockets, for what a real server seldom does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

FUSION = {"paths": {"/run_code": {}, "/run_jupyter": {}}}
TOOLGYM = {"paths": {"/run_code": {}, "/run_jupyter": {}, "/sessions": {}, "/sessions/{id}/cells": {}}}
RAN = {
    "status": "Success",
    "message": "",
    "compile_result": None,
    "run_result": {"status": "Finished", "execution_time": 0.01, "return_code": 0, "stdout": "42\n", "stderr": ""},
    "executor_pod_name": None,
    "files": {},
}
"""What SandboxFusion says of a program that printed 42."""

SESSION = {"id": "w0-abc", "alive": True, "cells": 0, "age": 0, "idle": 0, "idle_timeout": 60}
CELL = {"status": "ok", "stdout": "42\n"}

HANG = "hang"
"""Never answer."""


class Request(NamedTuple):
    """What came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = bytes | str | Callable[[Request], Any]


def answer(body: object, status: int = 200, **headers: str) -> bytes:
    """A whole answer. Underscores in headers' names stand for hyphens."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


class StandIn:
    """A server. `answers` are given one after another, the last one again and again.

    It describes itself at /openapi.json and answers /v1/ping, unless `answers` are for these too (`everything`).
    """

    def __init__(self, *answers: Answer, about: Any = FUSION, everything: bool = False) -> None:
        self.answers = list(answers)
        self.about = about
        self.everything = everything
        self.seen: list[Request] = []
        self.asked: list[Request] = []
        self.lost = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [one.path for one in self.seen]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer, task in tuple(self._connections.items()):
                writer.transport.abort()
                task.cancel()
            await self._server.wait_closed()
            self._server = None
        while self._connections:
            await asyncio.sleep(0.001)

    async def __aenter__(self) -> StandIn:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[writer] = task
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    said = await self._reply(await self._receive(reader))
                    if said == HANG:
                        await reader.read()  # until the client goes away
                        self.lost += 1
                        return
                    writer.write(said)
                    await writer.drain()
                    if not said.startswith(b"HTTP/1.1 ") or b"Content-Length: " not in said:
                        return
                    head, _, body = said.partition(b"\r\n\r\n")
                    if len(body) < int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]):
                        return
        finally:
            writer.transport.abort()
            del self._connections[writer]

    async def _receive(self, reader: asyncio.StreamReader) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Request(method, path, headers, body)

    async def _reply(self, request: Request) -> Any:
        if not self.everything and request.path in ("/openapi.json", "/v1/ping"):
            self.asked.append(request)
            return answer(self.about) if request.path == "/openapi.json" else answer("pong")
        self.seen.append(request)
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(given):
            given = await given(request)
        return given
