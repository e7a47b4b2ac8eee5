"""Sessions of the session server: each has an instance, and answers its calls one at a time and in order."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from toolgym.envs.result_text import cut
from toolgym.envs.served.session import DetachableSession
from toolgym.envs.served.sessions.backends.base import ActionReply, Instance, SessionBackend
from toolgym.envs.served.sessions.config import SessionServerConfig
from toolgym.envs.served.sessions.protocol import new_sid, read_reward
from toolgym.envs.served.sessions.store import Store, Stored
from toolgym.envs.tool_instances import encodable
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.errors import NoSessionError, ToolgymError, UnknownNameError, shorten
from toolgym.tools.serving.admission import BusyError, Gate
from toolgym.tools.serving.session_table import RETRY_AFTER, SessionTable

T = TypeVar("T")

MAX_WAITING = 16

CLOSE_DEADLINE = 60.0

_log = logging.getLogger("toolgym.envs.served.sessions")


class FinishedError(ToolgymError):
    pass


class BackendError(ToolgymError):
    """The infrastructure failed in a call, which has not happened: the session is in the state before it."""

    def __init__(self, reason: str, mark: str) -> None:
        super().__init__(f"the session's backend failed ({reason}, error {mark}; see the server's log)")
        self.reason = reason


class StoredSession(DetachableSession):
    """A session that is stored. Its instance is opened when a call needs it.

    A call goes on when its client disconnects: one that comes again with the same `request_id` gets its answer. All
    calls raise BusyError (too many wait, or the wait took too long) and NoSessionError (the session was closed
    meanwhile).
    """

    def __init__(self, stored: Stored, server: StoredSessions, instance: Instance | None = None) -> None:
        super().__init__(stored.sid, patience=server.config.queue_timeout, max_waiting=MAX_WAITING)
        self.client, self.greeting = stored.client, stored.greeting
        self._server, self._store, self._config = server, server.store, server.config
        self._instance_hash, self._reward = stored.instance_hash, stored.reward
        self._instance = instance
        self._set_finished(stored.finished)

    @property
    def size(self) -> int:
        return 0 if self.finished else 1  # a finished one is only kept for its reward

    @property
    def live(self) -> bool:
        return self._instance is not None

    async def act(self, content: str, request_id: str | None) -> ActionReply:
        """Carry out an action, and store the state after it with its answer.

        Raises FinishedError if `/postprocess` was called, BackendError if the infrastructure failed.
        """
        return await self.in_turn(lambda: self._act(content, request_id), goes_on=True)

    async def finish(self) -> None:
        """Take no more actions: compute the reward and free the instance. If that fails, `reward` tries again."""
        await self.in_turn(self._finish, goes_on=True)

    async def reward(self) -> dict[str, Any]:
        """Return the worth of the work so far, computed once for each state. Raises BackendError."""
        return await self.in_turn(self._rewarded, goes_on=True)

    async def close(self) -> None:
        await self.end_calls()
        await self._drop()

    async def delete(self) -> None:
        await self.close()
        await self._store.delete(self.name)

    # ------------------------------------------------------------------

    def _set_finished(self, finished: bool) -> None:
        self.finished = finished
        self.idle_timeout = self._config.reward_timeout_after_postprocess if finished else None

    async def _act(self, content: str, request_id: str | None) -> ActionReply:
        if request_id is not None:
            stored = await self._store.answer(self.name, request_id)
            if stored is not None:
                return ActionReply(*stored)
        if self.finished:
            raise FinishedError("this session takes no more actions: /postprocess was called")

        async def run(instance: Instance) -> tuple[ActionReply, bytes]:
            reply = await instance.process_action(content)
            shown = encodable(cut(reply.content, self._config.max_content_chars, "middle"))
            return ActionReply(shown, reply.done), await instance.state()

        reply, state = await self._run(run, self._config.action_timeout)
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

            reward = await self._run(compute, self._config.reward_timeout)
            await self._written(self._store.rewarded(self.name, reward))
            self._reward = reward
        if self.finished or (self._instance is not None and self._instance.spent):
            await self._drop()
        return self._reward

    async def _run(self, call: Callable[[Instance], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Run something on the instance. If it fails, the instance is closed, and a new one gets one more attempt."""
        async with self._server.gate.slot():
            try:
                return await self._attempt(call, seconds)
            except (DeadlineError, UnknownNameError) as error:
                raise _backend_error(error, self._instance_hash) from error
            except Exception as error:  # noqa: BLE001  whatever a backend raises
                _log.warning("session %s: a call failed and is tried again: %s", self.name[:6], shorten(repr(error)))
            try:
                return await self._attempt(call, seconds)
            except Exception as error:
                raise _backend_error(error, self._instance_hash) from error

    async def _attempt(self, call: Callable[[Instance], Coroutine[Any, Any, T]], seconds: float) -> T:
        try:
            if self._instance is None:
                self._instance = await with_deadline(self._reopened(), self._config.start_timeout)
            return await with_deadline(call(self._instance), seconds)
        except BaseException:  # cancelled too: in no known state, the instance is opened again from what is stored
            await shielded(self._drop())
            raise

    async def _reopened(self) -> Instance:
        state = await self._store.state(self.name)
        return await self._server.backend.open(self._instance_hash, state)

    async def _written(self, writing: Coroutine[Any, Any, None]) -> None:
        """Await a write. If it fails, the instance is ahead of what is stored, and is closed."""
        try:
            await shielded(writing)
        except Exception as error:
            await self._drop()
            raise _backend_error(error, self._instance_hash) from error

    async def _drop(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await _close_quietly(instance)


class StoredSessions(SessionTable[StoredSession]):
    """The sessions of a server: kept over restarts, each of one client. Calls that run hold a slot of `gate`."""

    def __init__(self, backend: SessionBackend, store: Store, config: SessionServerConfig, gate: Gate) -> None:
        super().__init__(config.max_sessions, config.session_idle_timeout)
        self.backend, self.store, self.config, self.gate = backend, store, config, gate
        self._opening: collections.Counter[str] = collections.Counter()
        self._starts: dict[tuple[str, str], asyncio.Task[StoredSession]] = {}

    async def load(self) -> None:
        for stored in await self.store.sessions():
            self.add(StoredSession(stored, self))

    async def close(self) -> None:
        for start in self._starts.values():
            start.cancel()
        await asyncio.gather(*self._starts.values(), return_exceptions=True)
        await super().close()

    async def begin(self, client: str, instance_hash: str, request_id: str | None) -> StoredSession:
        """Open a session. A second call of a client with the same `request_id` gives the same one.

        Raises UnknownNameError (no such task), BusyError (too many sessions) or BackendError.
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
        session = self.find(sid)
        if session.client != client:
            raise NoSessionError(sid)  # as if there were none
        return session

    async def _begin(self, client: str, instance_hash: str, request_id: str | None) -> StoredSession:
        open_sessions = sum(session.size for session in self if session.client == client) + self._opening[client]
        if open_sessions >= self.config.max_sessions_per_client:
            raise BusyError(f"you have {open_sessions} open sessions: no more are taken", RETRY_AFTER)
        self._opening[client] += 1
        try:
            with self.room():
                async with self.gate.slot():
                    return await self._opened(client, instance_hash, request_id)
        except (UnknownNameError, BusyError):
            raise
        except Exception as error:
            raise _backend_error(error, instance_hash) from error
        finally:
            self._opening[client] -= 1

    async def _opened(self, client: str, instance_hash: str, request_id: str | None) -> StoredSession:
        instance = await with_deadline(self.backend.open(instance_hash), self.config.start_timeout)
        try:
            state = await with_deadline(instance.state(), self.config.start_timeout)
            stored = Stored(new_sid(), client, instance_hash, encodable(instance.greeting))
            await self.store.add(stored, request_id, state)
        except BaseException:  # cancelled or not, the instance is closed
            await shielded(_close_quietly(instance))
            raise
        return self.add(StoredSession(stored, self, instance))

    def _started(self, key: tuple[str, str], task: asyncio.Task[StoredSession]) -> None:
        del self._starts[key]
        if not task.cancelled():
            task.exception()  # its client may be gone


def _backend_error(error: Exception, instance_hash: str) -> BackendError:
    mark = uuid.uuid4().hex[:12]
    _log.error("error %s: a call of a session of %r failed", mark, instance_hash, exc_info=error)
    return BackendError("backend_timeout" if isinstance(error, DeadlineError) else "backend_failed", mark)


async def _close_quietly(instance: Instance) -> None:
    try:
        await with_deadline(instance.close(), CLOSE_DEADLINE)
    except Exception:  # noqa: BLE001  the client gets the error of its call instead
        _log.exception("an instance could not be closed")
