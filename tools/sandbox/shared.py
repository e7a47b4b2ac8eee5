"""`SharedSandbox`: one local sandbox for a whole process, for any number of event loops and threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import EpisodeError, SandboxClosedError, SandboxError
from toolgym.tools.sandbox.base import CellResult, ExecutionResult, Sandbox, Session
from toolgym.tools.sandbox.local.host.sandbox import LocalSandbox
from toolgym.tools.sandbox.options import RunRequest, SessionRequest

T = TypeVar("T")

_log = logging.getLogger("toolgym.tools.sandbox")

CLOSE_TIMEOUT = 30.0
"""Seconds that the sandbox gets to close."""


class _Host:
    """A local sandbox, and the event loop in a thread that it belongs to.

    Attributes:
        sandbox: the local sandbox.
        users: the shared sandboxes that are open; one that is forgotten leaves by itself. Without any user and session
            this object is collected, and its thread closes the sandbox.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        sandbox = LocalSandbox(**options)  # raises here, in the caller's thread, when it cannot be

        async def close() -> None:
            await sandbox.close()

        self.sandbox = sandbox
        self.users: weakref.WeakSet[SharedSandbox] = weakref.WeakSet()
        self._warmed = False
        self._pid = os.getpid()
        # Closing the sandbox ends its calls, with results that say why: they are not cancelled before.
        self._thread = EventLoopThread(
            name="toolgym-sandbox", on_close=close, close_timeout=CLOSE_TIMEOUT, cancel_first=False
        )

    def warm(self) -> None:
        """Start the template processes, once, without waiting for them."""

        async def start() -> None:
            try:
                await self.sandbox.start(full=True)
            except SandboxError as error:
                _log.debug("the sandbox did not start ahead of the first call, which raises this: %s", error)

        if not self._warmed and self._pid == os.getpid():
            self._warmed = True
            with contextlib.suppress(EpisodeError):  # closed meanwhile
                self._thread.submit(start())

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the sandbox's loop; cancelling the caller cancels it there.

        Raises:
            SandboxClosedError: the sandbox is closed, or this is a forked child of the process that made it.
        """
        if self._pid != os.getpid():
            coroutine.close()
            raise SandboxClosedError(
                f"this sandbox was made in process {self._pid}, and this is a forked child, {os.getpid()}: threads do "
                "not survive a fork; make the sandbox in the process that uses it"
            )
        try:
            return await self._thread.call(coroutine)
        except EpisodeError:
            raise SandboxClosedError("the sandbox is closed") from None

    async def opened(self, opening: Callable[[], Coroutine[Any, Any, Sequence[Session]]]) -> list[Session]:
        """Return the sessions that a coroutine of the sandbox's loop makes.

        They may be there at the moment at which the caller is cancelled; then they are closed, as no one else can.
        """
        made: list[Session] = []

        async def keep() -> None:
            made.extend(await opening())

        async def undo() -> None:
            for one in made:
                await one.close()

        try:
            await self.call(keep())
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):  # the sandbox ends, and the sessions with it
                await shielded(self.call(undo()))
            raise
        return [SharedSession(self, one) for one in made]

    async def close(self) -> None:
        """Close the sandbox and end the thread. If the caller is cancelled meanwhile, it happens all the same.

        Raises:
            LoopTimeoutError: it did not end in time.
            Exception: what closing the sandbox raised; the thread has ended.
        """
        await self._thread.aclose()


_hosts: weakref.WeakValueDictionary[str, _Host] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _forget_hosts() -> None:
    """In a forked child: its parent's threads are not there, and its parent's sandboxes are not the child's to end."""
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    _hosts.clear()


os.register_at_fork(after_in_child=_forget_hosts)


class SharedSandbox(Sandbox):
    """Shares one `LocalSandbox` with every other `SharedSandbox` of the same options in this process.

    Template processes cost memory and time to start, and one set of them is enough for a process, however many tools
    and event loops it has. The last one that closes ends them.

    Args:
        options: those of `LocalSandbox`.

    Raises:
        SandboxUnavailableError: the machine cannot give the isolation that the options ask for.
        ConfigError: an option is not known or out of range.
    """

    def __init__(self, **options: Any) -> None:
        self._key = repr(sorted(options.items()))
        with _lock:
            host = _hosts.get(self._key)
            if host is None:
                host = _hosts[self._key] = _Host(options)
            host.users.add(self)
        self._host: _Host | None = host

    @property
    def local(self) -> LocalSandbox:
        """The sandbox behind it."""
        return self._require().sandbox

    def warm(self) -> None:
        """Start the template processes now, without waiting for them: the first call finds them there."""
        self._require().warm()

    async def execute(self, request: RunRequest) -> ExecutionResult:
        host = self._require()
        return await host.call(host.sandbox.execute(request))

    async def open_session(self, request: SessionRequest) -> Session:
        host = self._require()

        async def opening() -> list[Session]:
            return [await host.sandbox.open_session(request)]

        (session,) = await host.opened(opening)
        return session

    async def close(self) -> None:
        """Release the sandbox; the last one that does closes it."""
        host, self._host = self._host, None
        if host is None:
            return
        with _lock:
            host.users.discard(self)
            if host.users:
                return
            if _hosts.get(self._key) is host:
                del _hosts[self._key]
        await host.close()

    def _require(self) -> _Host:
        if self._host is None:
            raise SandboxClosedError("the sandbox is closed")
        return self._host


class SharedSession(Session):
    """A session of a `SharedSandbox`."""

    def __init__(self, host: _Host, inner: Session) -> None:
        self._host, self._inner = host, inner

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def alive(self) -> bool:
        return self._inner.alive

    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        return await self._host.call(self._inner.run_cell(code, timeout=timeout))

    async def exec(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: str = "") -> ExecutionResult:
        return await self._host.call(self._inner.exec(argv, timeout=timeout, stdin=stdin))

    async def write_file(self, name: str, data: bytes) -> None:
        await self._host.call(self._inner.write_file(name, data))

    async def read_file(self, name: str) -> bytes:
        return await self._host.call(self._inner.read_file(name))

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return self._inner.checkpoints

    async def _fork(self, name: str | None, n: int) -> list[Session]:
        return await self._host.opened(lambda: self._inner.fork(name, n=n))

    async def _checkpoint(self, name: str) -> None:
        await self._host.call(self._inner.checkpoint(name))

    async def _drop_checkpoint(self, name: str) -> None:
        await self._host.call(self._inner.drop_checkpoint(name))

    async def close(self) -> None:
        with contextlib.suppress(SandboxClosedError):  # the sandbox has ended, and the session with it
            await self._host.call(self._inner.close())
