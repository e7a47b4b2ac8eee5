"""The requests of one client that are on their way: runs them, aborts them, and ends them for a pause or at close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from toolgym.rollout.engines.base import FinishReason, Generation
from toolgym.rollout.engines.sglang.transport import ClientState, InFlightRequest, SGLangTransport
from toolgym.tools.errors import ConfigError, EngineError

ABORT_AGAIN = (0.1, 0.4, 1.0)
"""Seconds after which an abort is sent again while the request still runs: one that overtakes it is dropped."""
WITHDRAW_DEADLINE = 5.0
"""Most seconds that a cancelled or closed request is waited for after its abort."""
ABORT_GRACE = 5.0
"""Most seconds that a pause which aborts waits for what was in flight to come back."""
NOTHING = Generation((), (), FinishReason.ABORT, ())
"""The generation of a request that was aborted before it began."""


class InFlightRequests:
    """The requests that one client has out.

    Args:
        state: shared with the client.
        transport: carries the aborts.
    """

    def __init__(self, state: ClientState, transport: SGLangTransport) -> None:
        self._state = state
        self._transport = transport
        self._requests: dict[str, InFlightRequest] = {}
        self._withdrawals: set[asyncio.Task[None]] = set()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    async def run(
        self, request_id: str, call: Callable[[InFlightRequest], Coroutine[Any, Any, Generation]]
    ) -> Generation:
        """Run one request to its end. Cancelling the call ends the request in SGLang, too.

        Args:
            request_id: unique among those that run.
            call: gets the request generated; runs in a task of its own.

        Raises:
            ConfigError: the id is running already.
            EngineError: the engine was closed meanwhile; or what `call` raises.
        """
        if request_id in self._requests:
            raise ConfigError(f"request id {request_id!r} is already running")
        request = InFlightRequest()
        task = request.task = asyncio.create_task(call(request))
        self._requests[request_id] = request
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self._withdraw(request)
            raise
        finally:
            del self._requests[request_id]
        if task.cancelled():
            if request.dropped or (request.aborted and not request.sent):
                return NOTHING
            raise EngineError("the engine was closed before the server answered")
        return task.result()

    async def abort(self, request_id: str) -> None:
        """End a request early. Unknown ids are fine."""
        request = self._requests.get(request_id)
        if request is not None:
            await self._abort(request)

    async def end_queued(self) -> list[InFlightRequest]:
        """Mark all as aborted and end those that SGLang does not know yet. Returns all of them."""
        requests = [one for one in self._requests.values() if one.task is not None]
        for one in requests:
            one.aborted = True
            if not one.sent and one.task is not None:
                one.task.cancel()
        return requests

    async def collect_aborted(self, requests: list[InFlightRequest]) -> None:
        """Wait until requests that a pause aborts have come back; give up those that it left waiting in SGLang."""
        tasks = {one.task for one in requests if one.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=ABORT_GRACE)
        # A request that is still out reached SGLang after the pause began; it waits there and has no tokens.
        late = [one for one in requests if one.task is not None and not one.task.done()]
        for one in late:
            one.dropped = True
            if one.task is not None:
                one.task.cancel()
        if late:
            await asyncio.wait({one.task for one in late if one.task is not None})

    async def try_abort(self, request: InFlightRequest) -> None:
        """Ask SGLang once to end a request whose caller gets an error in any case."""
        try:
            async with asyncio.timeout(WITHDRAW_DEADLINE):
                await self._transport.abort(request)
        except (TimeoutError, EngineError):
            return  # the caller already raises that the server does not answer

    async def close(self) -> None:
        """End everything."""
        await asyncio.gather(*(self._withdraw(one) for one in list(self._requests.values())))
        if self._withdrawals:
            await asyncio.wait(self._withdrawals, timeout=WITHDRAW_DEADLINE)

    async def _abort(self, request: InFlightRequest) -> None:
        """Ask SGLang to end a request, until it ended or SGLang has certainly been asked."""
        request.aborted = True
        task = request.task
        if task is None or task.done():
            return
        if not request.sent:
            task.cancel()
            await asyncio.wait({task})
            return
        await self._transport.abort(request)
        if not self._state.running.is_set():
            return  # SGLang ends it after the pause
        for delay in ABORT_AGAIN:
            await asyncio.wait({task}, timeout=delay)
            if task.done() or not request.sent:
                return
            await self._transport.abort(request)

    async def _withdraw(self, request: InFlightRequest) -> None:
        """End a request in every case, also where the caller is cancelled again meanwhile."""

        async def withdraw() -> None:
            try:
                async with asyncio.timeout(WITHDRAW_DEADLINE):
                    await self._abort(request)
                    if request.task is not None and self._state.running.is_set():
                        await asyncio.wait({request.task})
            except (TimeoutError, EngineError):
                pass  # closing the connection, below, makes the server abort too, some seconds later
            finally:
                if request.task is not None:
                    request.task.cancel()
                    await asyncio.wait({request.task})
                    if not request.task.cancelled():
                        request.task.exception()  # seen: asyncio must not log it as never retrieved

        task = asyncio.create_task(withdraw())
        self._withdrawals.add(task)
        task.add_done_callback(self._withdrawals.discard)
        await asyncio.shield(task)
