"""The sandboxes that the conformance suite runs on, and what its rooms share.

To test an implementation of your own, add it to `MAKERS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Callable

from tests.tools.sandbox.abuse.scene import marked
from tests.tools.sandbox.served import serving
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox import ProcessSandbox, RemoteSandbox, SharedSandbox
from toolgym.tools.sandbox.base import ExecutionStatus, Limits, Sandbox, Session
from toolgym.tools.sandbox.local import LocalSandbox, probe

CAP = 16 * 1024
LIMITS = Limits(
    memory_mb=200, processes=24, file_mb=8, disk_mb=24, inodes=500, open_files=64, output_bytes=CAP, cpu_seconds=4
)


class ThroughServer(Sandbox):
    """A local sandbox behind our server, called by the client for remote ones. All three live and end together."""

    def __init__(self, local: LocalSandbox) -> None:
        self._local = local
        self._stack = contextlib.AsyncExitStack()
        self._client: RemoteSandbox | None = None
        self._starting = asyncio.Lock()

    @property
    def template_ids(self) -> list[int]:
        return self._local.template_ids

    async def execute(self, request):
        return await (await self._ready()).execute(request)

    async def open_session(self, request):
        return await (await self._ready()).open_session(request)

    async def close(self):
        await self._stack.aclose()

    async def _ready(self) -> RemoteSandbox:
        async with self._starting:
            if self._client is None:
                await self._stack.enter_async_context(self._local)
                service = await self._stack.enter_async_context(serving(self._local))
                self._client = await self._stack.enter_async_context(RemoteSandbox(service.url))
        return self._client


def usable(level: str) -> bool:
    """Whether the level can be had with this interpreter; `uid` needs one that other users can enter."""
    try:
        LocalSandbox(level=level)
    except SandboxError as error:
        warnings.warn(f"not tested here: {error}", stacklevel=1)
        return False
    return True


def local(level: str, **rest: object) -> LocalSandbox:
    return LocalSandbox(**{"level": level, "limits": LIMITS, "preload": ("numpy",), **rest})  # type: ignore[arg-type]


LEVELS: list[str] = [level for level in probe()["levels"] if usable(level)]  # type: ignore[attr-defined]
MAKERS: dict[str, Callable[..., Sandbox]] = {"process": lambda **_: ProcessSandbox(max_output_bytes=CAP)}
for _level in LEVELS:
    MAKERS[_level] = lambda level=_level, **rest: local(level, **rest)
if LEVELS:
    MAKERS["remote"] = lambda **rest: ThroughServer(local(LEVELS[0], **rest))
ISOLATED = [name for name in MAKERS if name != "process"]
FORKING = [name for name in ISOLATED if (LEVELS[0] if name == "remote" else name) != "landlock"]
"""Where programs may start processes."""
BRANCHING = [name for name in ISOLATED if (LEVELS[0] if name == "remote" else name) == "namespaces"]
"""Where sessions can be forked."""
SHARED: dict[str, Callable[..., Sandbox]] = {}
"""The local sandbox through `SharedSandbox`, for what that passes on."""
if LEVELS:
    SHARED["shared"] = lambda **rest: SharedSandbox(
        **{"level": LEVELS[0], "limits": LIMITS, "preload": ("numpy",), **rest}
    )

TIMEOUT, OK, ERROR = ExecutionStatus.TIMEOUT, ExecutionStatus.OK, ExecutionStatus.ERROR


async def gone(mark: str, seconds: float = 30.0) -> bool:
    """Whether no process of that name is left."""
    deadline = time.monotonic() + seconds
    while marked(mark) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not marked(mark)


async def seen(mark: str, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not marked(mark) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return bool(marked(mark))


def named(mark: str) -> str:
    """A line of code that gives the process a name."""
    return f"import ctypes; ctypes.CDLL(None).prctl(15, {mark.encode()!r}, 0, 0, 0)\n"


async def forked(session: Session) -> Session:
    return await asyncio.wait_for(session.fork(), 60)
