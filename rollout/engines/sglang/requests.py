"""The requests of one client that are on their way: runs them, aborts them, and ends them for a pause or at close."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from toolgym.rollout.engines.base import GenerationRequest, PauseMode
from toolgym.rollout.engines.sglang.messages import may_be_stale, read_labels
from toolgym.rollout.engines.sglang.transport import ClientState, InFlightRequest, SGLangTransport
from toolgym.tools.errors import ConfigError, EngineError

ABORT_AGAIN = (0.1, 0.4, 1.0)
"""Seconds after which an abort is sent again while the request still runs: one that overtakes it is dropped."""
WITHDRAW_DEADLINE = 5.0
"""Most seconds that a cancelled or closed request is waited for after its abort."""
ABORT_GRACE = 5.0
"""Most seconds that a pause which aborts waits for what was in flight to come back."""


class InFlightRequests:
    def __init__(self, state: ClientState, transport: SGLangTransport, timeout: float) -> None:
        self._state = state
        self._transport = transport
        self._timeout = timeout
        self._requests: dict[str, InFlightRequest] = {}
        self._withdrawals: set[asyncio.Task[None]] = set()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    async def run(self, wanted: GenerationRequest, body: dict[str, Any]) -> Any:
        """Return SGLang's answer to a request; None if it was aborted before it began. Cancelling the call ends the
        request in SGLang, too."""
        request_id = wanted.request_id
        if request_id in self._requests:
            raise ConfigError(f"request id {request_id!r} is already running")
        request = InFlightRequest()
        task = request.task = asyncio.create_task(self._answer(request, body, wanted.affinity))
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
                return None
            raise EngineError("the engine was closed before the server answered")
        return task.result()

    async def _answer(self, request: InFlightRequest, body: dict[str, Any], affinity: str | None) -> Any:
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._transport.dispatch(request, body, affinity)
                labels = read_labels(answer)
                if labels and self._began_stale(request, labels):
                    if request.aborted:
                        return None
                    request.own_cache, request.sent = True, False
                    answer = await self._transport.dispatch(request, body, affinity)
                return answer
        except TimeoutError as error:
            if request.sent:
                with contextlib.suppress(TimeoutError, EngineError):  # the caller gets an error in any case
                    async with asyncio.timeout(WITHDRAW_DEADLINE):
                        await self._transport.abort(request)
            raise EngineError(f"{self._transport.name} gave no answer within {self._timeout:g} seconds") from error

    def _began_stale(self, request: InFlightRequest, labels: Sequence[str]) -> bool:
        """Whether the first token may stand on keys and values of older weights. Learns the newest label."""
        if request.updates == self._state.updates_begun:
            self._state.label = labels[-1]  # other clients may update the weights, too
        return labels[0] != request.label and may_be_stale(labels[0])

    async def abort(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is not None:
            await self._abort(request)

    async def end_all(
        self, command: Callable[[str, Mapping[str, Any]], Awaitable[None]], before: PauseMode | None
    ) -> None:
        requests = list(self._requests.values())
        for request in requests:
            request.aborted = True
            if not request.sent:
                request.task.cancel()
        if before in (PauseMode.IN_PLACE, PauseMode.RETRACT):
            # To SGLang's paused scheduler an aborting pause would never end: it waits for the requests, they for it.
            await asyncio.gather(*(self._transport.abort(request) for request in requests if request.sent))
            await command("/continue_generation", {})
        await command("/pause_generation", {"mode": PauseMode.ABORT.value})
        if requests:
            await asyncio.wait({request.task for request in requests}, timeout=ABORT_GRACE)
        # A request that is still out reached SGLang after the pause began; it waits there and has no tokens.
        late = [request for request in requests if not request.task.done()]
        for request in late:
            request.dropped = True
            request.task.cancel()
        if late:
            await asyncio.wait({request.task for request in late})

    async def close(self) -> None:
        await asyncio.gather(*(self._withdraw(request) for request in list(self._requests.values())))
        if self._withdrawals:
            await asyncio.wait(self._withdrawals, timeout=WITHDRAW_DEADLINE)

    async def _abort(self, request: InFlightRequest) -> None:
        """Ask SGLang to end a request, until it ended or SGLang has certainly been asked."""
        request.aborted = True
        task = request.task
        if task.done():
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
        """End a request in every case, also if the caller is cancelled again."""

        async def withdraw() -> None:
            try:
                async with asyncio.timeout(WITHDRAW_DEADLINE):
                    await self._abort(request)
                    if self._state.running.is_set():
                        await asyncio.wait({request.task})
            except (TimeoutError, EngineError):
                pass  # closing the connection, below, makes the server abort too, some seconds later
            finally:
                request.task.cancel()
                await asyncio.wait({request.task})
                if not request.task.cancelled():
                    request.task.exception()  # seen: asyncio must not log it as never retrieved

        task = asyncio.create_task(withdraw())
        self._withdrawals.add(task)
        task.add_done_callback(self._withdrawals.discard)
        await asyncio.shield(task)
