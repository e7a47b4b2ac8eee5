"""The server's side of `inside.file_agent`: files of a sandbox, read and changed beside its cells and programs."""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import Session
from toolgym.tools.sandbox.e2b.config import OUTPUT_KEPT
from toolgym.tools.sandbox.e2b.connect import STATUS, E2bRefusedError
from toolgym.tools.sandbox.processes import Process, ProcessRequest
from toolgym.tools.sandbox.server.execute import FILE_DEADLINE

HOME = "/home/user"

PART = 256 * 1024
"""Bytes of a file that are read in one request."""

WRITE_PART = 2 * 1024 * 1024

_NONSENSE = "what the sandbox says about its files makes no sense"


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

    async def ask(
        self, op: str, message: Mapping[str, Any] | None = None, content: bytes = b"", **fields: Any
    ) -> dict[str, Any]:
        """Return the answer to a message, with its `content`.

        Raises E2bRefusedError for a file's error, and SandboxError if no answer comes.
        """
        head = json.dumps({**(message or {}), **fields, "op": op, "length": len(content)})
        # Cut short, the next answer would be this one's.
        return await shielded(self._ask(head.encode() + b"\n" + content))

    async def read(self, path: str, at: int = 0, most: int = PART) -> tuple[int, bytes]:
        """Return a file's size, and a part of it; with `most` -1, all the rest."""
        answer = await self.ask("read", path=path, at=at, most=most)
        return self.numbers(answer, "size")[0], answer["content"]

    @staticmethod
    def numbers(answer: Mapping[str, Any], *names: str) -> list[int]:
        """Return numbers of an answer, which programs of the sandbox may have made up."""
        values = [answer.get(name) for name in names]
        if not all(isinstance(value, int) and 0 <= value < 2**63 for value in values):
            raise SandboxError(_NONSENSE)
        return [int(value or 0) for value in values]

    async def write(self, path: str, data: bytes, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Write a whole file, and make the folders that it lies in."""
        answer: dict[str, Any] = {}
        for at in range(0, max(1, len(data)), WRITE_PART):
            part, last = data[at : at + WRITE_PART], at + WRITE_PART >= len(data)
            answer = await self.ask("write", content=part, path=path, at=at, last=last, metadata=dict(metadata))
        del answer["content"]
        return answer

    async def _ask(self, request: bytes) -> dict[str, Any]:
        async with self._lock:
            try:
                answer = await self._answer(request)
            except BaseException:
                process, self._process = self._process, None  # whatever comes from it now answers another request
                if process is not None:
                    await process.close()
                raise
        code = answer.get("code")
        if code is None:
            return answer
        status = 507 if code == "resource_exhausted" else None
        raise E2bRefusedError(code if code in STATUS else "internal", str(answer.get("message"))[:2000], status=status)

    async def _answer(self, request: bytes) -> dict[str, Any]:
        if self._process is None:
            argv = ["python3", "-S", "-E", "-c", source_of("file_agent.py")]
            self._process = await self._session.start(argv, cwd=HOME, env={"HOME": HOME})
        loop, received = asyncio.get_running_loop(), bytearray()
        until = loop.time() + FILE_DEADLINE
        answer: dict[str, Any] | None = None
        begin = end = OUTPUT_KEPT  # of the content, once the line before it has come
        while len(received) < end:
            left = until - loop.time()
            if left <= 0:
                raise TimeoutError(f"the files of the sandbox did not answer within {FILE_DEADLINE:g} s")
            state = await self._process.ask(ProcessRequest(data=request, until="output", wait=left, read=True))
            request = b""
            received += state.output.stdout
            if answer is None and b"\n" in state.output.stdout:
                begin = received.index(b"\n") + 1
                answer = _object(bytes(received[:begin]))
                end = begin + self.numbers(answer, "length")[0]
                del answer["length"]
            if state.output.stdout_truncated or len(received) > end:
                raise SandboxError(_NONSENSE)
            if not state.running and len(received) < end:
                raise SandboxError("the program that looks after the sandbox's files was ended; ask again")
        if answer is None:
            raise SandboxError(_NONSENSE)
        return answer | {"content": bytes(received[begin:])}


def _object(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise SandboxError(_NONSENSE)
    return answer
