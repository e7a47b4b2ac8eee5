"""All sessions of a server: made within limits, found by id and client, closed when idle, kept over restarts."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Callable

from toolgym.envs.served.sessions.backend import SessionBackend
from toolgym.envs.served.sessions.protocol import new_sid
from toolgym.envs.served.sessions.session import Limits, NoSessionError, Session, backend_error, close_quietly
from toolgym.envs.served.sessions.store import Store, Stored, StoreError
from toolgym.envs.tool_instances import encodable
from toolgym.tools.concurrency.deadline import shielded, with_deadline
from toolgym.tools.errors import UnknownNameError
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.sweeper import Sweeper

_log = logging.getLogger("toolgym.envs.served.sessions")

RETRY_AFTER = 5
"""Seconds after which a client is asked to try again for a session."""


class Sessions:
    """All sessions.

    Args:
        backend: opens their instances.
        store: where they are stored.
        limits: of their calls.
        gate: what calls hold a slot of while they run.
        max_open: sessions that are open at once; those of `/postprocess` do not count.
        max_per_client: the same for one client.
        idle_timeout: seconds without a call after which an open session is deleted.
        reward_timeout: seconds after which a finished one is deleted.
    """

    def __init__(
        self,
        backend: SessionBackend,
        store: Store,
        limits: Limits,
        gate: Gate,
        *,
        max_open: int,
        max_per_client: int,
        idle_timeout: float,
        reward_timeout: float,
    ) -> None:
        self._backend, self._store, self._limits, self._gate = backend, store, limits, gate
        self._max_open, self._max_per_client = max_open, max_per_client
        self._idle_timeout, self._reward_timeout = idle_timeout, reward_timeout
        self._sessions: dict[str, Session] = {}
        self._opening: collections.Counter[str] = collections.Counter()
        self._starts: dict[tuple[str, str], asyncio.Task[Session]] = {}
        self._sweeper = Sweeper(self._sweep, min(idle_timeout, reward_timeout))

    @property
    def open(self) -> int:
        """Sessions that take actions."""
        return self._count(lambda one: not one.finished)

    @property
    def live(self) -> int:
        """Sessions that have an instance now."""
        return self._count(lambda one: one.live)

    @property
    def finished(self) -> int:
        """Sessions that are kept for their rewards."""
        return self._count(lambda one: one.finished)

    async def start(self) -> None:
        """Find the sessions of the server before this one, and begin to delete idle ones."""
        for stored in await self._store.sessions():
            self._sessions[stored.sid] = self._made(stored)
        self._sweeper.start()

    async def close(self) -> None:
        """Cancel all calls and close all instances. The sessions stay stored."""
        await self._sweeper.stop()
        for start in self._starts.values():
            start.cancel()
        await asyncio.gather(*self._starts.values(), return_exceptions=True)
        await asyncio.gather(*(one.close() for one in self._sessions.values()))

    async def begin(self, client: str, instance_hash: str, request_id: str | None) -> Session:
        """Open a session. A second call of a client with the same `request_id` gives the same one.

        Raises:
            UnknownNameError: there is no such task.
            BusyError: there are as many sessions as there may be, of the client or of all.
            BackendError: the backend failed.
        """
        if request_id is None:
            return await self._begin(client, instance_hash, None)
        key = client, request_id
        known = await self._store.started(*key)
        if known is not None and known in self._sessions:
            return self._sessions[known]
        if key not in self._starts:
            task = self._starts[key] = asyncio.create_task(self._begin(client, instance_hash, request_id))
            task.add_done_callback(lambda ended: self._started(key, ended))
        return await asyncio.shield(self._starts[key])

    def find(self, sid: str, client: str) -> Session:
        """Return a client's session.

        Raises:
            NoSessionError: it has none of that id.
        """
        session = self._sessions.get(sid)
        if session is None or session.client != client:
            raise NoSessionError(sid)
        return session

    async def discard(self, sid: str) -> None:
        """Close and delete a session, if it exists."""
        session = self._sessions.pop(sid, None)
        if session is not None:
            await shielded(self._delete(session))

    async def _delete(self, session: Session) -> None:
        await session.close()
        await self._store.delete(session.sid)

    async def _begin(self, client: str, instance_hash: str, request_id: str | None) -> Session:
        self._check_room(client)
        self._opening[client] += 1
        try:
            async with self._gate.slot():
                return await self._opened(client, instance_hash, request_id)
        except (UnknownNameError, BusyError):
            raise
        except Exception as error:
            raise backend_error(error, instance_hash) from error
        finally:
            self._opening[client] -= 1

    async def _opened(self, client: str, instance_hash: str, request_id: str | None) -> Session:
        instance = await with_deadline(self._backend.open(instance_hash), self._limits.start)
        try:
            state = await with_deadline(instance.state(), self._limits.start)
            stored = Stored(new_sid(), client, instance_hash, encodable(instance.greeting))
            await self._store.add(stored, request_id, state)
        except BaseException:  # cancelled or not, the instance is closed
            await shielded(close_quietly(instance))
            raise
        session = self._sessions[stored.sid] = self._made(stored)
        session.adopt(instance)
        return session

    def _made(self, stored: Stored) -> Session:
        return Session(stored, self._backend, self._store, self._limits, self._gate)

    def _started(self, key: tuple[str, str], task: asyncio.Task[Session]) -> None:
        del self._starts[key]
        if not task.cancelled():
            task.exception()  # its client may be gone

    def _check_room(self, client: str) -> None:
        if self.open + self._opening.total() >= self._max_open:
            raise BusyError(f"{self._max_open} sessions are open: no more are taken", RETRY_AFTER)
        own = self._count(lambda one: not one.finished and one.client == client) + self._opening[client]
        if own >= self._max_per_client:
            raise BusyError(f"you have {own} open sessions: no more are taken", RETRY_AFTER)

    def _count(self, counts: Callable[[Session], bool]) -> int:
        return sum(map(counts, self._sessions.values()))

    async def _sweep(self) -> None:
        now = time.monotonic()
        for sid, one in list(self._sessions.items()):
            allowed = self._reward_timeout if one.finished else self._idle_timeout
            if not one.busy and now - one.used > allowed:
                try:
                    await self.discard(sid)
                except StoreError as error:  # it is found again when the server restarts
                    _log.warning("an idle session could not be deleted: %s", error)
