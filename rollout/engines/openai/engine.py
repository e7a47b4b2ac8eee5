"""`OpenAICompatible`: any server that speaks `/v1/completions` and returns the ids of its tokens."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from toolgym.rollout.engines.base import (
    Engine,
    FinishReason,
    Generation,
    GenerationRequest,
    PauseMode,
    SamplingParams,
    WeightSource,
)
from toolgym.rollout.engines.http import forbidding, seed_of
from toolgym.rollout.engines.model_config import read_model_config
from toolgym.rollout.engines.openai.http import CompletionsClient
from toolgym.rollout.engines.openai.messages import (
    PROBE_TOP,
    Answer,
    Family,
    LogprobsMode,
    ModelInfo,
    read_mode,
    read_models,
    request_body,
)
from toolgym.tools.concurrency.blocking import in_thread
from toolgym.tools.errors import ConfigError, EngineError, check_seconds
from toolgym.tools.http.addresses import is_address

T = TypeVar("T")

CLOSE_DEADLINE = 5.0
"""Most seconds that `pause`, `abort` and `close` wait for a request to close its connection."""
PROBE_IDS = (0, 1, 2)


@dataclass(eq=False)
class _InFlight:
    """One `generate` call: its tokens so far, over all the requests that it takes."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    cached_tokens: int = 0
    attempt_start: int = 0
    begun: bool = False
    aborted: bool = False
    task: asyncio.Task[FinishReason] | None = None

    def generation(self, reason: FinishReason) -> Generation:
        return Generation(tuple(self.token_ids), tuple(self.logprobs), reason, tuple(self.versions), self.cached_tokens)


class OpenAICompatible(Engine):
    """Generates through `/v1/completions` of a server that takes and returns token ids: vLLM, SGLang, their routers.

    See docs/engines.md for log-probabilities, weights, pauses and seeds. Use `SGLangServer` for an SGLang server if you
    can: it has a control plane. Raises ConfigError if an argument is not usable.

    Args:
        url: the server, for example "http://127.0.0.1:8000", with or without "/v1".
        model: the served model's name; None takes the only one.
        api_key: sent as a bearer token.
        vocab_size: number of token ids; None reads the model's `config.json` if its folder is on this machine.
        context_length: most tokens of prompt and generation together; None takes the server's.
        weight_version: version of the weights that the server has now.
        logprobs_mode: distribution of the server's log-probabilities; None finds out.
        affinity_header: header that carries a request's `affinity`, for a router that keeps those with the same value
            on one server (`x-smg-routing-key` for SGLang's).
        request_timeout: seconds for one generation, waiting on the server and pauses included.
        connect_timeout: seconds to connect.
        control_timeout: seconds for every other call, the probes included.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        vocab_size: int | None = None,
        context_length: int | None = None,
        weight_version: str = "0",
        logprobs_mode: LogprobsMode | str | None = None,
        affinity_header: str | None = None,
        request_timeout: float = 1800.0,
        connect_timeout: float = 5.0,
        control_timeout: float = 60.0,
    ) -> None:
        if not is_address(url):
            raise ConfigError(f"the url of a server must look like http://host:8000, got {url!r}")
        check_seconds(request_timeout=request_timeout, connect_timeout=connect_timeout, control_timeout=control_timeout)
        for name, number in {"vocab_size": vocab_size, "context_length": context_length}.items():
            if number is not None and number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number!r}")
        if logprobs_mode is not None and logprobs_mode not in list(LogprobsMode):
            raise ConfigError(f"logprobs_mode must be one of {', '.join(LogprobsMode)}, got {logprobs_mode!r}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._wanted_model, self._wanted_mode = model, logprobs_mode
        self._vocab_size, self._context_length = vocab_size, context_length
        self._weight_version = weight_version
        self._affinity_header = affinity_header
        self._request_timeout = request_timeout
        self._control_timeout = control_timeout
        self._client = CompletionsClient(self.url, api_key, connect_timeout, control_timeout)
        self._model: ModelInfo | None = None
        self._mode: LogprobsMode | None = None
        self._deterministic = False
        self._random = random.Random()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flights: dict[str, _InFlight] = {}
        self._going = asyncio.Event()
        self._going.set()
        self._started = self._closed = False

    @property
    def model(self) -> ModelInfo:
        return _known(self._model)

    @property
    def logprobs_mode(self) -> LogprobsMode:
        return _known(self._mode)

    @property
    def vocab_size(self) -> int:
        return _known(self._vocab_size)

    @property
    def context_length(self) -> int:
        return _known(self._context_length)

    @property
    def stops_at_texts(self) -> bool:
        return True

    @property
    def weight_version(self) -> str:
        return self._weight_version

    @weight_version.setter
    def weight_version(self, version: str) -> None:
        self._weight_version = str(version)

    async def start(self) -> None:
        """Connect, and find out whether this server will do. Starting twice is fine.

        Raises:
            EngineUnavailableError: nothing answers.
            EngineError: the server does not return ids and log-probabilities, or they do not fit together.
            ConfigError: the model is not served, or a size is not known.
        """
        if self._closed:
            raise EngineError("the engine was closed; make a new one")
        if self._started:
            return
        self._loop = asyncio.get_running_loop()
        self._client.open()
        try:
            async with asyncio.timeout(self._control_timeout):
                await self._find_out()
        except TimeoutError as error:
            await self._client.close()
            raise EngineError(
                f"{self.url} did not answer the first requests within {self._control_timeout:g} seconds"
            ) from error
        except BaseException:
            await self._client.close()
            raise
        self._started = True

    def _tokenizer_source(self) -> str | None:
        return self.model.root or self.model.name

    async def _detokenize(self, token_ids: list[int]) -> dict[str, str]:
        body = {"model": self.model.name, "tokens": token_ids, "skip_special_tokens": False}
        answer = await self._client.ask("/detokenize", body)
        text = answer.get("prompt", answer.get("text")) if isinstance(answer, dict) else None  # vLLM's, SGLang's
        return {self.url: text} if isinstance(text, str) else {}

    async def _generate(self, request: GenerationRequest) -> Generation:
        self._require_open()
        params, request_id, affinity = request.params, request.request_id, request.affinity
        self.logprobs_mode.check(params)
        if request_id in self._flights:
            raise ConfigError(f"request id {request_id!r} is already running")
        flight = self._flights[request_id] = _InFlight()
        headers = {self._affinity_header: affinity} if self._affinity_header and affinity else {}
        try:
            async with asyncio.timeout(self._request_timeout):
                while True:
                    flight.task = asyncio.create_task(self._attempt(flight, request, headers))
                    try:
                        await asyncio.wait({flight.task})
                    except asyncio.CancelledError:
                        await _end([flight.task])
                        raise
                    if not flight.task.cancelled():
                        return flight.generation(flight.task.result())
                    if flight.aborted:
                        return flight.generation(FinishReason.ABORT)
                    # It was retracted: the next attempt waits for the end of the pause.
        except TimeoutError as error:
            raise EngineError(
                f"{self.url} was not done within {self._request_timeout:g} seconds; {len(flight.token_ids)} tokens "
                "had come"
            ) from error
        finally:
            del self._flights[request_id]

    async def abort(self, request_id: str) -> None:
        flight = self._flights.get(request_id)
        if flight is not None:
            self._require_open()
            flight.aborted = True
            await _end([flight.task])

    async def pause(self, mode: PauseMode = PauseMode.RETRACT) -> None:
        """Stop sampling until `resume`. Raises ConfigError for `PauseMode.IN_PLACE`; see the class."""
        self._require_open()
        mode = PauseMode(mode)
        if mode is PauseMode.IN_PLACE:
            raise ConfigError(
                "a server behind /v1/completions drops what has no connection, keys and values included: pause with "
                "PauseMode.RETRACT (ids are kept and computed anew) or PauseMode.ABORT, or use SGLangServer"
            )
        self._going.clear()
        begun = [flight for flight in self._flights.values() if flight.begun]
        for flight in begun:
            flight.aborted = flight.aborted or mode is PauseMode.ABORT
        await _end([flight.task for flight in begun])

    async def resume(self) -> None:
        self._require_open()
        self._going.set()

    async def update_weights(self, source: WeightSource, *, version: str) -> None:
        """Refuse with an EngineError: the API cannot load weights."""
        raise EngineError(
            f"/v1/completions cannot load weights: load them into {self.url} in its own way, then set weight_version "
            f"to {version!r}; or use SGLangServer"
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for flight in self._flights.values():
            flight.aborted = True
        try:
            await _end([flight.task for flight in self._flights.values()])
        finally:
            await self._client.close()

    async def _attempt(self, flight: _InFlight, request: GenerationRequest, headers: dict[str, str]) -> FinishReason:
        await self._going.wait()
        flight.begun = True
        got = flight.attempt_start = len(flight.token_ids)
        params = request.params
        rest = replace(params, max_new_tokens=params.max_new_tokens - got)
        answer = Answer([*request.prompt_ids, *flight.token_ids], rest, self.vocab_size)
        body = request_body(self.model, answer.prompt, rest, self._seed(params, got))
        body |= forbidding(request.forbidden_ids)
        try:
            await self._client.complete(
                body, answer, headers=headers, progress=lambda: _keep(flight, answer, self._weight_version)
            )
        finally:
            flight.cached_tokens = flight.cached_tokens or answer.cached_tokens
        return answer.reason()

    def _seed(self, params: SamplingParams, got: int) -> int | None:
        seed = seed_of(params, self._random, deterministic=self._deterministic)
        if params.seed is None or not got:
            return seed
        digest = hashlib.blake2b(f"{params.seed} {got}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    async def _find_out(self) -> None:
        models = await self._client.ask("/v1/models")
        self._model = model = read_models(self.url, models, self._wanted_model)
        longest = model.context_length
        if model.family is Family.SGLANG:
            # SGLang serves a few tokens less than it says, and silently cuts what is longer.
            server = await self._client.ask("/server_info")
            if isinstance(server, dict):
                most = server.get("max_req_input_len")
                longest = min(longest or most, most) if isinstance(most, int) else longest
                self._deterministic = bool(server.get("enable_deterministic_inference"))
        if self._context_length is None:
            if longest is None:
                raise ConfigError(f"{self.url} does not tell how long its context is: pass context_length=...")
            self._context_length = longest
        if self._vocab_size is None:
            self._vocab_size = (await in_thread(read_model_config, model.root)).vocab_size
            if self._vocab_size is None:
                raise ConfigError(
                    f"{self.url} does not tell its vocabulary's size, and its model's folder is not on this machine: "
                    "pass vocab_size=..., the `vocab_size` of the model's config.json"
                )
        plain = await self._probe(SamplingParams(max_new_tokens=1))
        if self._wanted_mode is not None:
            self._mode = LogprobsMode(self._wanted_mode)
            return
        hot = await self._probe(SamplingParams(max_new_tokens=1, temperature=2.0))
        narrow = await self._probe(SamplingParams(max_new_tokens=1, top_k=2))
        self._mode = read_mode(self.url, plain, hot, narrow)

    async def _probe(self, params: SamplingParams) -> list[float]:
        prompt = [token_id for token_id in PROBE_IDS if token_id < self.vocab_size]
        answer = Answer(prompt, params, self.vocab_size)
        await self._client.complete(request_body(self.model, prompt, params, self._seed(params, 0), PROBE_TOP), answer)
        if answer.reason() is FinishReason.ABORT:
            raise EngineError(f"{self.url} aborted the probe of one token; is it paused?")
        return answer.top

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
        _known(self._loop if self._started else None)
        if asyncio.get_running_loop() is not self._loop:
            raise EngineError("the engine belongs to the event loop that started it; make one per event loop")


def _known(fact: T | None) -> T:
    if fact is None:
        raise EngineError("the server is asked by start(): await engine.start() first")
    return fact


def _keep(flight: _InFlight, answer: Answer, version: str) -> None:
    """Copy the ids that have come with their log-probabilities; an id without one waits, so that a partial is whole."""
    whole = min(len(answer.token_ids), len(answer.logprobs))
    had = len(flight.token_ids) - flight.attempt_start
    if whole > had:
        flight.token_ids += answer.token_ids[had:whole]
        flight.logprobs += answer.logprobs[had:whole]
        flight.versions += [version] * (whole - had)


async def _end(tasks: Sequence[asyncio.Task[Any] | None]) -> None:
    """Cancel tasks and wait until they have closed their connections, also when cancelled in between."""
    alive = [task for task in tasks if task is not None and not task.done()]
    for task in alive:
        task.cancel()
    if alive:
        await asyncio.wait(alive, timeout=CLOSE_DEADLINE)
