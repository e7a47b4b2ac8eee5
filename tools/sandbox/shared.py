"""`SharedSandbox`: one local sandbox for a whole process, for any number of event loops and threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from toolgym.tools.concurrency.deadline import shielded, with_deadline
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxClosedError, SandboxError
from toolgym.tools.sandbox.base import ExecutionResult, Sandbox, Session
from toolgym.tools.sandbox.facts import SandboxFacts
from toolgym.tools.sandbox.local.host.sandbox import LocalSandbox
from toolgym.tools.sandbox.local.host.session import LocalSession
from toolgym.tools.sandbox.options import RunRequest, SessionRequest

T = TypeVar("T")

_log = logging.getLogger("toolgym.tools.sandbox")

LINGER = 60.0
CLOSE_TIMEOUT = 30.0


class _Host:
    """A local sandbox and its thread, which closes it and ends when nothing refers to this object any more.

    Once its last handle is closed, `ending` refers to it until it ends.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        sandbox = LocalSandbox(**options)  # raises here, in the caller's thread, when it cannot be

        self.sandbox, self.options = sandbox, options
        self.handles: weakref.WeakSet[SharedSandbox] = weakref.WeakSet()
        self.ending: concurrent.futures.Future[None] | None = None
        self._started = self._warmed = False
        self.pid = os.getpid()
        # Closing the sandbox ends its calls, with results that say why: they are not cancelled before.
        self._thread = EventLoopThread(
            name="toolgym-sandbox", on_close=lambda: sandbox.close(), close_timeout=CLOSE_TIMEOUT, cancel_first=False
        )

    @property
    def is_inherited(self) -> bool:
        return self.pid != os.getpid()

    def warm(self) -> None:

        async def start() -> None:
            try:
                await self.sandbox.start(full=True)
            except SandboxError as error:
                _log.debug("the sandbox did not start ahead of the first call, which raises this: %s", error)

        if not self._warmed and not self.is_inherited:
            self._warmed = True
            with contextlib.suppress(EpisodeError):  # it was closed
                self.submit(start())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin to run a coroutine on the sandbox's loop. Raises EpisodeError if the thread has ended."""
        self._started = True
        return self._thread.submit(coroutine)

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine on the sandbox's loop; cancelling the caller cancels it. Raises SandboxClosedError."""
        self._started = True
        try:
            return await self._thread.call(coroutine)
        except EpisodeError:
            raise SandboxClosedError("the sandbox is closed") from None

    def linger(self, seconds: float) -> bool:
        """End it later. Returns False to end it now: it did nothing yet, or this process may not let it stay."""
        if not seconds or not self._started or multiprocessing.parent_process() is not None or os.getpid() != _pid:
            return False
        with contextlib.suppress(EpisodeError):  # the interpreter ends, and the thread has ended before
            self.ending = self.submit(self._end_later(seconds))
        return self.ending is not None

    async def _end_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.leave():
            self._thread.stop()

    def leave(self) -> bool:
        """Remove it from the hosts that handles find. Returns whether it lingered; then the caller must end it."""
        with _lock:
            lingered, self.ending = self.ending is not None, None
            if lingered:
                _hosts.discard(self)
            return lingered

    async def close(self) -> None:
        """Close the sandbox and end the thread, even if the caller is cancelled."""
        await self._thread.aclose()


_hosts: weakref.WeakSet[_Host] = weakref.WeakSet()
_lock = threading.Lock()
_pid = os.getpid()
"""Children of `multiprocessing`, and forked ones, may end without their exit handlers: nothing lingers there."""


# Another thread may have held the lock.
os.register_at_fork(after_in_child=lambda: globals().update(_hosts=weakref.WeakSet(), _lock=threading.Lock()))


class SharedSandbox(Sandbox):
    """Shares one `LocalSandbox` with every other `SharedSandbox` of the same options in this process.

    Template processes cost memory and one to three seconds to start; one set of them serves all tools and event loops.
    The set stays for a while after the last handle is closed, for the next handle with the same options, at most until
    the interpreter ends. Nothing stays in a child of `multiprocessing` or a forked process, which may end without a
    chance to end it, nor for a handle that is forgotten instead of closed.

    Args:
        linger: seconds that the local sandbox stays when this handle is closed as the last one. 0: it ends with
            the handle. `end_lingering` ends it sooner.
        options: those of `LocalSandbox`.

    Raises as `LocalSandbox`.
    """

    def __init__(self, *, linger: float = LINGER, **options: Any) -> None:
        if not linger >= 0:
            raise ConfigError(f"linger must be at least 0 seconds, got {linger!r}")
        self._linger = linger
        self._runs: set[asyncio.Task[Any]] = set()  # of the sandbox's loop
        self.sessions: set[LocalSession] = set()
        with _lock:
            host = next((host for host in _hosts if host.options == options), None)
            if host is None:
                host = _Host(options)
                _hosts.add(host)
            elif host.ending is not None:
                host.ending.cancel()
                host.ending = None
            host.handles.add(self)
        self._host: _Host | None = host

    @staticmethod
    async def end_lingering() -> None:
        """End the local sandboxes of this process without an open handle, and wait until they are gone."""
        await asyncio.gather(*(host.close() for host in [*_hosts] if host.leave()))

    @property
    def local(self) -> LocalSandbox:
        return self._open_host.sandbox

    def check_open(self) -> _Host:
        """Return the host. Raises SandboxClosedError if this is closed, or a forked child of its maker."""
        host = self._open_host
        if host.is_inherited:
            raise SandboxClosedError(
                f"this sandbox was made in process {host.pid}, and this is a forked child, {os.getpid()}: threads do "
                "not survive a fork; make the sandbox in the process that uses it"
            )
        return host

    @property
    def _open_host(self) -> _Host:
        if self._host is None:
            raise SandboxClosedError("the sandbox is closed")
        return self._host

    @property
    def facts(self) -> SandboxFacts:
        return self._open_host.sandbox.facts

    def warm(self) -> None:
        """Start the template processes without waiting for them: the first call needs them."""
        self._open_host.warm()

    async def execute(self, request: RunRequest) -> ExecutionResult:
        return await self._call(lambda sandbox: sandbox.execute(request))

    async def open_session(self, request: SessionRequest) -> Session:
        opened: list[LocalSession] = []

        # The session's calls run on the caller's loop: a model waits for them in every turn, and handing one to the
        # sandbox's loop and back costs as much as the call itself.

        async def opening(sandbox: LocalSandbox) -> None:
            opened.append(await sandbox.open_session(request, self))

        try:
            await self._call(opening)
        except asyncio.CancelledError:
            if opened:  # no one else can close it
                await shielded(opened[0].close())
            raise
        return opened[0]

    async def _call(self, begin: Callable[[LocalSandbox], Coroutine[Any, Any, T]]) -> T:
        """Await a call of the sandbox, on its loop, until this handle is closed."""
        host = self.check_open()

        async def tracked() -> T:
            task = asyncio.current_task()
            assert task is not None
            if self._host is None:  # closed between this call and its turn
                raise SandboxClosedError("the sandbox is closed")
            self._runs.add(task)
            try:
                return await begin(host.sandbox)
            finally:
                self._runs.discard(task)

        result = await host.call(tracked())
        self.check_open()  # a result that the end of this handle cut short is none
        return result

    async def close(self) -> None:
        """Kill all that runs for this handle and close its sessions, even if the caller is cancelled."""
        host, self._host = self._host, None
        if host is None or host.is_inherited:
            return
        with _lock:
            host.handles.discard(self)
            ends = not host.handles and not host.linger(self._linger)
            if ends:
                _hosts.discard(host)
        if ends:
            await host.close()
            return
        with contextlib.suppress(EpisodeError):  # the interpreter ends, and the thread has ended before
            ending = asyncio.wrap_future(host.submit(with_deadline(self._end(), CLOSE_TIMEOUT)))
            await asyncio.wait({ending})
            ending.result()

    async def _end(self) -> None:
        runs = [*self._runs]
        for task in runs:
            task.cancel()
        # A cell has its result when its session is closed. To cancel it would wait until the program heeds that.
        await asyncio.gather(*(session.close() for session in [*self.sessions]))
        if runs:
            await asyncio.wait(runs)
