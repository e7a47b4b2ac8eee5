"""`LimiterClient`: one process's side of a cluster's rate limit, in a thread of its own.

The thread sends what all event loops of the process ask for and give back, as much as came together in one message,
and it keeps one call open that brings permits. So a permit costs a share of a message, and a process whose event loop
is busy for a while loses none.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ClusterError, ConfigError
from toolgym.tools.lazy import missing_extra

try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise missing_extra("ray", "A rate limit of a cluster", error) from error

from toolgym.tools.concurrency.cluster.actor import LISTEN, RateLimitActor

CONNECT_TIMEOUT = 60.0
"""Seconds to find the limiter's actor, or to start it."""

UNREACHABLE = 30.0
"""Seconds without an answer of the actor after which those that wait get an error."""

PAUSE = 0.5
"""Seconds between two attempts to reach it."""


def job() -> tuple[str, str] | None:
    """Ray's namespace and id of the job that this process belongs to; None where it is connected to no cluster."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.namespace, context.get_job_id()


class LimiterClient:
    """Asks the actor of a limit for permits, for all threads of this process.

    Each message has the whole state of this process: what it holds and what it waits for. So a message that is lost, or
    an actor that was started again, needs nothing but the next message.

    Args:
        name: of the limit.
        namespace: Ray's, in which the name is unique.
        limit: number of permits.
        lease_seconds: see `RayRateLimiter`.
    """

    def __init__(self, name: str, namespace: str, limit: int, lease_seconds: float) -> None:
        self.limit = limit
        self.stopped = False  # with its last user, or with the connection to Ray
        self._name, self._namespace, self._lease_seconds = name, namespace, lease_seconds
        self._id = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._actor: Any = None
        self._failing_since: float | None = None
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # re-entrant: a garbage collection inside it may find a forgotten lease
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = {}
        self._held: set[int] = set()
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._thread = EventLoopThread(name="toolgym-limiter")

    def start(self) -> None:
        """Join the limit.

        Raises:
            ConfigError: the cluster has it with another limit.
            ClusterError: the actor cannot be started, or does not answer.
        """
        try:
            self._thread.run(self._begin(), timeout=CONNECT_TIMEOUT)
        except TimeoutError as error:
            self._thread.stop()
            raise ClusterError(
                f"the cluster's rate limiter {self._name!r} did not start within {CONNECT_TIMEOUT:g} s"
            ) from error
        except BaseException:  # an interrupt too: the thread has no other owner
            self._thread.stop()
            raise

    def stop(self) -> None:
        """Leave the limit, and end the thread; returns at once."""
        self.stopped = True
        self._wake()

    async def acquire(self) -> int:
        """Wait for a permit. Returns its number, for `release`.

        Raises:
            ClusterError: the actor does not answer.
        """
        loop = asyncio.get_running_loop()
        number, future = next(self._numbers), loop.create_future()
        with self._lock:
            if self.stopped:
                raise ClusterError(f"Ray was shut down, and with it the rate limiter {self._name!r}")
            self._waiting[number] = loop, future
        self._wake()
        try:
            await future
        except BaseException:  # cancelled, or forgotten with its event loop, perhaps when it was granted already
            self.release(number)
            raise
        return number

    def release(self, number: int) -> None:
        """Give a permit back, or give up the place in the queue."""
        with self._lock:
            self._waiting.pop(number, None)
            self._held.discard(number)
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._woken or self._loop is None:
                return
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:  # the thread has ended
                self.stopped = True

    # ------------------------------------------------------------------ in the thread

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._sync()
        self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            while not self.stopped:
                await self._news.wait()
                await self._patiently(self._sync)
            if ray.is_initialized():
                await self._actor.leave.remote(self._id)
        except RayError:
            pass  # it leaves by itself, when its lease ends
        finally:
            self.stopped = True
            self._fail(f"the client of the rate limiter {self._name!r} has ended")
            listening.cancel()
            self._thread.stop()

    async def _listen(self) -> None:
        while not self.stopped:
            await self._patiently(self._hear)

    async def _patiently(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make a call of the actor. If it fails, the state is sent again; after `UNREACHABLE` seconds waiters fail."""
        try:
            await call()
            self._failing_since = None
        except Exception as error:  # noqa: BLE001  whatever it is, those that wait must hear of it in the end
            now = time.monotonic()
            self._failing_since = now if self._failing_since is None else self._failing_since
            if isinstance(error, ConfigError) or now - self._failing_since > UNREACHABLE:
                self._fail(f"the cluster's rate limiter {self._name!r} does not answer: {error}")
            if not ray.is_initialized():
                self.stopped = True
                self._fail(f"Ray was shut down, and with it the rate limiter {self._name!r}")
            await asyncio.sleep(PAUSE)
            self._news.set()

    async def _sync(self) -> None:
        actor = self._connected()
        self._news.clear()
        with self._lock:
            self._woken = False
            version, waiting, held = next(self._numbers), list(self._waiting), list(self._held)
        async with asyncio.timeout(UNREACHABLE):
            limit, granted = await actor.sync.remote(self._id, self.limit, self._lease_seconds, version, waiting, held)
        if limit != self.limit:
            raise ConfigError(
                f"the rate limit {self._name!r} of this cluster is already {limit}, and {self.limit} was asked for; "
                "use the same limit everywhere, or another name"
            )
        self._take(granted)

    async def _hear(self) -> None:
        async with asyncio.timeout(LISTEN + UNREACHABLE):
            granted = await self._connected().listen.remote(self._id)
        if granted is None:
            await self._sync()
        else:
            self._take(granted)

    def _connected(self) -> Any:
        """Return the actor, which is started if there is none."""
        if not ray.is_initialized():  # a call would start a cluster of its own
            raise ClusterError("this process is not connected to Ray")
        if self._actor is None or self._failing_since is not None:
            self._actor = (
                ray.remote(RateLimitActor)
                .options(
                    name=f"toolgym rate limit {self._name}",
                    namespace=self._namespace,
                    get_if_exists=True,
                    lifetime="detached",  # otherwise it would end with the process that asked first
                    num_cpus=0,
                    max_restarts=-1,
                    max_concurrency=20_000,
                )
                .remote()
            )
        return self._actor

    def _take(self, granted: Sequence[int]) -> None:
        """Wake those that wait for these permits; what waits no more gave up, and the actor hears of that."""
        woken: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        with self._lock:
            for number in granted:
                if number in self._waiting:
                    loop, future = self._waiting.pop(number)
                    self._held.add(number)
                    woken.setdefault(loop, []).append(future)
        for loop, futures in woken.items():
            with contextlib.suppress(RuntimeError):  # that event loop was closed: its waiters gave up
                loop.call_soon_threadsafe(_resolve, futures)

    def _fail(self, why: str) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for loop, future in waiting.values():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_reject, future, ClusterError(why))


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _reject(future: asyncio.Future[None], error: ClusterError) -> None:
    if not future.done():
        future.set_exception(error)
