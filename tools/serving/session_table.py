"""The open sessions of a server: found by name, used one call at a time, removed when idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from toolgym.tools.concurrency.deadline import shielded
from toolgym.tools.errors import NoSessionError
from toolgym.tools.serving.admission import BusyError

LONGEST_PAUSE = 5.0
"""Most seconds between two looks for idle sessions."""

RETRY_AFTER = 5  # seconds

_log = logging.getLogger("toolgym.tools.serving")


class TableSession(ABC):
    """A session of one client. Its calls run one after the other, each in a block of `turn`.

    Of these at most `max_waiting` wait, each for at most `patience` seconds. `opened`, and `used`, the last call's
    beginning or end, are of the monotonic clock.
    """

    idle_timeout: float | None = None
    """Seconds without a call after which it is removed, if not its table's."""

    def __init__(self, name: str, *, patience: float, max_waiting: int) -> None:
        self.name = name
        self.opened = self.used = time.monotonic()
        self.closed = False
        self._patience, self._max_waiting = patience, max_waiting
        self._lock = asyncio.Lock()
        self._pending = self._attached = 0

    @property
    def busy(self) -> bool:
        """Whether it is not idle: a call runs or waits, or something is attached."""
        return bool(self._pending or self._attached)

    @property
    def size(self) -> int:
        """Places that it takes in its table."""
        return 1

    @property
    def over(self) -> bool:
        """Whether no call can use it any more: its table then removes it."""
        return False

    @abstractmethod
    async def close(self) -> None:
        """Free all that it holds, also while a call runs. Called again it does nothing."""

    async def delete(self) -> None:
        """End it for good, with all that is stored of it: a client removed it, or it was idle for too long."""
        await self.close()

    def touch(self) -> None:
        self.used = time.monotonic()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the calls before, and hold the session. Raises NoSessionError, BusyError."""
        self._check_open()
        if self._pending > self._max_waiting:
            raise BusyError(f"{self._max_waiting} calls wait for this session: no more are taken", 1)
        self._pending += 1
        self.touch()
        try:
            try:
                async with asyncio.timeout(self._patience if self._lock.locked() else None):
                    await self._lock.acquire()
            except TimeoutError:
                raise BusyError(f"the session was busy for {self._patience:g} s", 1) from None
            try:
                self._check_open()
                yield
            finally:
                self._lock.release()
        finally:
            self._pending -= 1
            self.touch()

    @contextlib.contextmanager
    def attached(self, most: float = float("inf")) -> Iterator[None]:
        """Keep the session from being idle, without waiting for its calls. Raises NoSessionError, BusyError."""
        self._check_open()
        if self._attached >= most:
            raise BusyError(f"{most} calls beside this session's others are under way: no more are taken", 1)
        self._attached += 1
        try:
            yield
        finally:
            self._attached -= 1
            self.touch()

    def _check_open(self) -> None:
        if self.closed:
            raise NoSessionError(self.name)


T = TypeVar("T", bound=TableSession)


class SessionTable(Generic[T]):
    """The open sessions of a server, which take at most `limit` places (`TableSession.size`).

    `idle_timeout` is the shortest of all, if sessions have others.
    """

    def __init__(self, limit: int, idle_timeout: float) -> None:
        self.limit, self.idle_timeout = limit, idle_timeout
        self._sessions: dict[str, T] = {}
        self._reserved = 0
        self._ending: set[T] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Places that are taken: by sessions that are open, opening (`room`) or still closing."""
        return self._reserved + sum(session.size for session in (*self._sessions.values(), *self._ending))

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._sessions.values()))

    def start(self) -> None:
        """Start to remove idle sessions, on the running event loop."""
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Close all sessions. All that they store stays."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        await asyncio.gather(*(self._end(session, session.close) for session in self))

    @contextlib.contextmanager
    def room(self, places: int = 1) -> Iterator[None]:
        """Reserve places for the sessions that the block opens. Raises BusyError."""
        if len(self) + places > self.limit:
            reason = f"{len(self)} of at most {self.limit} sessions are open: no more are taken"
            raise BusyError(reason, RETRY_AFTER)
        self._reserved += places
        try:
            yield
        finally:
            self._reserved -= places

    def add(self, session: T) -> T:
        """Take in a session with a new name, in a block of `room` or right after it."""
        assert session.name not in self._sessions
        self._sessions[session.name] = session
        return session

    def __contains__(self, name: str) -> bool:
        return name in self._sessions

    def find(self, name: str) -> T:
        """Return a session, which goes on being idle; see `TableSession.touch`. Raises NoSessionError."""
        session = self._sessions.get(name)
        if session is None:
            raise NoSessionError(name)
        return session

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[T]:
        """Hold a session; other calls wait. One that is over then is removed. Raises NoSessionError, BusyError."""
        session = self.find(name)
        try:
            async with session.turn():
                yield session
        finally:
            await self._remove_if_over(session)

    @contextlib.asynccontextmanager
    async def use_beside(self, name: str, most: float = float("inf")) -> AsyncIterator[T]:
        """Use a session for a call that waits for no other, beside at most `most`, as `use` does."""
        session = self.find(name)
        try:
            with session.attached(most):
                yield session
        finally:
            await self._remove_if_over(session)

    async def remove(self, name: str) -> None:
        """End a session for good, also while a call runs in it. Raises NoSessionError."""
        session = self.find(name)
        await self._end(session, session.delete)

    async def discard(self, name: str) -> None:
        """End a session for good, if it exists."""
        with contextlib.suppress(NoSessionError):
            await self.remove(name)

    async def _remove_if_over(self, session: T) -> None:
        if session.over:
            await self._end(session, session.delete)

    async def _end(self, session: T, ending: Callable[[], Awaitable[None]]) -> None:
        """Take a session out and await its end. It counts until it has given back all that it holds."""
        if self._sessions.get(session.name) is not session:
            return  # another caller ends it
        del self._sessions[session.name]
        session.closed = True
        self._ending.add(session)
        try:
            await shielded(ending())
        except Exception:  # noqa: BLE001  the others must be ended all the same
            _log.exception("session %s could not be closed", session.name[:8])
        finally:
            self._ending.discard(session)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(LONGEST_PAUSE, self.idle_timeout / 4))
            now = time.monotonic()
            await asyncio.gather(*(self.discard(session.name) for session in self if self._is_due(session, now)))

    def _is_due(self, session: T, now: float) -> bool:
        allowed = self.idle_timeout if session.idle_timeout is None else session.idle_timeout
        return not session.busy and (session.over or now - session.used > allowed)


def new_name() -> str:
    return secrets.token_hex(16)
