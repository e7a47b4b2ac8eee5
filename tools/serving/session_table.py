"""The open sessions of a server: found by name, used one call at a time, removed when idle.

A server derives its session from `TableSession` and keeps all of them in one `SessionTable`:

    class Counter(TableSession):
        def __init__(self, name: str) -> None:
            super().__init__(name, patience=10.0, max_waiting=32)
            self.count = 0

        async def close(self) -> None: ...

    table = SessionTable[Counter](limit=100, idle_timeout=600.0)
    with table.room():  # BusyError if there is none
        table.add(Counter(new_name()))
    async with table.use(name) as counter:  # NoSessionError; BusyError if too many calls wait, or for too long
        counter.count += 1
"""

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

RETRY_AFTER = 5
"""Seconds after which a client is asked to try again for a session."""

_log = logging.getLogger("toolgym.tools.serving")


class TableSession(ABC):
    """A session of one client. Its calls run one after the other, each in a block of `turn`.

    Args:
        name: its name.
        patience: most seconds that a call waits for the calls before it.
        max_waiting: calls that may wait.

    Attributes:
        opened: when it was opened, on the monotonic clock.
        used: when a call last began or ended, on the monotonic clock.
        closed: whether it was closed or removed. Calls that wait, and further ones, raise NoSessionError.
    """

    idle_timeout: float | None = None
    """Seconds without a call after which it is removed; None: its table's."""

    def __init__(self, name: str, *, patience: float, max_waiting: int) -> None:
        self.name = name
        self.opened = self.used = time.monotonic()
        self.closed = False
        self._patience, self._max_waiting = patience, max_waiting
        self._lock = asyncio.Lock()
        self._pending = self._attached = 0

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits, or something is attached. A busy session is not idle."""
        return bool(self._pending or self._attached)

    @property
    def size(self) -> int:
        """Places that it takes in its table."""
        return 1

    @property
    def over(self) -> bool:
        """Whether no call can use it any more, so that its table removes it."""
        return False

    @abstractmethod
    async def close(self) -> None:
        """Free what it holds, also while a call runs. Called again it does nothing."""

    async def delete(self) -> None:
        """End it for good: a client removed it, or it was idle for too long. Default: `close`.

        A session that outlives its server deletes here what is stored of it.
        """
        await self.close()

    def touch(self) -> None:
        """Begin its idle time anew."""
        self.used = time.monotonic()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the calls before, and hold the session while the block lasts.

        Raises:
            NoSessionError: it was closed.
            BusyError: too many calls wait, or the wait took too long.
        """
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
        """Keep the session from being idle while the block lasts, beside its calls and without waiting for them.

        Raises:
            NoSessionError: it was closed.
            BusyError: `most` such blocks are open.
        """
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
    """The open sessions of a server.

    Args:
        limit: places for sessions; see `TableSession.size`.
        idle_timeout: seconds without a call after which a session is removed; the shortest, if sessions have their own.
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
        """Iterate over the open sessions as they are now."""
        return iter(list(self._sessions.values()))

    def start(self) -> None:
        """Start to remove idle sessions, on the running event loop."""
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Close all sessions. What they keep stored stays."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        await asyncio.gather(*(self._end(session, session.close) for session in self))

    @contextlib.contextmanager
    def room(self, places: int = 1) -> Iterator[None]:
        """Reserve places for what the block opens.

        Raises:
            BusyError: there is no room for so many.
        """
        if len(self) + places > self.limit:
            reason = f"{len(self)} of at most {self.limit} sessions are open: no more are taken"
            raise BusyError(reason, RETRY_AFTER)
        self._reserved += places
        try:
            yield
        finally:
            self._reserved -= places

    def add(self, session: T) -> T:
        """Take in a session, whose name is new. Call it in a block of `room`, or right after it."""
        assert session.name not in self._sessions
        self._sessions[session.name] = session
        return session

    def __contains__(self, name: str) -> bool:
        return name in self._sessions

    def find(self, name: str) -> T:
        """Return the session of that name. It goes on being idle; see `TableSession.touch`.

        Raises:
            NoSessionError: there is none.
        """
        session = self._sessions.get(name)
        if session is None:
            raise NoSessionError(name)
        return session

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[T]:
        """Hold a session while the block lasts; other calls wait. One that is over then is removed.

        Raises:
            NoSessionError: there is none of that name, or it was closed.
            BusyError: too many calls wait for it, or the wait took too long.
        """
        session = self.find(name)
        try:
            async with session.turn():
                yield session
        finally:
            await self._remove_if_over(session)

    @contextlib.asynccontextmanager
    async def use_beside(self, name: str, most: float = float("inf")) -> AsyncIterator[T]:
        """Use a session for a call that waits for no other. A session that is over then is removed.

        Raises:
            NoSessionError: there is none of that name.
            BusyError: `most` such calls are under way in it.
        """
        session = self.find(name)
        try:
            with session.attached(most):
                yield session
        finally:
            await self._remove_if_over(session)

    async def remove(self, name: str) -> None:
        """End a session for good, also while a call runs in it.

        Raises:
            NoSessionError: there is none of that name.
        """
        session = self.find(name)
        await self._end(session, session.delete)

    async def discard(self, name: str) -> None:
        """End a session for good, if there is one of that name."""
        with contextlib.suppress(NoSessionError):
            await self.remove(name)

    async def _remove_if_over(self, session: T) -> None:
        if session.over:
            await self._end(session, session.delete)

    async def _end(self, session: T, ending: Callable[[], Awaitable[None]]) -> None:
        """Take a session out and await its end. It counts until it has given back what it holds."""
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
    """Return a session name that cannot be guessed."""
    return secrets.token_hex(16)
