"""Sessions of the session server: each has an instance, and answers its calls one at a time and in order."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from toolgym.envs.result_text import cut
from toolgym.envs.served.sessions.backends.base import ActionReply, Instance, SessionBackend
from toolgym.envs.served.sessions.protocol import new_sid, read_reward
from toolgym.envs.served.sessions.store import Store, Stored
from toolgym.envs.tool_instances import encodable
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.errors import NoSessionError, ToolgymError, UnknownNameError, shorten
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.session_table import RETRY_AFTER, SessionTable, TableSession

T = TypeVar("T")

MAX_WAITING = 16
"""Calls that may wait for the one before in their session."""

CLOSE_DEADLINE = 60.0
"""Seconds for an instance to close."""

_log = logging.getLogger("toolgym.envs.served.sessions")


class FinishedError(ToolgymError):
    """The session takes no more actions."""


class BackendError(ToolgymError):
    """The infrastructure failed in a call, which has not happened: the session is in the state before it.

    Args:
        reason: `backend_failed` or `backend_timeout`.
        mark: finds the error in the server's log.
    """

    def __init__(self, reason: str, mark: str) -> None:
        super().__init__(f"the session's backend failed ({reason}, error {mark}; see the server's log)")
        self.reason = reason


class CallLimits(NamedTuple):
    """Limits of a call. Times are wall seconds.

    Attributes:
        start: to open an instance.
        action: for an action.
        reward: for a reward.
        queue: to wait for the calls before in the session.
        content_chars: characters of what the policy reads; a longer text loses its middle.
    """

    start: float
    action: float
    reward: float
    queue: float
    content_chars: int


class StoredSession(TableSession):
    """A session that is stored. Its instance is opened when a call needs it.

    A call goes on when its client disconnects: one that comes again with the same `request_id` waits for it and gets
    its answer.

    Args:
        stored: what is stored of it; its `sid` is the name.
        server: the sessions that it is one of.

    Attributes:
        client, greeting: as stored.
        finished: whether `/postprocess` was called.
    """

    def __init__(self, stored: Stored, server: StoredSessions) -> None:
        super().__init__(stored.sid, patience=server.limits.queue, max_waiting=MAX_WAITING)
        self.client, self.greeting = stored.client, stored.greeting
        self._server, self._store, self._limits = server, server.store, server.limits
        self._instance_hash, self._reward = stored.instance_hash, stored.reward
        self._instance: Instance | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._set_finished(stored.finished)

    @property
    def busy(self) -> bool:
        return bool(self._calls) or super().busy

    @property
    def size(self) -> int:
        return 0 if self.finished else 1  # a finished one is only kept for its reward

    @property
    def live(self) -> bool:
        """Whether it has an instance now."""
        return self._instance is not None

    def adopt(self, instance: Instance) -> None:
        """Take an instance that is in the stored state."""
        self._instance = instance

    async def act(self, content: str, request_id: str | None) -> ActionReply:
        """Carry out an action, and store the state after it with its answer.

        Raises:
            FinishedError: `/postprocess` was called.
            BackendError: the infrastructure failed.
            BusyError: too many calls wait, or the wait took too long.
            NoSessionError: the session was closed meanwhile.
        """
        return await self._call(self._act(content, request_id))

    async def finish(self) -> None:
        """Take no more actions: compute the reward and free the instance. Where that fails, `reward` tries again.

        Raises:
            BusyError, NoSessionError: see `act`.
        """
        await self._call(self._finish())

    async def reward(self) -> dict[str, Any]:
        """Return what the work so far is worth, computed once for each state.

        Raises:
            BackendError, BusyError, NoSessionError: see `act`.
        """
        return await self._call(self._rewarded())

    async def close(self) -> None:
        """Cancel what runs, and free the instance. What is stored stays."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._drop()

    async def delete(self) -> None:
        """Close the session, and delete what is stored of it."""
        await self.close()
        await self._store.delete(self.name)

    # ------------------------------------------------------------------

    def _set_finished(self, finished: bool) -> None:
        self.finished = finished
        self.idle_timeout = self._server.reward_timeout if finished else None

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call in a task of its own, in its turn."""
        task = asyncio.create_task(self._in_turn(call))
        self._calls.add(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: call.close())  # if it was not begun
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`
                raise NoSessionError(self.name) from None
            raise

    async def _in_turn(self, call: Coroutine[Any, Any, T]) -> T:
        async with self.turn():
            return await call

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # its client may be gone

    async def _act(self, content: str, request_id: str | None) -> ActionReply:
        if request_id is not None:
            stored = await self._store.answer(self.name, request_id)
            if stored is not None:
                return ActionReply(*stored)
        if self.finished:
            raise FinishedError("this session takes no more actions: /postprocess was called")

        async def run(instance: Instance) -> tuple[ActionReply, bytes]:
            reply = await instance.process_action(content)
            shown = encodable(cut(reply.content, self._limits.content_chars, "middle"))
            return ActionReply(shown, reply.done), await instance.state()

        reply, state = await self._run(run, self._limits.action)
        await self._written(self._store.acted(self.name, state, request_id, reply.content, done=reply.done))
        self._reward = None
        return reply

    async def _finish(self) -> None:
        if not self.finished:
            await self._written(self._store.finished(self.name))
            self._set_finished(True)
        with contextlib.suppress(BackendError):  # it is in the log
            await self._rewarded()
        await self._drop()

    async def _rewarded(self) -> dict[str, Any]:
        if self._reward is None:

            async def compute(instance: Instance) -> dict[str, Any]:
                reward = dict(await instance.compute_reward())
                return {**reward, "reward": read_reward(reward)}

            reward = await self._run(compute, self._limits.reward)
            await self._written(self._store.rewarded(self.name, reward))
            self._reward = reward
        if self.finished or (self._instance is not None and self._instance.spent):
            await self._drop()
        return self._reward

    async def _run(self, call: Callable[[Instance], Awaitable[T]], seconds: float) -> T:
        """Run something on the instance. Where it fails, the instance is closed, and once more tried on a new one."""
        async with self._server.gate.slot():
            try:
                return await self._attempt(call, seconds)
            except (DeadlineError, UnknownNameError) as error:
                raise backend_error(error, self._instance_hash) from error
            except Exception as error:  # noqa: BLE001  whatever a backend raises
                _log.warning("session %s: a call failed and is tried again: %s", self.name[:6], shorten(repr(error)))
            try:
                return await self._attempt(call, seconds)
            except Exception as error:
                raise backend_error(error, self._instance_hash) from error

    async def _attempt(self, call: Callable[[Instance], Awaitable[T]], seconds: float) -> T:
        try:
            if self._instance is None:
                self._instance = await with_deadline(self._reopened(), self._limits.start)
            return await with_deadline(_awaited(call(self._instance)), seconds)
        except BaseException:  # cancelled too: in no known state, the instance is opened again from what is stored
            await shielded(self._drop())
            raise

    async def _reopened(self) -> Instance:
        state = await self._store.state(self.name)
        return await self._server.backend.open(self._instance_hash, state)

    async def _written(self, writing: Coroutine[Any, Any, None]) -> None:
        """Await a write. Where it fails, the instance is ahead of what is stored, and is closed."""
        try:
            await shielded(writing)
        except Exception as error:
            await self._drop()
            raise backend_error(error, self._instance_hash) from error

    async def _drop(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await close_quietly(instance)


class StoredSessions(SessionTable[StoredSession]):
    """The sessions of a server: kept over restarts, each of one client.

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
        limits: CallLimits,
        gate: Gate,
        *,
        max_open: int,
        max_per_client: int,
        idle_timeout: float,
        reward_timeout: float,
    ) -> None:
        super().__init__(max_open, idle_timeout)
        self.backend, self.store, self.limits, self.gate = backend, store, limits, gate
        self.reward_timeout = reward_timeout
        self._max_per_client = max_per_client
        self._opening: collections.Counter[str] = collections.Counter()
        self._starts: dict[tuple[str, str], asyncio.Task[StoredSession]] = {}

    async def load(self) -> None:
        """Find the sessions of the server before this one."""
        for stored in await self.store.sessions():
            self.add(StoredSession(stored, self))

    async def close(self) -> None:
        """Cancel all calls and close all instances. The sessions stay stored."""
        for start in self._starts.values():
            start.cancel()
        await asyncio.gather(*self._starts.values(), return_exceptions=True)
        await super().close()

    async def begin(self, client: str, instance_hash: str, request_id: str | None) -> StoredSession:
        """Open a session. A second call of a client with the same `request_id` gives the same one.

        Raises:
            UnknownNameError: there is no such task.
            BusyError: there are as many sessions as there may be, of the client or of all.
            BackendError: the backend failed.
        """
        if request_id is None:
            return await self._begin(client, instance_hash, None)
        key = client, request_id
        known = await self.store.started(*key)
        if known is not None and known in self:
            return self.find(known)
        if key not in self._starts:
            task = self._starts[key] = asyncio.create_task(self._begin(client, instance_hash, request_id))
            task.add_done_callback(lambda ended: self._started(key, ended))
        return await asyncio.shield(self._starts[key])

    def find_of(self, client: str, sid: str) -> StoredSession:
        """Return a client's session.

        Raises:
            NoSessionError: it has none of that id.
        """
        session = self.find(sid)
        if session.client != client:
            raise NoSessionError(sid)  # as if there were none
        return session

    async def _begin(self, client: str, instance_hash: str, request_id: str | None) -> StoredSession:
        open_sessions = sum(session.size for session in self if session.client == client) + self._opening[client]
        if open_sessions >= self._max_per_client:
            raise BusyError(f"you have {open_sessions} open sessions: no more are taken", RETRY_AFTER)
        self._opening[client] += 1
        try:
            with self.room():
                async with self.gate.slot():
                    return await self._opened(client, instance_hash, request_id)
        except (UnknownNameError, BusyError):
            raise
        except Exception as error:
            raise backend_error(error, instance_hash) from error
        finally:
            self._opening[client] -= 1

    async def _opened(self, client: str, instance_hash: str, request_id: str | None) -> StoredSession:
        instance = await with_deadline(self.backend.open(instance_hash), self.limits.start)
        try:
            state = await with_deadline(instance.state(), self.limits.start)
            stored = Stored(new_sid(), client, instance_hash, encodable(instance.greeting))
            await self.store.add(stored, request_id, state)
        except BaseException:  # cancelled or not, the instance is closed
            await shielded(close_quietly(instance))
            raise
        session = self.add(StoredSession(stored, self))
        session.adopt(instance)
        return session

    def _started(self, key: tuple[str, str], task: asyncio.Task[StoredSession]) -> None:
        del self._starts[key]
        if not task.cancelled():
            task.exception()  # its client may be gone


def backend_error(error: Exception, instance_hash: str) -> BackendError:
    """Log what a backend raised, and return the error for the client."""
    mark = uuid.uuid4().hex[:12]
    _log.error("error %s: a call of a session of %r failed", mark, instance_hash, exc_info=error)
    return BackendError("backend_timeout" if isinstance(error, DeadlineError) else "backend_failed", mark)


async def close_quietly(instance: Instance) -> None:
    """Close an instance within `CLOSE_DEADLINE`; what it raises is logged."""
    try:
        await with_deadline(instance.close(), CLOSE_DEADLINE)
    except Exception:  # noqa: BLE001  the client gets the error of its call instead
        _log.exception("an instance could not be closed")


async def _awaited(value: Awaitable[T]) -> T:
    return await value
