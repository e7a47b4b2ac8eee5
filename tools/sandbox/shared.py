"""`SharedSandbox`: one local sandbox for a whole process, for any number of event loops and threads."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from toolgym.tools.deadline import shielded
from toolgym.tools.errors import SandboxError
from toolgym.tools.sandbox.base import CellResult, ExecutionResult, Sandbox, Session
from toolgym.tools.sandbox.local.sandbox import LocalSandbox

T = TypeVar("T")

_log = logging.getLogger("toolgym.tools.sandbox")

STOP_TIMEOUT = 30.0
"""Seconds that the sandbox gets to close."""


class _Host:
    """A thread with an event loop and the sandbox that belongs to it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.sandbox = LocalSandbox(**options)  # raises here, in the caller's thread, when it cannot be
        self.users = 0
        self.stopped = False
        self._pid = os.getpid()
        self._ending: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="toolgym-sandbox", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        # Our own, for the loop's default one leaves its threads to end when they like.
        executor = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="toolgym-sandbox")
        self.loop.set_default_executor(executor)
        self.loop.run_forever()
        executor.shutdown(cancel_futures=True)
        self.loop.close()

    def warm(self) -> None:
        """Start the template processes, once, without waiting for them."""

        async def start() -> None:
            try:
                await self.sandbox.start(full=True)
            except SandboxError as error:
                _log.debug("the sandbox did not start ahead of the first call: %s", error)  # which will tell it

        def begin() -> None:
            if self._warming is None and not self.stopped:
                self._warming = self.loop.create_task(start())

        if not self.stopped and self._warming is None:
            self.loop.call_soon_threadsafe(begin)

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the sandbox's loop; cancelling the caller cancels it there."""
        if self._pid != os.getpid():
            coroutine.close()
            raise SandboxError(
                f"this sandbox was made in process {self._pid}, and this is a forked child, {os.getpid()}: threads do "
                "not survive a fork; make the sandbox in the process that uses it"
            )
        if self.stopped:
            coroutine.close()
            raise SandboxError("the sandbox is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def opened(self, opening: Callable[[], Coroutine[Any, Any, Session]]) -> SharedSession:
        """The session that a coroutine of the sandbox's loop makes.

        It may be there at the moment at which the caller is cancelled; then it is closed, for nobody knows of it.
        """
        made: list[Session] = []

        async def keep() -> None:
            made.append(await opening())

        async def undo() -> None:
            for one in made:
                await one.close()

        try:
            await self.call(keep())
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):  # the sandbox ends, and the session with it
                await shielded(self.call(undo()))
            raise
        return SharedSession(self, made[0])

    def has_stopped(self) -> bool:
        """Whether it has been told to stop, asked anew: another thread may have done so meanwhile."""
        return self.stopped

    def stop_soon(self) -> None:
        """Stop without waiting, for a garbage collector that may call from any thread, this one included."""
        if not self.stopped and not self.loop.is_closed() and self._pid == os.getpid():
            self.stopped = True
            self.loop.call_soon_threadsafe(self._begin_to_stop)

    def _begin_to_stop(self) -> None:
        async def end() -> None:
            try:
                await self.sandbox.close()
            finally:
                self.loop.stop()

        self._ending = self.loop.create_task(end())  # kept, for a loop holds its tasks only weakly

    async def stop(self) -> None:
        """Close the sandbox and end the thread. For a caller that is cancelled meanwhile it happens all the same.

        Raises:
            TimeoutError: it did not end in time.
            Exception: what closing the sandbox raised; the thread has ended.
        """
        self.stop_soon()
        async with asyncio.timeout(STOP_TIMEOUT):
            while self._thread.is_alive():  # noqa: ASYNC110  a thread sets no event when it is gone
                await asyncio.sleep(0.002)
        if self._ending is not None and not self._ending.cancelled() and self._ending.done():
            self._ending.result()

    def stop_now(self) -> None:
        """End it at the end of the interpreter, where nothing can be awaited any more."""
        if self.stopped:
            self._thread.join(1.0)  # somebody is at it, but may have been cut off
        self.stopped = True
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._abandon)
            self._thread.join(STOP_TIMEOUT)

    def _abandon(self) -> None:
        self.sandbox.abandon()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.call_later(0.02, self.loop.stop)  # after the tasks have seen it


_hosts: dict[str, _Host] = {}
_lock = threading.Lock()


def _forget_hosts() -> None:
    """In a forked child: its parent's threads are not there, and its parent's sandboxes are not the child's to end."""
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    _hosts.clear()


os.register_at_fork(after_in_child=_forget_hosts)


def _give_up(key: str, host: _Host) -> bool:
    """Count one user less. Returns whether it was the last."""
    with _lock:
        host.users -= 1
        if host.users:
            return False
        if _hosts.get(key) is host:
            del _hosts[key]
        return True


def _let_go(key: str, host: _Host) -> None:
    """For a sandbox that nobody closed."""
    if _give_up(key, host):
        host.stop_soon()


@atexit.register
def _stop_all() -> None:
    """End what nobody closed, before the interpreter takes the event loops apart."""
    with _lock:
        hosts = list(_hosts.values())
        _hosts.clear()
    for host in hosts:
        host.stop_now()


class SharedSandbox(Sandbox):
    """Shares one `LocalSandbox` with every other `SharedSandbox` of the same options in this process.

    Template processes cost memory and time to start, and one set of them is enough for a process, however many tools
    and event loops it has. The last one that closes ends them.

    Args:
        options: those of `LocalSandbox`.

    Raises:
        SandboxError: the machine cannot give the isolation that the options ask for.
        ConfigError: an option is not known or out of range.
    """

    def __init__(self, **options: Any) -> None:
        self._key = repr(sorted(options.items()))
        with _lock:
            host = _hosts.get(self._key)
            if host is None:
                host = _hosts[self._key] = _Host(options)
            host.users += 1
        self._host: _Host | None = host
        self._forgotten = weakref.finalize(self, _let_go, self._key, host)
        self._forgotten.atexit = False  # then `_stop_all` does it

    @property
    def local(self) -> LocalSandbox:
        """The sandbox behind it."""
        return self._require().sandbox

    def warm(self) -> None:
        """Start the template processes now, without waiting for them: the first call finds them there."""
        self._require().warm()

    async def run(
        self,
        code: str,
        *,
        language: str = "python",
        timeout: float = 30.0,
        memory_mb: int | None = None,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch_files: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> ExecutionResult:
        host = self._require()
        return await host.call(
            host.sandbox.run(
                code,
                language=language,
                timeout=timeout,
                memory_mb=memory_mb,
                stdin=stdin,
                files=files,
                fetch_files=fetch_files,
                env=env,
            )
        )

    async def session(self) -> SharedSession:
        host = self._require()
        return await host.opened(host.sandbox.session)

    async def close(self) -> None:
        """Let go of the sandbox; whoever does so last ends it."""
        host, self._host = self._host, None
        if host is None:
            return
        self._forgotten.detach()
        if _give_up(self._key, host):
            await host.stop()

    def _require(self) -> _Host:
        if self._host is None:
            raise SandboxError("the sandbox is closed")
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

    async def fork(self) -> SharedSession:
        return await self._host.opened(self._inner.fork)

    async def close(self) -> None:
        if self._host.stopped:
            return
        try:
            await self._host.call(self._inner.close())
        except (asyncio.CancelledError, SandboxError):
            task = asyncio.current_task()
            if not self._host.has_stopped() or (task is not None and task.cancelling()):
                raise  # otherwise the sandbox has ended meanwhile, and the session with it
