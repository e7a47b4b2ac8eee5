"""`CpuSlots`: limits on the executions of a local sandbox, and on those that compute.

If executions wait for a slot, the sandbox looks which others sleep, and lends their slots. One that wakes up takes a
slot at once, as it cannot be stopped; then fewer begin until others end.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar

from toolgym.tools.concurrency.deadline import queueing
from toolgym.tools.concurrency.rate_limit import Lease, LocalRateLimiter
from toolgym.tools.sandbox.base import Limits
from toolgym.tools.sandbox.local.host import resources

COMPUTING_EACH = 4
"""Executions for each processor that may compute at once: each gets a fourth of one, enough for its wall-clock
deadline, and while one waits for something, others use the processor."""

RUNNING_EACH = 32

MEMORY_SHARE = 1 / 8
"""Share of its limit of memory that an execution is expected to use."""

LOOK_EVERY = 0.02
"""Seconds between two looks for executions that sleep."""

LOOK_SHARE = 0.05
"""Share of a processor that looking may take: after a long look the next one comes later."""


def most_executions(limits: Limits, processors: int) -> int:
    """Return the default limit of executions: no more than fit into half of the memory."""
    fitting = int(resources.available_memory() / 2 / (limits.memory_mb * (1 << 20) * MEMORY_SHARE))
    return max(COMPUTING_EACH * processors, min(RUNNING_EACH * processors, fitting))


class CpuSlot:
    """The slot of one execution. Its methods may be called from any thread."""

    def __init__(self, slots: LocalRateLimiter, lease: Lease) -> None:
        self._slots, self._lease = slots, lease
        self._lock = threading.Lock()  # a look may find out that it sleeps just when it ends
        self._ended = False

    def note(self, *, asleep: bool) -> None:
        """Lend the slot to others, or take one again."""
        with self._lock:
            if self._ended:
                return
            if asleep:
                self._lease.release()
            elif not self._lease.held:
                self._lease = self._slots.overdraw()

    def release(self) -> None:
        """Give the slot back, unless it is lent."""
        with self._lock:
            self._ended = True
            self._lease.release()

    def is_held_of(self, slots: LocalRateLimiter) -> bool:
        return self._slots is slots and not self._ended


_held: ContextVar[CpuSlot | None] = ContextVar("toolgym_sandbox_cpu_slot", default=None)


class CpuSlots:
    """Admits executions, first come, first served, from any event loop. With `executions` None any number may sleep.

    `look` tells the `CpuSlot` of each execution whether it sleeps, in the event loop that `loop` returns (None: the
    running one), and returns the seconds of a processor that it took.
    """

    def __init__(
        self,
        executions: int | None,
        computing: int,
        look: Callable[[], Awaitable[float]],
        loop: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None,
    ) -> None:
        self.executions = LocalRateLimiter(executions) if executions is not None else None
        self.computing = LocalRateLimiter(computing)
        self._look, self._loop = look, loop
        self._looking: asyncio.Task[None] | None = None
        self._asked = self._closed = False

    @property
    def full(self) -> bool:
        """Whether a further execution would wait."""
        return self.computing.full or (self.executions is not None and self.executions.full)

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold a slot for the executions of the block, which come one at a time."""
        async with self.permit() as slot:
            token = _held.set(slot)
            try:
                yield
            finally:
                _held.reset(token)

    def permit(self) -> contextlib.AbstractAsyncContextManager[CpuSlot]:
        """Hold a slot for the length of the block, that of `hold` if there is one. Waiting stops the deadlines."""
        return _Permit(self)

    async def close(self) -> None:
        """Stop to look; called in the loop that looks."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    def ask_to_look(self) -> None:
        """Look at executions for as long as others wait."""
        if self._asked:
            return
        self._asked = True
        with contextlib.suppress(RuntimeError):  # that loop is closed, and the sandbox with it
            (self._loop() or asyncio.get_running_loop()).call_soon_threadsafe(self._begin_looking)

    def _begin_looking(self) -> None:
        if not self._closed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            try:
                seconds = await self._look()
                await asyncio.sleep(max(LOOK_EVERY, seconds / LOOK_SHARE))
            finally:
                self._asked = False  # one that comes from here on, in another thread, asks again
            if not self.computing.waiting:
                return
            self._asked = True


class _Permit(contextlib.AbstractAsyncContextManager[CpuSlot]):
    """See `CpuSlots.permit`. A class: as a generator it would take three times as long, in every call of a tool."""

    __slots__ = ("_execution", "_slot", "_slots")

    def __init__(self, slots: CpuSlots) -> None:
        self._slots = slots
        self._execution: Lease | None = None
        self._slot: CpuSlot | None = None

    async def __aenter__(self) -> CpuSlot:
        executions, computing = self._slots.executions, self._slots.computing
        held = _held.get()
        if held is not None and held.is_held_of(computing):
            return held
        if executions is not None:
            self._execution = executions.try_acquire()
            if self._execution is None:
                with queueing():
                    self._execution = await executions.acquire()
        try:
            lease = computing.try_acquire()
            if lease is None:
                with queueing():
                    lease = await computing.acquire(self._slots.ask_to_look)
        except BaseException:
            if self._execution is not None:
                self._execution.release()
            raise
        self._slot = CpuSlot(computing, lease)
        return self._slot

    async def __aexit__(self, *_: object) -> None:
        if self._slot is not None:
            self._slot.release()
        if self._execution is not None:
            self._execution.release()
