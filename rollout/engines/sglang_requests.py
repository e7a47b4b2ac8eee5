"""What every SGLang engine does with requests: send, abort, pause, go on, and never leave one behind."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolgym.rollout.engines.base import Engine, FinishReason, Generation, PauseMode, SamplingParams
from toolgym.rollout.engines.sglang_wire import ServerInfo, request_body
from toolgym.tools.errors import ConfigError, EngineError

ABORT_AGAIN = (0.1, 0.4, 1.0)
"""Seconds after which an abort is sent again while the request still runs: one that overtakes it is dropped."""
WITHDRAW_DEADLINE = 5.0
"""Most seconds that a cancelled or closed request is waited for after its abort."""
ABORT_GRACE = 5.0
"""Most seconds that a pause which aborts waits for what was in flight to come back."""
NOTHING = Generation((), (), FinishReason.ABORT, ())
"""What a request gives that was aborted before it began."""


class Flight:
    """One `generate` call that is on its way.

    Attributes:
        rid: the id that SGLang knows it by.
        updates: how many updates of the weights had begun when it was sent.
        sent: whether SGLang may know it.
        aborted: whether it is to end early.
        dropped: whether its answer is no longer waited for.
        carrier: where it was sent.
        task: what carries it.
    """

    def __init__(self) -> None:
        self.rid = ""
        self.updates = 0
        self.sent = False
        self.aborted = False
        self.dropped = False
        self.carrier: Any = None
        self.task: asyncio.Task[Generation] | None = None

    def next_rid(self) -> str:
        """A new id for each time that it is sent, all of one length: SGLang aborts whatever *begins* with an id."""
        self.rid = uuid.uuid4().hex
        self.sent = True
        return self.rid


class SGLangRequests(Engine):
    """The requests of an SGLang engine, wherever SGLang runs.

    Args:
        request_timeout: seconds for one generation, waiting and pauses included.
        control_timeout: seconds for a control call.
    """

    def __init__(self, *, request_timeout: float, control_timeout: float) -> None:
        self._request_timeout = request_timeout
        self._control_timeout = control_timeout
        self._info: ServerInfo | None = None
        self._weight_version = ""
        self._updates_begun = 0
        self._updates_ended = 0
        self._random = random.Random()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flights: dict[str, Flight] = {}
        self._withdrawals: set[asyncio.Task[None]] = set()
        self._running = asyncio.Event()
        self._running.set()
        self._pause_mode: PauseMode | None = None
        self._closed = False

    # ---- what an engine adds

    @abstractmethod
    async def _deliver(
        self, flight: Flight, body: dict[str, Any], params: SamplingParams, affinity: str | None
    ) -> Generation:
        """Get a request generated."""

    @abstractmethod
    async def _command(
        self,
        path: str,
        body: Mapping[str, Any] | Callable[[int], Mapping[str, Any]] | None,
        *,
        timeout: float | None = None,
        everyone: bool = False,
        method: str = "POST",
    ) -> dict[str, Any]:
        """Have every replica do something, at once.

        Args:
            path: the endpoint.
            body: what to send; where replicas differ, by a replica's number.
            timeout: seconds for each; None takes the control calls' usual.
            everyone: whether it is an error when a replica is not reachable.
            method: of HTTP.

        Returns:
            The answers of those that are reachable, by name.

        Raises:
            EngineError: one refused, or gave no answer in time; names it.
            EngineUnavailableError: those that are needed are not reachable.
        """

    @abstractmethod
    async def _abort_rid(self, flight: Flight) -> None:
        """Ask SGLang once to end a request."""

    @abstractmethod
    async def _free(self) -> None:
        """Free everything; nothing is in flight any more."""

    # ---- the contract

    @property
    def info(self) -> ServerInfo:
        """What SGLang says about itself. Raises EngineError before `start`."""
        if self._info is None:
            raise EngineError("the server is asked by start(): await engine.start() first")
        return self._info

    @property
    def vocab_size(self) -> int:
        return self.info.vocab_size

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and generation together that are served whole; a few below the model's."""
        return self.info.context_length

    @property
    def weight_version(self) -> str:
        """The newest version known: told at `start`, set by an update, or told with a generation."""
        self.info  # noqa: B018 - raises before start
        return self._weight_version

    @property
    def paused(self) -> PauseMode | None:
        """How the engine is paused; None when it is not."""
        return self._pause_mode

    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        affinity: str | None = None,
    ) -> Generation:
        self._require_open()
        self.check_request(prompt_ids, params)
        body = request_body(prompt_ids, params, self._seed(params))
        if request_id in self._flights:
            raise ConfigError(f"request id {request_id!r} is already running")
        flight = Flight()
        task = flight.task = asyncio.create_task(self._fly(flight, body, params, affinity))
        self._flights[request_id] = flight
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self._withdraw(flight)
            raise
        finally:
            del self._flights[request_id]
        if task.cancelled():
            if flight.dropped or (flight.aborted and not flight.sent):
                return NOTHING
            raise EngineError("the engine was closed before the server answered")
        return task.result()

    async def abort(self, request_id: str) -> None:
        flight = self._flights.get(request_id)
        if flight is not None:
            self._require_open()
            await self._abort(flight)

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        """Stop sampling until `resume`; new requests wait here, not in SGLang.

        `PauseMode.ABORT` ends every request that SGLang has, other clients' too. A paused engine can be paused again
        with another mode; after `PauseMode.RETRACT`, and where SGLang had retracted a request for lack of memory, an
        abort gives back nothing of it.
        """
        mode = PauseMode(mode)
        self._require_open()
        before, self._pause_mode = self._pause_mode, mode
        self._running.clear()
        try:
            if mode is PauseMode.ABORT:
                await self._abort_all(before)
            else:
                await self._command("/pause_generation", {"mode": mode.value})
        except BaseException:
            self._pause_mode = before
            if before is None:
                with contextlib.suppress(EngineError):  # some may have paused
                    await self._command("/continue_generation", {})
                self._running.set()
            raise

    async def resume(self) -> None:
        self._require_open()
        # Before, so that a replica that comes back at this moment is told to go on as well.
        before, self._pause_mode = self._pause_mode, None
        try:
            await self._command("/continue_generation", {})
        except BaseException:
            self._pause_mode = before
            raise
        self._running.set()

    async def close(self) -> None:
        """Abort what runs and close the connections."""
        if self._closed:
            return
        self._closed = True
        flights = list(self._flights.values())
        await asyncio.gather(*(self._withdraw(flight) for flight in flights))
        if self._withdrawals:
            await asyncio.wait(self._withdrawals, timeout=WITHDRAW_DEADLINE)
        await self._free()

    # ---- one request

    def _seed(self, params: SamplingParams) -> int | None:
        if not self.info.deterministic:
            return params.seed
        if params.min_p > 0:
            raise ConfigError("SGLang with --enable-deterministic-inference cannot sample with min_p")
        return self._random.getrandbits(63) if params.seed is None else params.seed

    async def _fly(
        self, flight: Flight, body: dict[str, Any], params: SamplingParams, affinity: str | None
    ) -> Generation:
        try:
            async with asyncio.timeout(self._request_timeout):
                generation = await self._deliver(flight, body, params, affinity)
        except TimeoutError as error:
            if flight.sent:
                await self._try_abort(flight)
            raise EngineError(f"{self._named} gave no answer within {self._request_timeout:g} seconds") from error
        if generation.weight_versions and flight.updates == self._updates_begun:
            self._weight_version = generation.weight_versions[-1]  # where others than this engine update the weights
        return generation

    async def _gate(self, flight: Flight, body: dict[str, Any]) -> None:
        """Wait for the end of a pause, and mark a request with the weights that it will meet."""
        await self._running.wait()
        flight.updates = self._updates_begun
        # Keys and values of other weights are no context of these: the prefix cache is kept apart by version.
        body["extra_key"] = f"weights {self._weight_version}"

    @property
    def _named(self) -> str:
        """What to call this engine in an error."""
        return "SGLang"

    async def _abort(self, flight: Flight) -> None:
        """Ask for the end of a request, until it ended or it is clear that SGLang was asked."""
        flight.aborted = True
        task = flight.task
        if task is None or task.done():
            return
        if not flight.sent:
            task.cancel()
            await asyncio.wait({task})
            return
        await self._abort_rid(flight)
        if not self._running.is_set():
            return  # SGLang ends it after the pause
        for delay in ABORT_AGAIN:
            await asyncio.wait({task}, timeout=delay)
            if task.done() or not flight.sent:
                return
            await self._abort_rid(flight)

    async def _abort_all(self, before: PauseMode | None) -> None:
        flights = [flight for flight in self._flights.values() if flight.task is not None]
        tasks = {flight.task for flight in flights if flight.task is not None}
        for flight in flights:
            flight.aborted = True
            if not flight.sent and flight.task is not None:
                flight.task.cancel()
        if before in (PauseMode.IN_PLACE, PauseMode.RETRACT):
            # To SGLang's paused scheduler an aborting pause would never end: it waits for the requests, they for it.
            await asyncio.gather(*(self._abort_rid(flight) for flight in flights if flight.sent))
            await self._command("/continue_generation", {})
        await self._command("/pause_generation", {"mode": PauseMode.ABORT.value})
        if tasks:
            await asyncio.wait(tasks, timeout=ABORT_GRACE)
        # What is still out reached SGLang after the pause began; it waits there, and nothing was generated.
        late = [flight for flight in flights if flight.task is not None and not flight.task.done()]
        for flight in late:
            flight.dropped = True
            if flight.task is not None:
                flight.task.cancel()
        if late:
            await asyncio.wait({flight.task for flight in late if flight.task is not None})

    async def _withdraw(self, flight: Flight) -> None:
        """End a request whatever it takes, also when the caller is cancelled again meanwhile."""

        async def withdraw() -> None:
            try:
                async with asyncio.timeout(WITHDRAW_DEADLINE):
                    await self._abort(flight)
                    if flight.task is not None and self._running.is_set():
                        await asyncio.wait({flight.task})
            except (TimeoutError, EngineError):
                pass  # closing the connection, below, makes the server abort too, some seconds later
            finally:
                if flight.task is not None:
                    flight.task.cancel()
                    await asyncio.wait({flight.task})
                    if not flight.task.cancelled():
                        flight.task.exception()  # seen: asyncio must not log it as never retrieved

        task = asyncio.create_task(withdraw())
        self._withdrawals.add(task)
        task.add_done_callback(self._withdrawals.discard)
        await asyncio.shield(task)

    async def _try_abort(self, flight: Flight) -> None:
        try:
            async with asyncio.timeout(WITHDRAW_DEADLINE):
                await self._abort_rid(flight)
        except (TimeoutError, EngineError):
            return  # the caller already raises that the server does not answer

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
        self.info  # noqa: B018 - raises before start
        if asyncio.get_running_loop() is not self._loop:
            raise EngineError("the engine belongs to the event loop that started it; make one per event loop")
