"""A limit on how many things happen at once, strictly first come, first served.

`asyncio.Semaphore` belongs to one event loop; a process that trains may well have several (a Gymnasium env has its
own, a runner another), and a global limit must hold across all of them.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable

from toolgym.tools.concurrency.deadline import queueing, wake_up
from toolgym.tools.errors import ConfigError, require_whole_number


class Lease:
    """One permit that is held. `give_back` is called at the first `release` and must not wait: an event loop that shuts
    down may never come back to a coroutine."""

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back

    @property
    def held(self) -> bool:
        return hasattr(self, "_give_back")

    def release(self) -> None:
        try:
            give_back = self._give_back
            del self._give_back  # atomic: of two threads, one gives back
        except AttributeError:
            return
        give_back()


class RateLimiter(ABC):
    """A bounded number of permits. Use `async with limiter.permit():`."""

    @abstractmethod
    async def acquire(self) -> Lease:
        """Wait for a permit, first come, first served, and return the lease on it. Cancelling gives up the place."""

    def try_acquire(self) -> Lease | None:
        """Return a lease if there is a permit at once; None if `acquire` must wait, or might."""
        return None

    async def acquire_in_turn(self) -> Lease:
        """Wait as `acquire` does, while deadlines of `with_deadline` stand still."""
        with queueing():
            return await self.acquire()

    def permit(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold one permit for the length of the block. While the caller waits for it, deadlines of `with_deadline`
        stand still."""
        return _Permit(self)


class _Permit(contextlib.AbstractAsyncContextManager[None]):
    """A class: as a generator it would take three times as long, in every call of a tool."""

    __slots__ = ("_lease", "_limiter")

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    async def __aenter__(self) -> None:
        self._lease = self._limiter.try_acquire() or await self._limiter.acquire_in_turn()

    async def __aexit__(self, *_: object) -> None:
        self._lease.release()


class LocalRateLimiter(RateLimiter):
    """Permits for this process, shared by all its event loops and threads; `granted` were given so far."""

    def __init__(self, limit: int) -> None:
        require_whole_number("a rate limit", limit, at_least=1)
        self.limit = limit
        self.granted = 0
        self._free = limit
        # Re-entrant: a garbage collection inside it may find a forgotten waiter, which gives its permit back.
        self._lock = threading.RLock()
        self._waiters: collections.deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = collections.deque()

    @property
    def in_use(self) -> int:
        return self.limit - self._free

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def try_acquire(self) -> Lease | None:
        with self._lock:
            if self.full:
                return None
            self._free -= 1
            self.granted += 1
            return Lease(self)

    @property
    def full(self) -> bool:
        return self._free <= 0 or bool(self._waiters)

    async def acquire(self, on_wait: Callable[[], None] | None = None) -> Lease:
        loop = asyncio.get_running_loop()
        with self._lock:
            lease = self.try_acquire()
            if lease is not None:
                return lease
            place = (loop, loop.create_future())
            self._waiters.append(place)
        try:
            if on_wait is not None:
                on_wait()
            await place[1]
        except BaseException:  # cancelled, or forgotten together with its event loop
            with self._lock:
                if place in self._waiters:
                    self._waiters.remove(place)
                    raise
            # The permit was already handed to us, on this loop or on its way here: pass it on.
            self()
            raise
        return Lease(self)

    def overdraw(self) -> Lease:
        """Take a permit at once. If none is free, the next one that is given back goes to no waiter."""
        with self._lock:
            self._free -= 1
            self.granted += 1
        return Lease(self)

    def resize(self, limit: int) -> None:
        """Change how many permits there are. If fewer are left than are held, none is taken away: those that are given
        back go to no waiter until the limit holds again."""
        require_whole_number("a rate limit", limit, at_least=1)
        with self._lock:
            self._free += limit - self.limit
            self.limit = limit
            self._serve()

    def __call__(self) -> None:
        """Take a permit back and hand it on. Leases call the limiter itself: a method would take 64 bytes in each."""
        with self._lock:
            self._free += 1
            self._serve()

    def _serve(self) -> None:
        here = running_loop() if self._waiters else None
        while self._waiters and self._free > 0:
            loop, future = self._waiters.popleft()
            if loop is here:  # it is awake: no need for the system call that wakes it up
                wake_up(future)
            else:
                try:
                    loop.call_soon_threadsafe(wake_up, future)
                except RuntimeError:  # that waiter's event loop has been closed
                    continue
            self._free -= 1
            self.granted += 1


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_named: weakref.WeakValueDictionary[str, LocalRateLimiter] = weakref.WeakValueDictionary()
_named_lock = threading.Lock()


def global_limiter(name: str, limit: int) -> LocalRateLimiter:
    """The process-wide limiter of that name, made at first use and forgotten with its last user. Raises `ConfigError`
    if it exists with another limit."""
    with _named_lock:
        limiter = _named.get(name)
        if limiter is None:
            limiter = _named[name] = LocalRateLimiter(limit)
    if limiter.limit != limit:
        raise ConfigError(
            f"the global rate limit {name!r} is already {limiter.limit} in this process, and {limit} was asked for; "
            "use the same rate_limit everywhere, or set enable_global_rate_limit to false"
        )
    return limiter
