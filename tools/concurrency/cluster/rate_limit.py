"""`RayRateLimiter`: a rate limit that all processes of a Ray cluster share."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from toolgym.tools.concurrency.event_loop_thread import EventLoopThread
from toolgym.tools.concurrency.rate_limit import Lease, RateLimiter
from toolgym.tools.errors import ClusterError, ConfigError, require_whole_number
from toolgym.tools.lazy import missing_extra

try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise missing_extra("ray", "A rate limit of a cluster", error) from error

from toolgym.tools.concurrency.cluster.actor import RateLimitActor

LEASE_SECONDS = 10.0
"""Seconds after a process's last sign of life until its permits are free again. It gives one every two seconds."""

LISTEN = 2.0
"""Seconds that the actor may take to answer the call that waits for permits, which is the sign of life."""

CONNECT_TIMEOUT = 60.0

UNREACHABLE = 30.0
"""Seconds without an answer of the actor after which those that wait get an error."""

PAUSE = 0.5


class RayRateLimiter(RateLimiter):
    """Permits of a name, for all processes of a job on a Ray cluster, first come, first served.

    A named actor holds the limit; it starts with the first process that asks, and ends a minute after the last. Permits
    of a process that dies, or is cut off, are free after `lease_seconds`, at least 1. A process that comes back then
    keeps what it holds, and the next permits that are given back go to nothing until the limit holds again. If the
    actor's machine dies, the actor starts on another one, hears from each process what it holds, and grants nothing in
    the first five seconds. The name is unique in Ray's `namespace`, by default the job's; give one to share a limit
    among jobs.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: the limit exists and is another, or an argument is of the wrong kind.
        ClusterError: this process is not connected to Ray, or the actor cannot be started.
    """

    def __init__(
        self, name: str, limit: int, *, namespace: str | None = None, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a rate limit of a cluster needs a name, got {name!r}")
        require_whole_number("a rate limit", limit, at_least=1)
        if not isinstance(lease_seconds, int | float) or not lease_seconds >= 1:
            raise ConfigError(f"lease_seconds must be a number of seconds of at least 1, got {lease_seconds!r}")
        if not ray.is_initialized():
            raise ClusterError(
                f"the rate limit {name!r} is one of a Ray cluster, and this process is connected to none: call "
                "ray.init first, or use a limit of the process"
            )
        self.name, self.limit, self.namespace, self.lease_seconds = name, limit, namespace, lease_seconds
        self._membership = _join(name, namespace, limit, lease_seconds)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is the same limit."""
        new = partial(RayRateLimiter, namespace=self.namespace, lease_seconds=self.lease_seconds)
        return new, (self.name, self.limit)

    async def acquire(self) -> Lease:
        """Raises `ClusterError` if the actor has not answered for half a minute."""
        number = await self._membership.client.acquire()
        return Lease(partial(self._release, number))  # refers to this object: while a permit is held, it lives

    def _release(self, number: int) -> None:
        self._membership.client.release(number)


class _Membership:
    """Shared by the limiters of one client, which leaves the limit with the last of them."""

    def __init__(self, client: LimiterClient) -> None:
        self.client = client
        weakref.finalize(self, client.stop)


_memberships: weakref.WeakValueDictionary[tuple[str, str, str], _Membership] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _join(name: str, namespace: str | None, limit: int, lease_seconds: float) -> _Membership:
    job = ray.get_runtime_context()
    where = f"toolgym {job.namespace}" if namespace is None else namespace
    key = (name, where, job.get_job_id())
    with _lock:
        membership = _memberships.get(key)
        if membership is None or membership.client.stopped:
            client = LimiterClient(name, where, limit, lease_seconds)
            client.start()
            membership = _memberships[key] = _Membership(client)
        membership.client.check(limit)
        return membership


class LimiterClient:
    """Asks the actor of a limit for permits, for all threads of this process, in a thread of its own.

    The thread sends what all event loops ask for and give back, as much as came together in one message, and it keeps
    one call open that brings permits. Each message has the whole state of this process. So a message that is lost, or
    an actor that was started again, needs nothing but the next message.
    """

    def __init__(self, name: str, namespace: str, limit: int, lease_seconds: float) -> None:
        self.stopped = False  # with its last user, or with the connection to Ray
        self._name, self._namespace, self._limit, self._lease_seconds = name, namespace, limit, lease_seconds
        self._id = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._actor: Any = None
        self._failing_since: float | None = None
        self._numbers = itertools.count()
        self._lock = threading.RLock()  # re-entrant: a garbage collection inside it may find a forgotten lease
        self._waiting: dict[int, Future[None]] = {}
        self._held: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._thread = EventLoopThread(name="toolgym-limiter")

    def check(self, limit: int) -> None:
        if limit != self._limit:
            raise self._conflict(self._limit, limit)

    def start(self) -> None:
        try:
            self._thread.run(self._begin(), timeout=CONNECT_TIMEOUT)
        except BaseException as error:  # an interrupt too: the thread has no other owner
            self._thread.stop()
            if not isinstance(error, TimeoutError):
                raise
            text = f"the cluster's rate limiter {self._name!r} did not start within {CONNECT_TIMEOUT:g} s"
            raise ClusterError(text) from error

    def stop(self) -> None:
        self.stopped = True
        self._wake()

    async def acquire(self) -> int:
        """Wait for a permit. Returns its number, for `release`."""
        number, future = next(self._numbers), Future[None]()
        with self._lock:
            if self.stopped:
                raise ClusterError(f"Ray was shut down, and with it the rate limiter {self._name!r}")
            self._waiting[number] = future
        self._wake()
        try:
            await asyncio.wrap_future(future)
        except BaseException:  # cancelled, or forgotten with its event loop, perhaps when it was granted already
            self.release(number)
            raise
        return number

    def release(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)
            self._held.discard(number)
        self._wake()

    def _wake(self) -> None:
        # If the news are set, the thread has not read the state yet which was changed before this call.
        if self._loop is not None and not self._news.is_set():
            try:
                self._loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:  # the thread has ended
                self.stopped = True

    # ------------------------------------------------------------------ in the thread

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._sync(0.0)
        self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            while not self.stopped:
                await self._news.wait()
                await self._patient_sync(0.0)
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
            await self._patient_sync(min(LISTEN, self._lease_seconds / 4))

    async def _patient_sync(self, patience: float) -> None:
        """Call the actor. If that fails, the state is sent again; after `UNREACHABLE` seconds waiters fail."""
        try:
            await self._sync(patience)
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

    async def _sync(self, patience: float) -> None:
        actor = self._connected()
        self._news.clear()
        with self._lock:
            state = next(self._numbers), list(self._waiting), list(self._held)
        async with asyncio.timeout(UNREACHABLE + patience):
            limit, granted = await actor.sync.remote(self._id, self._limit, self._lease_seconds, *state, patience)
        if limit != self._limit:
            raise self._conflict(limit, self._limit)
        self._take(granted)

    def _connected(self) -> Any:
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
        with self._lock:
            woken = [number for number in granted if number in self._waiting]
            self._held.update(woken)
            futures = [self._waiting.pop(number) for number in woken]
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _fail(self, why: str) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(ClusterError(why))

    def _conflict(self, limit: int, wanted: int) -> ConfigError:
        return ConfigError(
            f"the rate limit {self._name!r} of this cluster is already {limit}, and {wanted} was asked for; use the "
            "same limit everywhere, or another name"
        )
