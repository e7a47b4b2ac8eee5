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
from typing import Any

from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.errors import ClusterError, ConfigError, missing_extra

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

    Args:
        name: of the limit.
        namespace: Ray's, in which the name is unique.
        limit: how many permits there are.
        lease_seconds: see `RayRateLimiter`.
    """

    def __init__(self, name: str, namespace: str, limit: int, lease_seconds: float) -> None:
        self.limit = limit
        self._name, self._namespace, self._lease_seconds = name, namespace, lease_seconds
        self._id = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._actor: Any = None
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # re-entrant: a garbage collection inside it may find a forgotten lease
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = {}
        self._held: dict[int, None] = {}
        self._asked: list[int] = []
        self._ended: list[int] = []
        self._woken = self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None
        self._thread = EventLoopThread(name="toolgym-limiter")

    @property
    def stopped(self) -> bool:
        """Whether it has ended, with its last user or with the connection to Ray."""
        return self._stopped

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
        self._stopped = True
        self._wake()

    async def acquire(self) -> int:
        """Wait for a permit. Returns its number, for `release`.

        Raises:
            ClusterError: the actor does not answer.
        """
        loop = asyncio.get_running_loop()
        number, future = next(self._numbers), loop.create_future()
        with self._lock:
            if self._stopped:
                raise ClusterError(f"Ray was shut down, and with it the rate limiter {self._name!r}")
            self._waiting[number] = loop, future
            self._asked.append(number)
        self._wake()
        try:
            await future
        except BaseException:  # cancelled, or forgotten with its event loop, perhaps when it was granted already
            with self._lock:
                self._waiting.pop(number, None)
            self.release(number)
            raise
        return number

    def release(self, number: int) -> None:
        """Give a permit back, or give up the place in the queue."""
        with self._lock:
            self._held.pop(number, None)
            self._ended.append(number)
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._woken or self._loop is None or self._news is None:
                return
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:  # the thread has ended
                self._stopped = True

    # ------------------------------------------------------------------ in the thread

    async def _begin(self) -> None:
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        await self._join()
        self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            while not self._stopped:
                assert self._news is not None
                await self._news.wait()
                self._news.clear()
                with self._lock:
                    self._woken = False
                    asked, self._asked = self._asked, []
                    ended, self._ended = self._ended, []
                if asked or ended:
                    await self._call("tell", asked, ended)
            if ray.is_initialized():
                await self._actor.leave.remote(self._id)
        except RayError:
            pass  # it leaves by itself, when its lease ends
        finally:
            self._stopped = True
            self._fail(f"the client of the rate limiter {self._name!r} has ended")
            listening.cancel()
            self._thread.stop()

    async def _listen(self) -> None:
        while not self._stopped:
            await self._call("listen")

    async def _call(self, method: str, *args: Any) -> None:
        """Call the actor and take what it grants. Where the call fails, join again, with all that there is to say."""
        try:
            self._require_ray()
            async with asyncio.timeout(LISTEN + UNREACHABLE):
                granted = await getattr(self._actor, method).remote(self._id, *args)
        except Exception:  # noqa: BLE001  whatever it is, those that wait must hear of it in the end
            granted = None
        if granted is None:
            await self._join_again()
        else:
            self._take(granted)

    async def _join_again(self) -> None:
        lost_at = time.monotonic()
        while not self._stopped:
            try:
                await self._join()
                return
            except Exception as error:  # noqa: BLE001  likewise
                if isinstance(error, ConfigError) or time.monotonic() - lost_at > UNREACHABLE:
                    self._fail(f"the cluster's rate limiter {self._name!r} does not answer: {error}")
                if not ray.is_initialized():
                    self._stopped = True
                    self._fail(f"Ray was shut down, and with it the rate limiter {self._name!r}")
                    self._wake()
            await asyncio.sleep(PAUSE)

    async def _join(self) -> None:
        self._require_ray()
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
            .remote(self.limit)
        )
        with self._lock:
            waiting, held = list(self._waiting), list(self._held)
            self._asked.clear()
            self._ended.clear()
        async with asyncio.timeout(UNREACHABLE):
            limit = await self._actor.join.remote(self._id, self.limit, self._lease_seconds, waiting, held)
        if limit != self.limit:
            raise ConfigError(
                f"the rate limit {self._name!r} of this cluster is already {limit}, and {self.limit} was asked for; "
                "use the same limit everywhere, or another name"
            )

    def _take(self, granted: list[int]) -> None:
        woken: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        with self._lock:
            for number in granted:
                place = self._waiting.pop(number, None)
                if place is not None:  # otherwise it gave up, and the actor hears of that
                    self._held[number] = None
                    woken.setdefault(place[0], []).append(place[1])
        for loop, futures in woken.items():
            with contextlib.suppress(RuntimeError):  # that event loop was closed: its waiters gave up
                loop.call_soon_threadsafe(_resolve, futures)

    def _fail(self, why: str) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for loop, future in waiting.values():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_reject, future, ClusterError(why))

    def _require_ray(self) -> None:
        if not ray.is_initialized():  # a call would start a cluster of its own
            raise ClusterError("this process is not connected to Ray")


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _reject(future: asyncio.Future[None], error: ClusterError) -> None:
    if not future.done():
        future.set_exception(error)
