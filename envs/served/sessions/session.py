"""One session of a server: its instance, and its calls, which are answered one at a time and in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from toolgym.envs.result_text import cut
from toolgym.envs.served.sessions.backend import Instance, Reply, SessionBackend
from toolgym.envs.served.sessions.protocol import read_reward
from toolgym.envs.served.sessions.store import Store, Stored
from toolgym.envs.tool_instances import encodable
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, with_deadline
from toolgym.tools.errors import ToolgymError, UnknownNameError, shorten
from toolgym.tools.serving.admission import BusyError, Gate

T = TypeVar("T")

MAX_WAITING = 16
"""Calls that may wait for the one before in their session."""

CLOSE_DEADLINE = 60.0
"""Seconds for an instance to close."""

_log = logging.getLogger("toolgym.envs.served.sessions")


class NoSessionError(ToolgymError):
    """There is no such session, or it is another client's: the answer is the same."""


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


class Limits(NamedTuple):
    """What a call may take. Times are wall seconds.

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


class Session:
    """A session that is stored. Its instance is opened when a call needs it.

    A call goes on when its client disconnects: one that comes again with the same `request_id` waits for it and gets
    its answer.

    Args:
        stored: what is stored of it.
        backend: opens its instance.
        store: where it is stored.
        limits: of its calls.
        gate: what calls hold a slot of while they run.

    Attributes:
        sid, client, greeting: as stored.
        finished: whether `/postprocess` was called.
        used: when a call began or ended last, on the monotonic clock.
    """

    def __init__(self, stored: Stored, backend: SessionBackend, store: Store, limits: Limits, gate: Gate) -> None:
        self.sid, self.client, self.greeting = stored.sid, stored.client, stored.greeting
        self.finished = stored.finished
        self.used = time.monotonic()
        self._instance_hash, self._reward = stored.instance_hash, stored.reward
        self._backend, self._store, self._limits, self._gate = backend, store, limits, gate
        self._instance: Instance | None = None
        self._lock = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a call runs or waits."""
        return bool(self._calls)

    @property
    def live(self) -> bool:
        """Whether it has an instance now."""
        return self._instance is not None

    def adopt(self, instance: Instance) -> None:
        """Take an instance that is in the stored state."""
        self._instance = instance

    async def act(self, content: str, request_id: str | None) -> Reply:
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
        self._closed = True
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._drop()

    # ------------------------------------------------------------------

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call in a task of its own, in its turn."""
        if self._closed or len(self._calls) > MAX_WAITING:
            call.close()
            if self._closed:
                raise NoSessionError(self.sid)
            raise BusyError(f"{MAX_WAITING} calls wait for this session: no more are taken", 1)
        self.used = time.monotonic()
        task = asyncio.create_task(self._in_turn(call))
        self._calls.add(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: call.close())  # where it was not begun
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by `close`
                raise NoSessionError(self.sid) from None
            raise

    async def _in_turn(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._limits.queue):
                await self._lock.acquire()
        except TimeoutError:
            raise BusyError(f"the session was busy for {self._limits.queue:g} s", 1) from None
        try:
            return await call
        finally:
            self._lock.release()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        self.used = time.monotonic()
        if not task.cancelled():
            task.exception()  # its client may be gone

    async def _act(self, content: str, request_id: str | None) -> Reply:
        if request_id is not None:
            stored = await self._store.answer(self.sid, request_id)
            if stored is not None:
                return Reply(*stored)
        if self.finished:
            raise FinishedError("this session takes no more actions: /postprocess was called")

        async def run(instance: Instance) -> tuple[Reply, bytes]:
            reply = await instance.process_action(content)
            shown = encodable(cut(reply.content, self._limits.content_chars, "middle"))
            return Reply(shown, reply.done), await instance.state()

        reply, state = await self._run(run, self._limits.action)
        await self._written(self._store.acted(self.sid, state, request_id, reply.content, done=reply.done))
        self._reward = None
        return reply

    async def _finish(self) -> None:
        if not self.finished:
            await self._written(self._store.finished(self.sid))
            self.finished = True
        with contextlib.suppress(BackendError):  # it is in the log
            await self._rewarded()
        await self._drop()

    async def _rewarded(self) -> dict[str, Any]:
        if self._reward is None:

            async def compute(instance: Instance) -> dict[str, Any]:
                found = dict(await instance.compute_reward())
                return {**found, "reward": read_reward(found)}

            reward = await self._run(compute, self._limits.reward)
            await self._written(self._store.rewarded(self.sid, reward))
            self._reward = reward
        if self.finished or (self._instance is not None and self._instance.spent):
            await self._drop()
        return self._reward

    async def _run(self, call: Callable[[Instance], Awaitable[T]], seconds: float) -> T:
        """Run something on the instance. Where it fails, the instance is closed, and once more tried on a new one."""
        async with self._gate.slot():
            try:
                return await self._attempt(call, seconds)
            except (DeadlineError, UnknownNameError) as error:
                raise backend_error(error, self._instance_hash) from error
            except Exception as error:  # noqa: BLE001  whatever a backend raises
                _log.warning("session %s: a call failed and is tried again: %s", self.sid[:6], shorten(repr(error)))
            try:
                return await self._attempt(call, seconds)
            except Exception as error:
                raise backend_error(error, self._instance_hash) from error

    async def _attempt(self, call: Callable[[Instance], Awaitable[T]], seconds: float) -> T:
        try:
            if self._instance is None:
                self._instance = await with_deadline(self._reopened(), self._limits.start)
            return await with_deadline(_awaited(call(self._instance)), seconds)
        except (
            BaseException
        ):  # cancelled too: the instance is in no known state, and is opened anew from what is stored
            await shielded(self._drop())
            raise

    async def _reopened(self) -> Instance:
        state = await self._store.state(self.sid)
        return await self._backend.open(self._instance_hash, state)

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
