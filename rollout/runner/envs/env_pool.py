from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from toolgym.envs.base import BaseEnv
from toolgym.rollout.episode.env_lifecycle import CLOSE_TIMEOUT, close_env, close_env_once
from toolgym.rollout.job import Job
from toolgym.rollout.runner.envs.env_factory import EnvFactory, JobEpisode
from toolgym.tools.concurrency import deadline
from toolgym.tools.concurrency.blocking import contained
from toolgym.tools.concurrency.deadline import DeadlineError, shielded, together, with_deadline
from toolgym.tools.concurrency.execution_pool import ExecutionPool
from toolgym.tools.errors import EpisodeError

BATCH_SECONDS = 0.02
"""Seconds after which no further env is made before those that are ready are handed over."""

_log = logging.getLogger("toolgym.rollout")


class EnvPool:
    """Owns the envs of one run, uses them again, and closes them.

    Envs are made in a thread, one after the other, so that slow ones hold up no episode that has its env. If the making
    of one does not end within `timeout` seconds, it is left behind, and the next one is made in another thread.
    """

    def __init__(self, make: Callable[[], BaseEnv], timeout: float) -> None:
        self._make, self._timeout = make, timeout
        self._threads = ExecutionPool(1)
        self._waiting: deque[asyncio.Future[BaseEnv]] = deque()
        self._making: asyncio.Task[None] | None = None  # while anything waits
        self._batch: _Batch | None = None  # what the thread makes now
        self._closed = False
        self._left: int | None = None  # how many envs will be taken yet, once that is known
        self._closing: set[asyncio.Task[None]] = set()
        self._idle: list[BaseEnv] = []
        self._open: dict[int, BaseEnv] = {}  # by identity: envs of users need not be hashable

    async def take(self) -> BaseEnv:
        """An idle env, or a new one. Raises `EpisodeError` if making one took too long, and what `make` raises."""
        if self._left:
            self._left -= 1
        if self._idle:
            return self._idle.pop()
        future: asyncio.Future[BaseEnv] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._making is None:
            self._making = asyncio.create_task(self._serve(), name="toolgym makes envs")
        return await future

    async def _serve(self) -> None:
        try:
            while self._waiting:
                batch = _Batch(self._make, len(self._waiting), partial(self._own, asyncio.get_running_loop()))
                self._batch = batch
                error: Exception | None = None
                try:
                    call = self._threads.run(batch.make, name="the making of an env")
                    await with_deadline(call, self._timeout + BATCH_SECONDS, queue=math.inf, name="making an env")
                except DeadlineError:
                    error = EpisodeError(f"making the env did not finish within {self._timeout:g} seconds")
                except Exception as caught:  # noqa: BLE001  the episode that waits gets it
                    error = caught
                batch.given_up = True
                for outcome in [*batch.made, *([error] if error is not None else [])]:
                    self._hand_over(outcome)
                    await asyncio.sleep(0)  # one episode begins in a round of the event loop: no others are held up
        finally:
            self._making = self._batch = None
            while self._waiting:  # whatever ended this task, which they wait for
                self._hand_over(EpisodeError("what makes the envs of the run was cancelled or broke"))

    def _hand_over(self, outcome: BaseEnv | Exception) -> None:
        while self._waiting and self._waiting[0].done():  # its caller was cancelled
            self._waiting.popleft()
        if isinstance(outcome, Exception):
            if self._waiting:
                self._waiting.popleft().set_exception(outcome)
        elif self._waiting:
            self._waiting.popleft().set_result(outcome)
        else:
            self._idle.append(outcome)

    def _own(self, loop: asyncio.AbstractEventLoop, env: BaseEnv) -> None:
        """Take an env when it is made, in the thread. One that is made too late is closed."""
        self._open[id(env)] = env
        if self._closed:
            self._close_from_thread(env, loop)

    def _close_from_thread(self, env: BaseEnv, loop: asyncio.AbstractEventLoop) -> None:
        """Close an env that was made too late, on the event loop of its run; on another if that one is over."""
        closed = threading.Event()

        def begin() -> None:
            task = loop.create_task(self._close_late(env))
            self._closing.add(task)  # an event loop itself knows its tasks by weak references only
            task.add_done_callback(self._closing.discard)
            task.add_done_callback(lambda _: closed.set())

        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(begin)
        end = time.monotonic() + CLOSE_TIMEOUT
        while not closed.wait(0.05) and not loop.is_closed() and time.monotonic() < end:
            pass
        if id(env) in self._open:
            asyncio.run(self._close_late(env))

    async def _close_late(self, env: BaseEnv) -> None:
        if self._open.pop(id(env), None) is not None:  # else `close` has seen it
            await close_env(env)

    def adopt(self, env: BaseEnv) -> None:
        self._open[id(env)] = env

    def release(self, env: BaseEnv) -> None:
        del self._open[id(env)]

    def give_back(self, env: BaseEnv) -> None:
        """Keep an env for a further episode, or begin to close it if there is none."""
        self._idle.append(env)
        self._close_spare()

    def expect(self, takes: int) -> None:
        """Hear that this many envs will be taken yet, and no more; idle ones beyond are closed from now on, not all at
        the end."""
        self._left = takes
        self._close_spare()

    def _close_spare(self) -> None:
        while self._left is not None and len(self._idle) > self._left:
            env = self._idle.pop()
            self.release(env)
            task = asyncio.create_task(close_env_once(env), name="toolgym closes an env")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def discard(self, env: BaseEnv) -> None:
        """Close an env that no further episode may use."""
        self.release(env)  # first: it closes also where the caller is cancelled meanwhile
        await close_env(env)

    async def close(self) -> None:
        """Close every env, those in use included; one that takes longer than `CANCEL_GRACE` to make, when it comes."""
        self._closed = True
        for future in self._waiting:
            future.cancel()
        self._waiting.clear()
        try:
            if self._making is not None:
                await shielded(self._end_making(self._making))
        finally:
            self._threads.shutdown()
            envs, self._idle = [self._open.pop(key) for key in list(self._open)], []
            await shielded(self._close_rest(envs))

    async def _close_rest(self, envs: Sequence[BaseEnv]) -> None:
        await close_all(envs)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _end_making(self, making: asyncio.Task[None]) -> None:
        if self._batch is not None:
            self._batch.given_up = True
        await asyncio.wait({making}, timeout=deadline.CANCEL_GRACE)
        making.cancel()
        await asyncio.wait({making})


class EnvPools:
    """The pools of one run: one for each factory of envs."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._pools: dict[str, EnvPool] = {}

    def of(self, factory: EnvFactory) -> EnvPool:
        if factory.env_id not in self._pools:
            self._pools[factory.env_id] = EnvPool(factory, self._timeout)
        return self._pools[factory.env_id]

    def expect(self, takes: Mapping[str, int]) -> None:
        """As `EnvPool.expect`, by the envs' names."""
        for name, pool in self._pools.items():
            pool.expect(takes.get(name, 0))

    async def close(self) -> None:
        await together(pool.close() for pool in self._pools.values())


class _Batch:
    """Several envs, made with one change of threads; `take` gets each."""

    def __init__(self, make: Callable[[], BaseEnv], count: int, take: Callable[[BaseEnv], None]) -> None:
        self._make, self._count, self._own = make, count, take
        self.made: list[BaseEnv | Exception] = []
        self.given_up = False

    def make(self) -> None:
        end = time.monotonic() + BATCH_SECONDS
        while len(self.made) < self._count and not self.given_up and time.monotonic() < end:
            try:
                env = contained(self._make, (), {})
            except Exception as error:  # noqa: BLE001  the episode that waits gets it
                self.made.append(error)
            else:
                self._own(env)
                if not self.given_up:
                    self.made.append(env)


async def close_all(envs: Sequence[BaseEnv]) -> None:
    """Close these envs at the same time, each as `close_env` does."""
    if envs:
        await shielded(together(map(close_env_once, envs)))


class Suspended(NamedTuple):
    """An episode that stands still, and its env."""

    episode: JobEpisode
    env: BaseEnv


class SuspendedEpisodes:
    """Owns episodes that stand still between two runs, by `Job.member`."""

    def __init__(self) -> None:
        self._episodes: dict[tuple[str, int], Suspended] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def take(self, jobs: Iterable[Job]) -> dict[tuple[str, int], Suspended]:
        """Hand over the episodes of these jobs; those that are not here are left out."""
        members = [job.member for job in jobs if job.member in self._episodes]
        return {member: self._episodes.pop(member) for member in members}

    async def give(self, episodes: dict[tuple[str, int], Suspended], jobs: Iterable[Job]) -> None:
        """Take over the episodes of these jobs, and free the others."""
        wanted = {job.member for job in jobs}
        self._episodes |= {member: suspended for member, suspended in episodes.items() if member in wanted}
        await close_all([suspended.env for member, suspended in episodes.items() if member not in wanted])

    async def close(self) -> None:
        episodes, self._episodes = self._episodes, {}
        await close_all([suspended.env for suspended in episodes.values()])

    def __del__(self) -> None:
        if self._episodes:
            message = (
                f"{len(self._episodes)} episodes that a Runner carried over were left, and what their envs and tools "
                "hold is not freed: use `async with Runner(...)`, or `await runner.close()` behind the last run"
            )
            _log.warning(message)
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
