"""The open sessions of one worker: found by id, closed when idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from toolgym.tools.errors import ToolgymError
from toolgym.tools.sandbox.base import Session
from toolgym.tools.sandbox.processes import Process
from toolgym.tools.sandbox.protocol.messages import SessionInfo
from toolgym.tools.serving.admission import BusyError
from toolgym.tools.serving.sweeper import Sweeper

MAX_WAITING = 32
"""Calls that may wait for one session."""

MAX_BESIDE = 128
"""Calls about programs that may be under way in one session."""

CLOSE_DEADLINE = 10.0
"""Seconds to wait for a session to close."""

_log = logging.getLogger("toolgym.tools.sandbox.server")


class NoSessionError(ToolgymError):
    """There is no session of that id (any more)."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no session {name[:80]!r}: it was never made, was deleted or idle for too long, its interpreter died, or "
            "the worker process that held it did"
        )


class Entry:
    """One open session and what is known about it.

    Attributes:
        pending: calls that run in it or wait for that.
        beside: calls about its programs that are under way; they wait for no other call.
        processes: its programs in the background, by id.
    """

    def __init__(self, name: str, session: Session, cells: int = 0) -> None:
        self.name = name
        self.session = session
        self.cells = cells
        self.made = self.used = time.monotonic()
        self.pending = self.beside = 0
        self.processes: dict[str, Process] = {}
        self.lock = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return bool(self.pending or self.beside)

    @property
    def over(self) -> bool:
        """Whether no call can use it any more: it has died, and has no checkpoint."""
        return not self.session.alive and not self.session.checkpoints


class Sessions:
    """Open sessions.

    Args:
        worker: number of this worker; ids begin with it, so that every worker knows where a session lives.
        limit: how many at once.
        idle_timeout: seconds without a call after which a session is closed.
        patience: most seconds that a call waits for those before it in the same session.
    """

    def __init__(self, worker: int, limit: int, idle_timeout: float, patience: float) -> None:
        self._worker = worker
        self._limit = limit
        self._idle_timeout = idle_timeout
        self._patience = patience
        self._entries: dict[str, Entry] = {}
        self._coming = 0
        self._sweeper = Sweeper(self._sweep, idle_timeout)

    def __len__(self) -> int:
        """Sessions that are open or opening, their checkpoints included."""
        return self._coming + sum(1 + len(entry.session.checkpoints) for entry in self._entries.values())

    def start(self) -> None:
        """Start to close idle sessions."""
        self._sweeper.start()

    async def close(self) -> None:
        """Close all sessions."""
        await self._sweeper.stop()
        await asyncio.gather(*(self._end(entry) for entry in list(self._entries.values())))

    async def add(self, opening: Callable[[], Awaitable[Sequence[Session]]], n: int = 1, cells: int = 0) -> list[Entry]:
        """Open sessions, if there is room.

        Args:
            opening: opens them.
            n: how many it opens.
            cells: how many cells each has run already.

        Raises:
            BusyError: there is no room for so many.
        """
        async with self.room(n):
            sessions = await opening()
        entries = [Entry(f"w{self._worker}-{secrets.token_hex(16)}", session, cells) for session in sessions]
        self._entries.update((entry.name, entry) for entry in entries)
        return entries

    @contextlib.asynccontextmanager
    async def room(self, n: int = 1) -> AsyncIterator[None]:
        """Reserve room for sessions or checkpoints that the block opens. Raises BusyError where there is none."""
        if len(self) + n > self._limit:
            raise BusyError(f"{len(self)} of at most {self._limit} sessions are open: no more are taken", 5)
        self._coming += n
        try:
            yield
        finally:
            self._coming -= n

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[Entry]:
        """Hold a session while the block lasts; other calls wait. A session that dies meanwhile is closed.

        Raises:
            NoSessionError: there is none of that id.
            BusyError: too many wait for it, or for too long.
        """
        entry = self.find(name)
        if entry.pending > MAX_WAITING:
            raise BusyError(f"{MAX_WAITING} calls wait for this session: no more are taken", 1)
        entry.pending += 1
        try:
            try:
                async with asyncio.timeout(self._patience):
                    await entry.lock.acquire()
            except TimeoutError:
                raise BusyError(f"the session was busy for {self._patience:g} s", 1) from None
            try:
                if self._entries.get(name) is not entry:
                    raise NoSessionError(name)
                yield entry
            finally:
                entry.lock.release()
        finally:
            entry.pending -= 1
            entry.used = time.monotonic()
            if entry.over and self._entries.get(name) is entry:
                await self._end(entry)

    @contextlib.asynccontextmanager
    async def use_beside(self, name: str) -> AsyncIterator[Entry]:
        """Use a session for a call that need not wait for others.

        Raises:
            NoSessionError: there is none of that id.
            BusyError: there are too many such calls.
        """
        entry = self.find(name)
        if entry.beside >= MAX_BESIDE:
            raise BusyError(f"{MAX_BESIDE} calls about programs of this session are under way: no more are taken", 1)
        entry.beside += 1
        try:
            yield entry
        finally:
            entry.beside -= 1
            entry.used = time.monotonic()
            if entry.over and self._entries.get(name) is entry:
                await self._end(entry)

    def find(self, name: str) -> Entry:
        """Return the session of that id. Raises NoSessionError."""
        entry = self._entries.get(name)
        if entry is None:
            raise NoSessionError(name)
        return entry

    async def remove(self, name: str) -> None:
        """Close a session, also while a call runs in it. Raises NoSessionError."""
        await self._end(self.find(name))

    def info(self, entry: Entry) -> SessionInfo:
        """Return a description of a session."""
        now = time.monotonic()
        return SessionInfo(
            id=entry.name,
            alive=entry.session.alive,
            cells=entry.cells,
            age=now - entry.made,
            idle=0.0 if entry.busy else now - entry.used,
            idle_timeout=self._idle_timeout,
        )

    async def _end(self, entry: Entry) -> None:
        if self._entries.get(entry.name) is entry:
            del self._entries[entry.name]
        try:
            async with asyncio.timeout(CLOSE_DEADLINE):
                await entry.session.close()
        except TimeoutError:
            _log.error("session %s did not close within %g s", entry.name[:8], CLOSE_DEADLINE)
        except Exception:  # noqa: BLE001  the others must be closed all the same
            _log.exception("session %s could not be closed", entry.name[:8])

    async def _sweep(self) -> None:
        too_old = time.monotonic() - self._idle_timeout
        ended = [one for one in self._entries.values() if not one.busy and (one.used < too_old or one.over)]
        await asyncio.gather(*(self._end(entry) for entry in ended))
