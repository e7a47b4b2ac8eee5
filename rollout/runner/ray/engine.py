"""`RayEngine`: an engine that is a Ray actor, or several; `EngineActor` makes an actor of any engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from toolgym.rollout.engines.base import (
    Engine,
    EngineLoad,
    Generation,
    GenerationRequest,
    PauseMode,
    SamplingParams,
    WeightSource,
)
from toolgym.rollout.engines.callable import NO_LIMIT, read_answer
from toolgym.rollout.runner.ray.cluster import RETRY_PAUSE, UNREACHABLE, WorkerDiedError, WorkerLostError, call
from toolgym.rollout.runner.ray.exchange import Exchange, ExchangeClient
from toolgym.rollout.runner.ray.packing import portable
from toolgym.rollout.runner.ray.worker import MakeEngine, started_engine
from toolgym.tools.errors import ConfigError, EngineError, EngineUnavailableError, check_seconds, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

import ray  # isort: skip  after `cluster`, which says what to install if it is absent
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError  # isort: skip

CONTROL_TIMEOUT = 600.0
"""Seconds for an actor to start its engine, to pause it, or to load weights."""

LOAD_TIMEOUT = 10.0

_log = logging.getLogger("toolgym.rollout")


class RayEngine(Engine):
    """Generates by calling Ray actors.

    An actor has an async method `generate(prompt_ids, params, request_id, affinity)`: it gets int32 `[tokens]`, the
    `SamplingParams`, and two texts; if `about` says `takes_images`, also `images` and `forbidden_ids` by name. It
    returns what `toolgym.rollout.engines.callable.read_answer` reads, best with arrays. Cancelling the call must abort
    the request. `EngineActor` is such a class for any engine; requests that begin within some milliseconds go to it
    in one call (see `toolgym.rollout.runner.ray.exchange`). An actor may have `abort`, `pause`, `resume`,
    `update_weights` and `load`, as an `Engine` has them, and `EngineActor.about`.

    Requests of one trajectory go to one actor. If that is dead or restarts they go to another. If none lives but one
    restarts (`max_restarts` of Ray), they wait for it. `pause` and `update_weights` concern all actors that live.

    Args:
        actors: handles, at least one.
        tokenizer: of the model; None: the actor's.
        context_length: most tokens of prompt and generation together; None: the actor's, or the tokenizer's.
        vocab_size: number of token ids; None: the actor's, or the tokenizer's.
        unavailable_timeout: seconds that a request waits while no actor can be reached and one may come back.

    Raises:
        ConfigError: there is no actor, one has no method `generate`, or an argument is not usable.
    """

    def __init__(
        self,
        *actors: Any,
        tokenizer: PreTrainedTokenizerBase | None = None,
        context_length: int | None = None,
        vocab_size: int | None = None,
        unavailable_timeout: float = UNREACHABLE,
    ) -> None:
        check_seconds(unavailable_timeout=unavailable_timeout)
        if not actors:
            raise ConfigError("a RayEngine needs at least one actor")
        for actor in actors:
            if not hasattr(actor, "generate"):
                raise ConfigError(f"the actor of an engine must have a method `generate`, {actor!r} has none")
        self._actors = actors
        self.tokenizer = tokenizer
        self._context_length, self._vocab_size = context_length, vocab_size
        self._takes_images = False
        self._weight_version = "0"
        self._unavailable_timeout = unavailable_timeout
        self._dead: set[Any] = set()
        self._clients: dict[Any, tuple[asyncio.AbstractEventLoop, ExchangeClient]] = {}
        self._paused = False

    @property
    def vocab_size(self) -> int:
        if self._vocab_size is None:
            raise EngineError("the engine has not started, so its vocabulary is not known")
        return self._vocab_size

    @property
    def context_length(self) -> int:
        if self._context_length is None:
            raise EngineError("the engine has not started, so its context length is not known")
        return self._context_length

    @property
    def takes_images(self) -> bool:
        return self._takes_images

    @property
    def weight_version(self) -> str:
        return self._weight_version

    async def start(self) -> None:
        """Ask an actor for its model's facts. Raises `EngineUnavailableError` if none lives."""
        if hasattr(self._actors[0], "about"):
            about = await self._about()
            self._vocab_size = self._vocab_size or about["vocab_size"]
            self._context_length = self._context_length or about["context_length"]
            self._weight_version = str(about["weight_version"])
            self._takes_images = bool(about.get("takes_images"))
            if self.tokenizer is None and about["tokenizer"] is not None:
                self.tokenizer = cloudpickle.loads(about["tokenizer"])
        if self.tokenizer is not None:
            self._vocab_size = self._vocab_size or len(self.tokenizer)
            most = getattr(self.tokenizer, "model_max_length", NO_LIMIT)
            self._context_length = self._context_length or (most if most < NO_LIMIT else None)
        if self._vocab_size is None or self._context_length is None:
            raise ConfigError(
                "neither the actor nor a tokenizer says how large the vocabulary is and how long a context may be: "
                "give vocab_size and context_length"
            )

    async def _about(self) -> dict[str, Any]:
        for actor in self._actors:
            try:
                return dict(await self._control(actor, "about"))
            except EngineUnavailableError as error:
                lost = error
        raise lost

    async def _generate(self, request: GenerationRequest) -> Generation:
        ids = np.asarray(request.prompt_ids, dtype=np.int32)
        seen = {"images": request.images, "forbidden_ids": request.forbidden_ids} if self._takes_images else {}
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        while True:
            restarting = False
            for actor in self._by_affinity(request.affinity or request.request_id):
                try:
                    answer = await self._ask(actor, ids, request.params, request.request_id, request.affinity, **seen)
                except RayTaskError as error:
                    raise error.cause if isinstance(error.cause, Exception) else EngineError(str(error)) from None
                except RayError as error:
                    lost = error
                    if isinstance(error, ActorUnavailableError):
                        restarting = True
                    else:
                        self._warn_of(actor, error)
                    continue
                generation = read_answer(answer, request, self._weight_version)
                if generation.weight_versions:
                    self._weight_version = generation.weight_versions[-1]
                return generation
            give_up_at = give_up_at or loop.time() + self._unavailable_timeout
            if not restarting or loop.time() > give_up_at:
                raise EngineUnavailableError(f"no actor of the engine answers: {lost}") from lost
            await asyncio.sleep(RETRY_PAUSE)

    async def _ask(self, actor: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(actor, "exchange"):
            loop, (known, client) = asyncio.get_running_loop(), self._clients.get(actor, (None, None))
            if client is None or known is not loop:
                client = ExchangeClient(actor)
                self._clients[actor] = loop, client
            return await client.ask(*args, **kwargs)
        ref = actor.generate.remote(*args, **kwargs)
        try:
            return await ref
        except asyncio.CancelledError:
            ray.cancel(ref)
            raise

    def _warn_of(self, actor: Any, error: RayError) -> None:
        """Log once that an actor is dead while others may live."""
        if actor not in self._dead and len(self._actors) > 1:
            self._dead.add(actor)
            _log.warning(
                "%d of %d actors of the engine are dead; their requests go to the others: %s",
                len(self._dead),
                len(self._actors),
                shorten(str(error).partition("\n")[0]),
            )

    def _by_affinity(self, affinity: str) -> Sequence[Any]:
        """The actors in the order that requests of this affinity go to them."""
        if len(self._actors) == 1:
            return self._actors
        order = sorted(
            range(len(self._actors)),
            key=lambda at: hashlib.blake2b(f"{affinity} {at}".encode(), digest_size=8).digest(),
        )
        return [self._actors[at] for at in order]

    async def abort(self, request_id: str) -> None:
        await self._all("abort", request_id)

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        """See `Engine.pause`. If an actor fails to, the others go on as before."""
        try:
            await self._all("pause", mode)
        except BaseException:  # also where the caller is cancelled: some may have paused, and would stay so
            if not self._paused:
                with contextlib.suppress(Exception):  # what the pause raised says more
                    await self._all("resume")
            raise
        self._paused = True

    async def resume(self) -> None:
        await self._all("resume")
        self._paused = False

    async def update_weights(self, source: WeightSource, *, version: str) -> None:
        await self._all("update_weights", source, version)
        self._weight_version = version

    async def load(self) -> EngineLoad | None:
        """The load of the engines of all living actors together; None if one cannot tell. Raises `EngineError` if one
        failed to."""
        if not all(hasattr(actor, "load") for actor in self._actors):
            return None
        calls = (self._control(actor, "load", seconds=LOAD_TIMEOUT) for actor in self._actors)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        loads = [load for load in outcomes if not isinstance(load, EngineUnavailableError)]
        if not loads:
            raise EngineUnavailableError("no actor of the engine says how busy it is")
        for load in loads:
            if isinstance(load, BaseException):
                raise load
        known = [load for load in loads if isinstance(load, EngineLoad)]
        return EngineLoad.of_replicas(known) if len(known) == len(loads) else None

    async def _all(self, method: str, *args: Any) -> None:
        if not all(hasattr(actor, method) for actor in self._actors):
            raise EngineError(f"an actor of this RayEngine has no method {method!r}")
        calls = (self._control(actor, method, *args) for actor in self._actors)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        errors = [error for error in outcomes if isinstance(error, BaseException)]
        of_the_living = [error for error in errors if not isinstance(error.__cause__, WorkerDiedError)]
        if of_the_living:
            raise of_the_living[0]
        if len(errors) == len(outcomes):
            raise errors[0]

    async def _control(self, actor: Any, method: str, *args: Any, seconds: float = CONTROL_TIMEOUT) -> Any:
        try:
            return await call(actor, method, *args, seconds=seconds)
        except WorkerLostError as error:
            raise EngineUnavailableError(f"an actor of the engine does not answer: {error}") from error


class EngineActor:
    """An engine for many processes: `ray.remote(EngineActor).options(num_gpus=1).remote(make_engine)`. `make` makes the
    engine in the actor's process, or an awaitable of it, as `open_engine` gives."""

    def __init__(self, make: MakeEngine) -> None:
        self._make = make
        self._started: asyncio.Task[Engine] | None = None
        self._exchange = Exchange(self.generate)

    async def about(self) -> dict[str, Any]:
        """Return `vocab_size`, `context_length`, `weight_version`, `takes_images` and the pickled `tokenizer`."""
        engine = await self._engine()
        tokenizer = engine.tokenizer
        return {
            "vocab_size": engine.vocab_size,
            "context_length": engine.context_length,
            "weight_version": engine.weight_version,
            "takes_images": engine.takes_images,
            "tokenizer": None if tokenizer is None else cloudpickle.dumps(tokenizer),
        }

    async def generate(
        self,
        prompt_ids: np.ndarray[Any, Any],
        params: SamplingParams,
        request_id: str,
        affinity: str | None,
        **seen: Any,
    ) -> dict[str, Any]:
        """See `Engine.generate`."""
        engine = await self._engine()
        try:
            generation = await engine.generate(
                prompt_ids.tolist(), params, request_id=request_id, affinity=affinity, **seen
            )
        except Exception as error:  # noqa: BLE001  raised anew, in a form that can be sent
            raise portable(error) from None
        versions = generation.weight_versions
        return {
            "token_ids": np.asarray(generation.token_ids, dtype=np.int32),
            "logprobs": np.asarray(generation.logprobs, dtype=np.float64),
            "finish_reason": generation.finish_reason.value,
            "weight_versions": versions[0] if len(set(versions)) == 1 else list(versions),
            "cached_tokens": generation.cached_tokens,
            "aligned": dict(generation.aligned),
        }

    async def exchange(self, *args: Any) -> list[Any]:
        """See `Exchange`."""
        return await self._exchange(*args)

    async def abort(self, request_id: str) -> None:
        await (await self._engine()).abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.IN_PLACE) -> None:
        await (await self._engine()).pause(mode)

    async def resume(self) -> None:
        await (await self._engine()).resume()

    async def update_weights(self, source: WeightSource, version: str) -> None:
        await (await self._engine()).update_weights(source, version=version)

    async def load(self) -> EngineLoad | None:
        return await (await self._engine()).load()

    async def close(self) -> None:
        if self._started is not None:
            await (await self._started).close()

    async def _engine(self) -> Engine:
        """The engine, which the first call starts."""
        if self._started is None:
            self._started = asyncio.create_task(self._start())
        return await asyncio.shield(self._started)

    async def _start(self) -> Engine:
        try:
            return await started_engine(self._make)
        except Exception as error:  # noqa: BLE001  raised anew, in a form that can be sent
            raise portable(error) from None
