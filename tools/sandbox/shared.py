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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from toolgym.tools.concurrency.deadline import shielded, with_deadline
from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ConfigError, EpisodeError, SandboxClosedError, SandboxError
from toolgym.tools.sandbox.base import CellResult, ExecResult, ExecutionResult, Sandbox, Session
from toolgym.tools.sandbox.files import FileAction, FileInfo, Row
from toolgym.tools.sandbox.local.host.sandbox import LocalSandbox
from toolgym.tools.sandbox.options import RunRequest, SessionRequest
from toolgym.tools.sandbox.processes import Command, Process, ProcessRequest, ProcessState

T = TypeVar("T")

_log = logging.getLogger("toolgym.tools.sandbox")

LINGER = 60.0
"""Seconds that the local sandbox stays when its last handle is closed, unless that handle says otherwise."""

CLOSE_TIMEOUT = 30.0
"""Seconds that the sandbox gets to close."""


class _Host:
    """A local sandbox, and the event loop in a thread that it belongs to.

    Attributes:
        sandbox: the local sandbox.
        shares: those of the handles that are open; one that is forgotten leaves by itself. When nothing refers to this
            object any more, its thread closes the sandbox and ends.
        started: whether the thread was asked for anything.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        sandbox = LocalSandbox(**options)  # raises here, in the caller's thread, when it cannot be

        async def close() -> None:
            await sandbox.close()

        self.sandbox = sandbox
        self.shares: weakref.WeakSet[_Share] = weakref.WeakSet()
        self.started = False
        self._warmed = False
        self._pid = os.getpid()
        # Closing the sandbox ends its calls, with results that say why: they are not cancelled before.
        self._thread = EventLoopThread(
            name="toolgym-sandbox", on_close=close, close_timeout=CLOSE_TIMEOUT, cancel_first=False
        )

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child of the process that made it."""
        return self._pid != os.getpid()

    def warm(self) -> None:
        """Start the template processes, once, without waiting for them."""

        async def start() -> None:
            try:
                await self.sandbox.start(full=True)
            except SandboxError as error:
                _log.debug("the sandbox did not start ahead of the first call, which raises this: %s", error)

        if not self._warmed and not self.is_inherited:
            self._warmed = True
            with contextlib.suppress(EpisodeError):  # closed meanwhile
                self.submit(start())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin to run a coroutine on the sandbox's loop. Raises `EpisodeError` when the thread has ended."""
        self.started = True
        return self._thread.submit(coroutine)

    async def call(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await what a function returns, on the sandbox's loop; cancelling the caller cancels it there.

        Raises:
            SandboxClosedError: the sandbox is closed, or this is a forked child of the process that made it.
        """
        self.require_own()

        async def run() -> T:
            return await begin()

        self.started = True
        try:
            return await self._thread.call(run())
        except EpisodeError:
            raise SandboxClosedError("the sandbox is closed") from None

    def require_own(self) -> None:
        """Raise `SandboxClosedError` in a forked child of the process that made it."""
        if self.is_inherited:
            raise SandboxClosedError(
                f"this sandbox was made in process {self._pid}, and this is a forked child, {os.getpid()}: threads do "
                "not survive a fork; make the sandbox in the process that uses it"
            )

    def stop(self) -> None:
        """Begin to do as `close`, without waiting; errors go to the log."""
        self._thread.stop()

    async def close(self) -> None:
        """Close the sandbox and end the thread. If the caller is cancelled meanwhile, it happens all the same.

        Raises:
            LoopTimeoutError: it did not end in time.
            Exception: what closing the sandbox raised; the thread has ended.
        """
        await self._thread.aclose()


class _Lingering(NamedTuple):
    """A host whose last handle is closed, and what ends it later."""

    host: _Host
    end: concurrent.futures.Future[None]


_hosts: weakref.WeakValueDictionary[str, _Host] = weakref.WeakValueDictionary()
_lingering: dict[str, _Lingering] = {}
_lock = threading.Lock()
_is_child = multiprocessing.parent_process() is not None
"""Whether this process may end without its exit handlers, as children of `multiprocessing` do: nothing lingers then."""


def _forget_hosts() -> None:
    """In a forked child: its parent's threads are not there, and its parent's sandboxes are not the child's to end."""
    global _lock, _is_child
    _lock = threading.Lock()  # another thread may have held it
    _is_child = True
    _hosts.clear()
    _lingering.clear()


os.register_at_fork(after_in_child=_forget_hosts)


def _join(key: str, options: Mapping[str, Any]) -> _Share:
    """Return a new share of the host with these options, which is made where there is none."""
    with _lock:
        lingering = _lingering.pop(key, None)
        if lingering is not None:
            lingering.end.cancel()
        host = _hosts.get(key)
        if host is None:
            host = _hosts[key] = _Host(options)
        share = _Share(host)
        host.shares.add(share)
        return share


def _take_lingering(key: str) -> _Host | None:
    """Return a host that lingers, which is now the caller's to end; None where a handle has it again."""
    with _lock:
        lingering = _lingering.pop(key, None)
        if lingering is None:
            return None
        _hosts.pop(key, None)
        return lingering.host


async def _end_later(key: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    host = _take_lingering(key)
    if host is not None:
        host.stop()


class _Share:
    """One handle's part of a host: the runs and sessions that end with it.

    Attributes:
        host: the host; None when the handle is closed.
    """

    def __init__(self, host: _Host) -> None:
        self.host: _Host | None = host
        self._runs: set[asyncio.Task[Any]] = set()  # this one and the next are of the sandbox's loop
        self._sessions: set[Session] = set()
        self._ended = False

    def require(self) -> _Host:
        """Return the host. Raises `SandboxClosedError` when the handle is closed."""
        if self.host is None:
            raise SandboxClosedError("the sandbox is closed")
        return self.host

    async def call(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `_Host.call`. What the end of this share cut short is no result."""
        result = await self.require().call(begin)
        self.require()
        return result

    async def ask(self, asking: Coroutine[Any, Any, T]) -> T:
        """Await a request to a session on the caller's loop, as a `LocalSession` takes it. Errors are those of `call`.

        It is what a model waits for in every turn: handing it to the sandbox's loop and back costs as much as itself.
        """
        try:
            self.require().require_own()
            result = await asking
        finally:
            asking.close()
        self.require()
        return result

    async def run(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As `call`, for what the end of this share cancels."""

        async def tracked() -> T:
            task = asyncio.current_task()
            assert task is not None
            if self._ended:  # between this call and its turn
                raise SandboxClosedError("the sandbox is closed")
            self._runs.add(task)
            try:
                return await begin()
            finally:
                self._runs.discard(task)

        return await self.call(tracked)

    async def opened(self, opening: Callable[[], Coroutine[Any, Any, Sequence[Session]]]) -> list[Session]:
        """Return the sessions that a coroutine of the sandbox's loop makes.

        They may be there when the caller is cancelled; then they are closed, as no one else can.
        """
        made: list[Session] = []

        async def keep() -> None:
            made.extend(await opening())
            self._sessions.update(made)

        try:
            await self.run(keep)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):  # the sandbox ends, and the sessions with it
                await shielded(asyncio.gather(*(self.close_session(one) for one in made)))
            raise
        return [SharedSession(self, one) for one in made]

    async def close_session(self, session: Session) -> None:
        """Close a session of the sandbox's loop."""

        async def close() -> None:
            await session.close()
            self._sessions.discard(session)

        await self.call(close)

    async def close(self, key: str, linger: float) -> None:
        """End the runs and sessions; and, where this is the last share, the host too, now or in `linger` seconds.

        It happens even if the caller is cancelled meanwhile.
        """
        host, self.host = self.host, None
        if host is None or host.is_inherited:
            return
        with _lock:
            host.shares.discard(self)
            others, stays = bool(host.shares), False
            if not others and linger and host.started and not _is_child:
                with contextlib.suppress(EpisodeError):  # the interpreter ends, and the thread has ended before
                    _lingering[key] = _Lingering(host, host.submit(_end_later(key, linger)))
                    stays = True
            if not others and not stays:
                _hosts.pop(key, None)
        if not others and not stays:
            await host.close()
            return
        with contextlib.suppress(EpisodeError):  # likewise
            ending = asyncio.wrap_future(host.submit(with_deadline(self._end(), CLOSE_TIMEOUT)))
            await asyncio.wait({ending})
            ending.result()

    async def _end(self) -> None:
        self._ended = True
        runs = [*self._runs]
        for task in runs:
            task.cancel()
        # A cell has its result when its session is closed. To cancel it would wait until the program heeds that.
        await asyncio.gather(*(one.close() for one in self._sessions))
        self._sessions.clear()
        if runs:
            await asyncio.wait(runs)


class SharedSandbox(Sandbox):
    """Shares one `LocalSandbox` with every other `SharedSandbox` of the same options in this process.

    Template processes cost memory and one to three seconds to start, and one set of them is enough for a process,
    however many tools and event loops it has. The set stays for a while when the last handle is closed, and the next
    handle with the same options finds it there; the end of the interpreter ends it. In a child of `multiprocessing`
    and in a forked process nothing stays, as these may end without a chance to end it. A handle that is forgotten
    instead of closed leaves nothing either.

    Args:
        linger: seconds that the local sandbox stays when this handle is closed as the last one; 0: it ends with
            the handle. `end_lingering` ends it sooner.
        options: those of `LocalSandbox`.

    Raises:
        SandboxUnavailableError: the machine cannot give the isolation that the options ask for.
        ConfigError: an option is not known or out of range.
    """

    def __init__(self, *, linger: float = LINGER, **options: Any) -> None:
        if not linger >= 0:
            raise ConfigError(f"linger must be at least 0 seconds, got {linger!r}")
        self._linger = linger
        self._key = repr(sorted(options.items()))
        self._share = _join(self._key, options)

    @staticmethod
    async def end_lingering() -> None:
        """End the local sandboxes of this process that have no open handle any more, and wait until they are gone.

        Raises:
            Exception: what closing one of them raised.
        """
        hosts = [_take_lingering(key) for key in [*_lingering]]
        await asyncio.gather(*(host.close() for host in hosts if host is not None))

    @property
    def local(self) -> LocalSandbox:
        """The sandbox behind it."""
        return self._share.require().sandbox

    def warm(self) -> None:
        """Start the template processes now, without waiting for them: the first call finds them there."""
        self._share.require().warm()

    async def execute(self, request: RunRequest) -> ExecutionResult:
        sandbox = self.local
        return await self._share.run(lambda: sandbox.execute(request))

    async def open_session(self, request: SessionRequest) -> Session:
        sandbox = self.local

        async def opening() -> list[Session]:
            return [await sandbox.open_session(request)]

        (session,) = await self._share.opened(opening)
        return session

    async def close(self) -> None:
        """Kill what still runs for this handle and close its sessions; other handles may stay open."""
        await self._share.close(self._key, self._linger)


class SharedSession(Session):
    """A session of a `SharedSandbox`."""

    def __init__(self, share: _Share, inner: Session) -> None:
        self._share, self._inner = share, inner

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def alive(self) -> bool:
        return self._inner.alive

    async def run_cell(self, code: str, *, timeout: float = 30.0) -> CellResult:
        return await self._share.ask(self._inner.run_cell(code, timeout=timeout))

    async def _exec(self, command: Command, stdin: bytes, timeout: float) -> ExecResult:
        return await self._share.call(lambda: self._inner._exec(command, stdin, timeout))

    async def _start(self, command: Command) -> Process:
        return SharedProcess(self._share, await self._share.call(lambda: self._inner._start(command)))

    async def write_file(self, name: str, data: bytes) -> None:
        await self._share.ask(self._inner.write_file(name, data))

    async def read_file(self, name: str) -> bytes:
        return await self._share.ask(self._inner.read_file(name))

    async def _act(self, action: FileAction, name: str, rest: Mapping[str, Any]) -> Sequence[FileInfo]:
        return await self._share.call(lambda: self._inner._act(action, name, rest))

    async def _pack(self, name: str, names: Sequence[str]) -> Sequence[bytes | None]:
        return await self._share.call(lambda: self._inner._pack(name, names))

    async def _unpack(self, name: str, rows: Sequence[Row], data: bytes) -> None:
        await self._share.call(lambda: self._inner._unpack(name, rows, data))

    @property
    def checkpoints(self) -> tuple[str, ...]:
        return self._inner.checkpoints

    async def _fork(self, name: str | None, n: int) -> list[Session]:
        return await self._share.opened(lambda: self._inner.fork(name, n=n))

    async def _checkpoint(self, name: str) -> None:
        await self._share.call(lambda: self._inner.checkpoint(name))

    async def _drop_checkpoint(self, name: str) -> None:
        await self._share.call(lambda: self._inner.drop_checkpoint(name))

    async def close(self) -> None:
        with contextlib.suppress(SandboxClosedError):  # the sandbox has ended, and the session with it
            await self._share.close_session(self._inner)


class SharedProcess(Process):
    """A program in the background of a `SharedSession`."""

    def __init__(self, share: _Share, inner: Process) -> None:
        self._share, self._inner = share, inner

    @property
    def pid(self) -> int:
        return self._inner.pid

    async def ask(self, request: ProcessRequest) -> ProcessState:
        return await self._share.call(lambda: self._inner.ask(request))

    async def close(self) -> None:
        with contextlib.suppress(SandboxClosedError):  # the sandbox has ended, and the process with it
            await self._share.call(self._inner.close)
