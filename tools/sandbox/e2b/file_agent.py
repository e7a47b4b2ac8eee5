"""The server's side of `inside.file_agent`: files of a sandbox, read and changed beside its cells and programs."""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
import json
import struct
from collections.abc import Mapping
from typing import Any

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import Session
from toolgym.tools.sandbox.e2b.connect import STATUS, E2bRefusedError
from toolgym.tools.sandbox.processes import Process, ProcessRequest
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE

HOME = "/home/user"

PART = 256 * 1024
"""Bytes of one answer, well below what is kept of a program's output until it is read."""

WRITE_PART = 2 * 1024 * 1024

_HEAD = struct.Struct(">II")


@functools.cache
def source_of(name: str) -> str:
    """Return the source of a program of the folder `inside`."""
    return importlib.resources.files("toolgym.tools.sandbox.e2b.inside").joinpath(name).read_text(encoding="utf-8")


class FileAgent:
    """Asks the program, which is started when it is needed; one request after the other.

    The program runs where the sandbox's own programs run: they can end it, and forge its answers, about themselves
    alone. So answers are checked for their form.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self.generation = 0
        """Counts the programs: watches live in one of them."""

    async def ask(self, op: str, data: bytes = b"", **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Return an answer and its bytes. Raises E2bRefusedError for a file's error, SandboxError if none comes."""
        return await shielded(self._ask(op, data, fields))  # cut short, the next answer would be this one's

    async def read(self, path: str, at: int, most: int) -> tuple[dict[str, Any], bytes]:
        meta, data = await self.ask("read", path=path, at=at, most=most)
        return meta | self.numbers(meta, "size"), data

    @staticmethod
    def numbers(meta: Mapping[str, Any], *names: str) -> dict[str, int]:
        """Return numbers of an answer, which programs of the sandbox may have made up."""
        values = {name: meta.get(name) for name in names}
        if not all(isinstance(value, int | float) and 0 <= value < 2**63 for value in values.values()):
            raise SandboxError("what the sandbox says about its files makes no sense")
        return {name: int(value or 0) for name, value in values.items()}

    async def write(self, path: str, data: bytes, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Write a whole file, and make the folders that it lies in."""
        answer: dict[str, Any] = {}
        for at in range(0, max(1, len(data)), WRITE_PART):
            part, last = data[at : at + WRITE_PART], at + WRITE_PART >= len(data)
            answer, _ = await self.ask("write", part, path=path, at=at, last=last, metadata=dict(metadata))
        return answer

    async def entries(self, op: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the rows of an answer: entries of a folder, or events."""
        _, data = await self.ask(op, **fields)
        try:
            rows = json.loads(data)
        except (ValueError, RecursionError):
            rows = None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise SandboxError("what the sandbox says about its files makes no sense")
        return rows

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()

    async def _ask(self, op: str, data: bytes, fields: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        async with self._lock:
            meta, content = await self._exchange({"op": op, **fields}, data)
            parts = [content]
            while meta.get("rest"):
                meta, content = await self._exchange({"op": "more"}, b"")
                parts.append(content)
        code = meta.get("code")
        if code is not None:
            raise E2bRefusedError(code if code in STATUS else "internal", str(meta.get("message"))[:2000])
        return meta, b"".join(parts)

    async def _exchange(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        process = self._process
        if process is None:
            self.generation += 1
            argv = ["python3", "-S", "-E", "-c", source_of("file_agent.py"), str(PART)]
            process = self._process = await self._session.start(argv, cwd=HOME, env={"HOME": HOME})
        head = json.dumps(request).encode()
        try:
            return await self._answer(process, _HEAD.pack(len(head), len(data)) + head + data)
        except BaseException:
            await self.close()  # whatever comes from it now is the answer to another request
            raise

    async def _answer(self, process: Process, request: bytes) -> tuple[dict[str, Any], bytes]:
        loop = asyncio.get_running_loop()
        until = loop.time() + FILE_DEADLINE
        received = b""
        while True:
            left = until - loop.time()
            if left <= 0:
                raise TimeoutError(f"the files of the sandbox did not answer within {FILE_DEADLINE:g} s")
            state = await process.ask(ProcessRequest(data=request, until="output", wait=left, read=True))
            request = b""
            received += state.output.stdout
            if len(received) >= _HEAD.size:
                length, size = _HEAD.unpack_from(received)
                if len(received) > _HEAD.size + length + size or size > PART or state.output.stdout_truncated:
                    raise SandboxError("what the sandbox says about its files makes no sense")
                if len(received) == _HEAD.size + length + size:
                    return _meta(received[_HEAD.size : _HEAD.size + length]), received[_HEAD.size + length :]
            if not state.running:
                raise SandboxError("the program that looks after the sandbox's files was ended; ask again")


def _meta(text: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise SandboxError("what the sandbox says about its files makes no sense")
    return meta
